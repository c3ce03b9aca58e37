"use strict";
/* A trained policy at play: the network, and the loop of agent and environment. world.js is one of the worlds beside this file. */

/* Layers of policy.py for one agent. Weights are [players, out, in]; with one player it serves every agent. */
const LAYERS = {
  linear({ weight, bias }, input, agent) {
    const [players, outputs, inputs] = weight.shape;
    const player = players === 1 ? 0 : agent;
    const output = new Float32Array(outputs);
    for (let o = 0, at = player * outputs * inputs; o < outputs; o++) {
      let sum = bias.data[player * outputs + o];
      for (let i = 0; i < inputs; i++) sum += weight.data[at++] * input[i];
      output[o] = sum;
    }
    return output;
  },
  normalize: ({ shift, scale, most }, input) =>
    input.map((value, i) => Math.min(most, Math.max(-most, (value - shift.data[i]) * scale.data[i]))),
  tanh: (_, input) => input.map(Math.tanh),
  picture({ convolutions, strides, planes, players }, input, agent) {
    let [count, height, width] = planes;
    const seen = count * height * width;
    let picture = input.subarray(0, seen);
    convolutions.forEach(({ weight, bias }, layer) => {
      const stride = strides[layer];
      const [outputs, inputs] = [weight.shape[0] / players, weight.shape[1]];
      const first = (players === 1 ? 0 : agent) * outputs;
      const [rows, columns] = [Math.ceil(height / stride), Math.ceil(width / stride)];
      const next = new Float32Array(outputs * rows * columns);
      for (let o = 0; o < outputs; o++)
        for (let y = 0; y < rows; y++)
          for (let x = 0; x < columns; x++) {
            let sum = bias.data[first + o];
            for (let i = 0; i < inputs; i++)
              for (let dy = -1; dy <= 1; dy++)
                for (let dx = -1; dx <= 1; dx++) {
                  const [row, column] = [stride * y + dy, stride * x + dx];
                  if (row < 0 || row >= height || column < 0 || column >= width) continue;
                  sum += weight.data[(((first + o) * inputs + i) * 3 + dy + 1) * 3 + dx + 1] * picture[(i * height + row) * width + column];
                }
            next[(o * rows + y) * columns + x] = Math.max(0, sum);
          }
      [picture, height, width] = [next, rows, columns];
    });
    return Float32Array.from([...picture, ...input.subarray(seen)]);
  },
};

function network({ weights, page }) {
  const part = (name) => (suffix) => [suffix, weights[`${name}.${suffix}`]];
  const named = (name) => Object.fromEntries(["weight", "bias", "shift", "scale"].map(part(name)));
  const layers = page.layers.map(({ kind, name, convolutions, ...more }) => {
    const parts = convolutions ? { convolutions: convolutions.map(named) } : name ? named(name) : {};
    return (input, agent) => LAYERS[kind]({ ...parts, ...more }, input, agent);
  });
  return (observation, agent) => layers.reduce((values, layer) => layer(values, agent), Float32Array.from(observation));
}

const largest = (values) => values.reduce((place, value, i) => (value > values[place] ? i : place), 0);

Frame.run((bundle) => {
  const { page } = bundle;
  const scores = network(bundle);
  const world = WORLDS[page.environment](page);
  const numbers = () => Array.from({ length: page.draws }, Math.random);
  let [state, steps, returns, finished] = [null, 0, [], []];

  /* The world, too, is checked: the recorded numbers and actions must lead to the recorded observations. */
  function trace() {
    let at = world.reset(page.trace.numbers[0]);
    let right = 0;
    page.trace.actions.forEach((actions, i) => {
      const want = Array.from(page.trace.observations[i], Number);
      const got = world.observe(at).flatMap((seen) => Array.from(seen));
      right += got.length === want.length && got.every((value, j) => Math.abs(value - want[j]) < 1e-3);
      at = world.step(at, actions, page.trace.numbers[i + 1]).state;
    });
    const count = page.trace.actions.length;
    return { ok: right === count, text: `environment: ${right} of ${count} steps as in training` };
  }

  return {
    title: world.title,
    pace: world.pace,
    height: world.height,
    checks: { environment: trace },
    compute({ observation }) {
      const size = observation.length / page.agents;
      const all = [];
      for (let agent = 0; agent < page.agents; agent++) {
        all.push(...scores(observation.subarray(agent * size, (agent + 1) * size), agent));
      }
      return { logits: all };
    },
    start() {
      state = world.reset(numbers());
      [steps, returns, finished] = [0, Array(page.agents).fill(0), []];
    },
    step() {
      const actions = world.observe(state).map((seen, agent) => largest(scores(seen, agent)));
      const outcome = world.step(state, actions, numbers());
      state = outcome.state;
      steps += 1;
      outcome.reward.forEach((reward, agent) => {
        returns[agent] += reward;
        if (!outcome.ended[agent]) return;
        finished.push(returns[agent]);
        returns[agent] = 0;
      });
    },
    draw: (context, width, height, ink) => world.draw(context, width, height, ink, state),
    status() {
      const mean = finished.reduce((sum, value) => sum + value, 0) / finished.length;
      const past = finished.length ? `; ${finished.length} episodes ended, mean return ${mean.toFixed(1)}` : "";
      return `step ${steps}, ${world.status(state, returns)}${past}`;
    },
  };
});
