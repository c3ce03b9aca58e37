"use strict";
/* The routing problem, rule by rule as in cvrp/tours.py: one vehicle, one instance. */
const World = (() => {
  const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#004488", "#ddaa33", "#117733"];

  /* Depot and customers uniform in the unit square, demands 1 to 9; or a grid of hundredths, demands 1 to 10. */
  function instance({ customers, distribution }) {
    const grid = distribution === "grid-1-10";
    const place = () => (grid ? Math.floor(Math.random() * 101) / 100 : Math.random());
    const xy = Array.from({ length: customers + 1 }, () => [place(), place()]);
    return { xy, demand: xy.map((_, node) => (node ? 1 + Math.floor(Math.random() * (grid ? 10 : 9)) : 0)) };
  }

  const depart = ({ xy }, capacity) => ({ node: 0, load: capacity, visited: xy.map(() => false), moves: [0] });
  const served = ({ visited }) => visited.every((seen, node) => seen || node === 0);
  const home = (state) => served(state) && state.node === 0;
  const feasible = ({ demand }, state) =>
    demand.map((wanted, node) => (node ? !state.visited[node] && wanted <= state.load : state.node !== 0 || served(state)));

  function visit({ demand }, state, node, capacity) {
    const visited = state.visited.map((seen, other) => seen || (node !== 0 && other === node));
    return { node, load: node ? state.load - demand[node] : capacity, visited, moves: [...state.moves, node] };
  }

  const distance = ([x, y], [u, v]) => Math.hypot(x - u, y - v);
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

  return { instance, depart, served, home, feasible, visit, distance, length, draw };
})();
