"use strict";
/* A trained policy routes vehicles: encoder and decoder as in cvrp/encoders.py and cvrp/decoder.py, for one instance.
   Vectors are plain arrays; `rows` is a list of them, one for each node. */

const add = (a, b) => a.map((value, i) => value + b[i]);
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const silu = (x) => x / (1 + Math.exp(-x));
const largest = (values) => values.reduce((place, value, i) => (value > values[place] ? i : place), 0);
const mean = (rows) => rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);

function softmax(scores) {
  const top = Math.max(...scores);
  const raised = scores.map((score) => Math.exp(score - top));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}

function network({ weights, page }) {
  const { model, heads, layers } = page;
  const vector = (name) => Array.from(weights[name].data);
  const matrix = (name) => Array.from({ length: weights[name].shape[0] }, (_, i) => Array.from(weights[name].row(i)));
  const kept = {};
  const get = (name, read) => (kept[name] ??= read(name));
  const linear = (name, row) => {
    const out = get(`${name}.weight`, matrix).map((weight) => dot(weight, row));
    return weights[`${name}.bias`] ? add(out, get(`${name}.bias`, vector)) : out;
  };
  const head = (row, h) => row.slice((h * row.length) / heads, ((h + 1) * row.length) / heads);
  const joined = (make) => Array.from({ length: heads }, (_, h) => make(h)).flat();
  const mixture = (shares, rows) => rows[0].map((_, i) => rows.reduce((sum, row, n) => sum + shares[n] * row[i], 0));

  function scaled(row, name, centre, variance) {
    const [gain, bias] = [get(`${name}.weight`, vector), get(`${name}.bias`, vector)];
    return row.map((value, i) => ((value - centre(i)) / Math.sqrt(variance(i) + 1e-5)) * gain[i] + bias[i]);
  }
  function layerNorm(name, row) {
    const centre = row.reduce((a, b) => a + b, 0) / row.length;
    const variance = row.reduce((sum, value) => sum + (value - centre) ** 2, 0) / row.length;
    return scaled(row, name, () => centre, () => variance);
  }
  function instanceNorm(name, rows) {
    const centre = mean(rows);
    const variance = mean(rows.map((row) => row.map((value, i) => (value - centre[i]) ** 2)));
    return rows.map((row) => scaled(row, name, (i) => centre[i], (i) => variance[i]));
  }

  /* Self-attention; slope: of the distance biases, by head. */
  function attention(name, rows, distance, slope) {
    const width = rows[0].length;
    const parts = rows.map((row) => linear(`${name}.inputs`, row));
    const [queries, keys, values] = [0, 1, 2].map((part) => parts.map((row) => row.slice(part * width, (part + 1) * width)));
    return queries.map((query, i) => {
      const mixed = joined((h) => {
        const near = (j) => (slope ? slope[h] * distance[i][j] : 0);
        const scores = keys.map((key, j) => dot(head(query, h), head(key, h)) / Math.sqrt(width / heads) + near(j));
        return mixture(softmax(scores), values.map((value) => head(value, h)));
      });
      return linear(`${name}.output`, mixed);
    });
  }
  function edgeAttention(name, rows, distance) {
    const [here, there] = ["here", "there"].map((part) => rows.map((row) => linear(`${name}.${part}`, row)));
    const [edge, score] = [get(`${name}.edge`, vector), get(`${name}.score`, matrix)];
    return here.map((own, i) => {
      const pairs = there.map((other, j) => own.map((value, k) => value + other[k] + edge[k] * distance[i][j]));
      const bent = pairs.map((pair) => pair.map((value) => (value < 0 ? 0.2 * value : value)));
      const mixed = joined((h) => {
        const scores = bent.map((pair) => dot(head(pair, h), score[h]));
        return mixture(softmax(scores), there.map((other) => head(other, h)));
      });
      return linear(`${name}.output`, mixed);
    });
  }

  function block(name, rows, distance) {
    if (model === "am") {
      const mixed = attention(`${name}.attention`, rows, distance, null);
      rows = instanceNorm(`${name}.attention_norm`, rows.map((row, i) => add(row, mixed[i])));
      const bent = (row) => linear(`${name}.feed_forward.0`, row).map((value) => Math.max(0, value));
      const more = (row) => add(row, linear(`${name}.feed_forward.2`, bent(row)));
      return instanceNorm(`${name}.feed_forward_norm`, rows.map(more));
    }
    const normed = rows.map((row) => layerNorm(`${name}.attention_norm`, row));
    const slope = model === "gat" ? null : get(`${name}.attention.slope`, vector);
    const mixed = (model === "gat" ? edgeAttention : attention)(`${name}.attention`, normed, distance, slope);
    return rows.map((row, i) => {
      const middle = add(row, mixed[i]);
      const both = linear(`${name}.gate`, layerNorm(`${name}.feed_forward_norm`, middle));
      const half = both.length / 2;
      const gated = both.slice(0, half).map((value, k) => value * silu(both[half + k]));
      return add(middle, linear(`${name}.output`, gated));
    });
  }

  /* What the decoder remembers of an instance. */
  function remember(problem) {
    const { xy } = problem;
    const distance = xy.map((place) => xy.map((other) => World.distance(place, other)));
    const seen = (place, node) => [...place, ...World.ofNode(problem, node, page.capacity)];
    const embed = (place, node) => (node ? linear("encoder.customer", seen(place, node)) : linear("encoder.depot", place));
    let rows = xy.map(embed);
    for (let i = 0; i < layers; i++) rows = block(`encoder.blocks.${i}`, rows, distance);
    if (model !== "am") rows = rows.map((row) => layerNorm("encoder.final_norm", row));
    const width = rows[0].length;
    const parts = rows.map((row) => linear("decoder.node_inputs", row));
    const [keys, values, pointers] = [0, 1, 2].map((part) => parts.map((row) => row.slice(part * width, (part + 1) * width)));
    const graph = linear("decoder.graph_context", mean(rows));
    const queries = rows.map((row) => add(linear("decoder.node_context", row), graph));
    return { distance, keys, values, pointers, queries };
  }

  /* Scores of all nodes; -Infinity where the vehicle may not go. */
  function scores(memory, problem, state) {
    const options = World.feasible(problem, state);
    const share = state.load / page.capacity;
    const context = get("decoder.vehicle_context", matrix);
    const facts = World.ofVehicle(problem, state, page.capacity);
    const query = facts.reduce((sum, fact, c) => sum.map((value, i) => value + fact * context[c][i]), memory.queries[state.node]);
    let { keys, values } = memory;
    let news = null;
    if (model === "dgt") {
      const left = (node) => share - problem.demand[node] / page.capacity;
      const look = (node) => [Number(state.visited[node]), Number(options[node]), memory.distance[state.node][node], left(node)];
      const fresh = options.map((_, node) => linear("decoder.features", look(node)).map(silu));
      const renewal = get("decoder.renewal.weight", matrix);
      const size = query.length;
      const part = (k) => {
        const rows = renewal.slice(k * size, (k + 1) * size);
        return fresh.map((look) => rows.map((row) => dot(row, look)));
      };
      const [toKeys, toValues] = [part(0), part(1)];
      keys = keys.map((key, node) => add(key, toKeys[node]));
      values = values.map((value, node) => add(value, toValues[node]));
      news = part(2);
    }
    const open = options.flatMap((ok, node) => (ok ? [node] : []));
    const mixed = joined((h) => {
      const found = open.map((node) => dot(head(query, h), head(keys[node], h)) / Math.sqrt(query.length / heads));
      return mixture(softmax(found), open.map((node) => head(values[node], h)));
    });
    const glimpse = linear("decoder.glimpse", mixed);
    return options.map((ok, node) => {
      if (!ok) return -Infinity;
      const score = dot(memory.pointers[node], glimpse) + (news ? dot(news[node], mixed) : 0);
      return 10 * Math.tanh(score / Math.sqrt(query.length));
    });
  }

  return { remember, scores };
}

Frame.run((bundle) => {
  const { page } = bundle;
  const { remember, scores } = network(bundle);
  const rows = (flat, size) => Array.from({ length: flat.length / size }, (_, i) => Array.from(flat.slice(size * i, size * (i + 1))));
  const tsp = page.problem === "tsp";
  const PAUSE = 12;
  let [problem, memory, state, rest, lengths] = [null, null, null, 0, []];

  function begin() {
    problem = World.instance(page);
    memory = remember(problem);
    state = World.depart(problem, page.capacity);
    rest = PAUSE;
  }

  return {
    title: tsp
      ? `${page.customers} cities: a policy of TSP finds a tour`
      : `${page.customers} customers: a policy of ${page.problem.toUpperCase()} routes vehicles`,
    pace: 6,
    compute({ xy, demand, more, visited, node, load, time }) {
      const places = rows(xy, 2);
      const recorded = {
        problem: page.problem,
        xy: places,
        demand: demand ? Array.from(demand) : places.map(() => 0),
        more: more ? rows(more, more.length / places.length) : null,
      };
      const where = { node: node[0], load: load ? load[0] : page.capacity, time: time ? time[0] : 0, visited: Array.from(visited, Boolean) };
      return { scores: scores(remember(recorded), recorded, where) };
    },
    start() {
      lengths = [];
      begin();
    },
    step() {
      if (!World.home(state)) {
        state = World.visit(problem, state, largest(scores(memory, problem, state)), page.capacity);
        if (World.home(state)) lengths.push(World.length(problem, state));
      } else if (rest-- <= 0) begin();
    },
    draw: (context, width, height, ink) => World.draw(context, width, height, ink, problem, state),
    status() {
      const done = state.visited.filter(Boolean).length;
      const past = lengths.length ? `; ${lengths.length} solved, mean length ${(lengths.reduce((a, b) => a + b) / lengths.length).toFixed(3)}` : "";
      const served = tsp ? `${done + 1} of ${page.customers} cities visited` : `${done} of ${page.customers} customers served, load ${state.load} of ${page.capacity}`;
      const clock = problem.more ? `, time ${state.time.toFixed(2)}` : "";
      return `${served}${clock}, driven ${World.length(problem, state).toFixed(3)}${past}`;
    },
  };
});
