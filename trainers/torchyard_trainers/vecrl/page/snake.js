"use strict";
/* Snakes on a torus, rule by rule as in vecrl/snake.py: a cell of a body says for how many more steps it is occupied. */
globalThis.WORLDS = globalThis.WORLDS || {};
WORLDS.snake = ({ grid, agents, food: meals, view }) => {
  const [CELLS, START_LENGTH] = [grid * grid, 3];
  const STEPS = [[-1, 0], [0, 1], [1, 0], [0, -1]]; // up, right, down, left
  const COLOURS = ["#2f6db5", "#d97a34", "#3d9a63", "#9a4f96", "#b8a02c", "#4aa5a5", "#b3504b", "#7a7f8c"];
  const wrap = (value) => ((value % grid) + grid) % grid;

  /* The cell `ahead` and `right` of another, seen along a heading. */
  function beside(cell, heading, ahead, right) {
    const [forward, sideward] = [STEPS[heading], STEPS[(heading + 1) % 4]];
    const row = Math.floor(cell / grid) + ahead * forward[0] + right * sideward[0];
    const column = (cell % grid) + ahead * forward[1] + right * sideward[1];
    return wrap(row) * grid + wrap(column);
  }

  const occupied = (snakes, cell) => snakes.some((snake) => snake.body[cell] > 0);

  /* Put dead snakes and missing food on free cells: see Snake._spawn. Products are rounded as in float32. */
  function spawn(snakes, food, dead, numbers) {
    const places = numbers.slice(0, agents + meals);
    const headings = numbers.slice(agents + meals, 2 * agents + meals);
    const turn = numbers[2 * agents + meals];
    const free = [];
    for (let cell = 0; cell < CELLS; cell++) if (!occupied(snakes, cell) && !food.includes(cell)) free.push(cell);
    const wanted = [...dead, ...food.map((cell) => cell === CELLS)];
    const needed = Math.max(1, wanted.filter(Boolean).length);
    const roomy = free.length >= needed;
    let order = 0;
    const found = wanted.map((want, i) => {
      if (!want) return null;
      let part = order++;
      if (roomy) part = (part + Math.floor(Math.fround(turn * needed))) % needed;
      const first = roomy ? Math.floor((part * free.length) / needed) : part;
      const width = roomy ? Math.floor(((part + 1) * free.length) / needed) - first : 1;
      const cell = free[first + Math.floor(Math.fround(places[i] * width))];
      return cell === undefined ? CELLS : cell;
    });
    snakes.forEach((snake, agent) => {
      if (!dead[agent]) return;
      snake.head = found[agent];
      snake.body.fill(0);
      snake.body[snake.head] = snake.length = START_LENGTH;
      snake.heading = Math.floor(headings[agent] * 4);
    });
    return { snakes, food: food.map((cell, i) => found[agents + i] ?? cell) };
  }

  function reset(numbers) {
    const snakes = Array.from({ length: agents }, () => ({ head: 0, heading: 0, length: 0, body: new Int16Array(CELLS) }));
    return spawn(snakes, Array(meals).fill(CELLS), Array(agents).fill(true), numbers);
  }

  /* Signs of how far ahead and to the right the nearest food is, plus one. */
  function scent({ head, heading }, food) {
    const half = Math.floor(grid / 2);
    const apart = (from, to) => wrap(to - from + half) - half;
    let [nearest, least] = [[0, 0], Infinity];
    for (const cell of food) {
      const offset = [apart(Math.floor(head / grid), Math.floor(cell / grid)), apart(head % grid, cell % grid)];
      const distance = cell === CELLS ? 2 * grid : Math.abs(offset[0]) + Math.abs(offset[1]);
      if (distance < least) [nearest, least] = [offset, distance];
    }
    return [STEPS[heading], STEPS[(heading + 1) % 4]].map(([row, column]) => 1 + Math.sign(nearest[0] * row + nearest[1] * column));
  }

  function observe({ snakes, food }) {
    const middle = Math.floor(view / 2);
    const size = view * view;
    return snakes.map((snake) => {
      const seen = new Uint8Array(4 * size + 2);
      for (let at = 0; at < size; at++) {
        const cell = beside(snake.head, snake.heading, middle - Math.floor(at / view), (at % view) - middle);
        if (snake.body[cell] > 0) {
          seen[at] = 1;
          continue;
        }
        seen[size + at] = Number(occupied(snakes, cell));
        seen[2 * size + at] = Number(snakes.some((other) => other.head === cell));
        seen[3 * size + at] = Number(food.includes(cell));
      }
      seen.set(scent(snake, food), 4 * size);
      return seen;
    });
  }

  function step(state, actions, numbers) {
    const snakes = state.snakes.map(({ head, heading, length, body }, agent) => {
      const turned = (heading + actions[agent] + 3) % 4;
      const moved = beside(head, turned, 1, 0);
      const grows = state.food.includes(moved);
      return { head: moved, heading: turned, length, grows, body: body.map((timer) => (grows || !timer ? timer : timer - 1)) };
    });
    const dead = snakes.map(
      ({ head }, agent) => occupied(snakes, head) || snakes.some((other, i) => i !== agent && other.head === head),
    );
    const eats = snakes.map(({ grows }, agent) => grows && !dead[agent]);
    const food = state.food.map((cell) => (snakes.some(({ head }, agent) => eats[agent] && head === cell) ? CELLS : cell));
    snakes.forEach((snake, agent) => {
      if (dead[agent]) snake.body.fill(0);
      else snake.body[snake.head] = snake.length += Number(eats[agent]);
    });
    const reward = dead.map((died, agent) => Number(eats[agent]) - Number(died));
    return { state: spawn(snakes, food, dead, numbers), reward, ended: dead };
  }

  function draw(context, width, _height, ink, { snakes, food }) {
    const side = width / grid;
    const block = (cell, inset, colour) => {
      context.fillStyle = colour;
      const [x, y] = [(cell % grid) * side, Math.floor(cell / grid) * side];
      context.beginPath();
      context.roundRect(x + inset * side, y + inset * side, side * (1 - 2 * inset), side * (1 - 2 * inset), side * 0.2);
      context.fill();
    };
    context.globalAlpha = 0.05;
    for (let cell = 0; cell < CELLS; cell++) block(cell, 0.04, ink);
    context.globalAlpha = 1;
    for (const cell of food) if (cell !== CELLS) block(cell, 0.33, "#c9372c");
    snakes.forEach((snake, agent) => {
      const colour = COLOURS[agent % COLOURS.length];
      snake.body.forEach((timer, cell) => {
        if (!timer) return;
        context.globalAlpha = cell === snake.head ? 1 : 0.45 + (0.4 * timer) / snake.length;
        block(cell, 0.06, colour);
      });
      context.globalAlpha = 1;
      block(snake.head, 0.36, "#ffffff");
    });
  }

  return {
    title: `Snake: ${agents} snakes on a torus of ${grid} x ${grid}`,
    pace: 8,
    reset,
    observe,
    step,
    draw,
    status: ({ snakes }) => `lengths ${snakes.map(({ length }) => length).join(", ")}`,
  };
};
