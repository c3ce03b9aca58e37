"use strict";
/* The routing problems, rule by rule as in cvrp/problems: one vehicle at a time, one instance. */
const World = (() => {
  const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#004488", "#ddaa33", "#117733"];

  const HORIZON = 4.6;
  const distance = ([x, y], [u, v]) => Math.hypot(x - u, y - v);
  const between = (low, high) => low + (high - low) * Math.random();

  /* Opening, closing and service of each node, as Vrptw.generate makes them. */
  function windows(xy) {
    return xy.map((place, node) => {
      if (!node) return [0, HORIZON, 0];
      const [service, width, way] = [between(0.15, 0.18), between(0.18, 0.2), distance(place, xy[0])];
      const opens = way + (HORIZON - service - width - 2 * way) * Math.random();
      return [opens, opens + width, service];
    });
  }

  /* Depot and customers uniform in the unit square, demands 1 to 9; or a grid of hundredths, demands 1 to 10. */
  function instance({ problem, customers, distribution }) {
    const grid = distribution === "grid-1-10";
    const place = () => (grid ? Math.floor(Math.random() * 101) / 100 : Math.random());
    const xy = Array.from({ length: customers + (problem === "tsp" ? 0 : 1) }, () => [place(), place()]);
    const wanted = (node) => (node && problem !== "tsp" ? 1 + Math.floor(Math.random() * (grid ? 10 : 9)) : 0);
    return { problem, xy, demand: xy.map((_, node) => wanted(node)), more: problem === "vrptw" ? windows(xy) : null };
  }

  const depart = ({ xy }, capacity) => ({ node: 0, load: capacity, time: 0, visited: xy.map(() => false), moves: [0] });
  const served = ({ visited }) => visited.every((seen, node) => seen || node === 0);
  const home = (state) => served(state) && state.node === 0;
  function feasible({ problem, xy, demand, more }, state) {
    const inTime = (node) => !more || state.time + distance(xy[state.node], xy[node]) <= more[node][1];
    const customer = (node) => !state.visited[node] && demand[node] <= state.load && inTime(node);
    const depot = served(state) || (problem !== "tsp" && state.node !== 0);
    return demand.map((_, node) => (node ? customer(node) : depot));
  }

  function visit({ xy, demand, more }, state, node, capacity) {
    const visited = state.visited.map((seen, other) => seen || (node !== 0 && other === node));
    const arrival = state.time + distance(xy[state.node], xy[node]);
    const time = more && node ? Math.max(arrival, more[node][0]) + more[node][2] : 0;
    return { node, load: node ? state.load - demand[node] : capacity, time, visited, moves: [...state.moves, node] };
  }

  /* What the policy sees of a node beside its place, and of a vehicle. */
  function ofNode({ problem, demand, more }, node, capacity) {
    if (problem === "tsp") return [];
    return [demand[node] / capacity, ...(more ? more[node].map((time) => time / HORIZON) : [])];
  }
  function ofVehicle({ problem, more }, state, capacity) {
    if (problem === "tsp") return [1 - state.visited.filter(Boolean).length / state.visited.length];
    return [state.load / capacity, ...(more ? [state.time / HORIZON] : [])];
  }

  const length = ({ xy }, { moves }) => moves.slice(1).reduce((sum, node, i) => sum + distance(xy[moves[i]], xy[node]), 0);

  function draw(context, width, height, ink, { xy, demand }, state) {
    const margin = 16;
    const at = ([x, y]) => [margin + x * (width - 2 * margin), height - margin - y * (height - 2 * margin)];
    let route = 0;
    context.lineWidth = 2.5;
    context.lineCap = "round";
    state.moves.slice(1).forEach((node, i) => {
      context.strokeStyle = COLOURS[route % COLOURS.length];
      context.beginPath();
      context.moveTo(...at(xy[state.moves[i]]));
      context.lineTo(...at(xy[node]));
      context.stroke();
      if (node === 0) route += 1;
    });
    context.fillStyle = ink;
    xy.forEach((place, node) => {
      const [x, y] = at(place);
      context.globalAlpha = node && state.visited[node] ? 0.35 : 1;
      context.beginPath();
      if (node) context.arc(x, y, 3 + demand[node] * 0.6, 0, 2 * Math.PI);
      else context.rect(x - 8, y - 8, 16, 16);
      context.fill();
    });
    context.globalAlpha = 1;
  }

  return { instance, depart, served, home, feasible, visit, ofNode, ofVehicle, distance, length, draw };
})();
