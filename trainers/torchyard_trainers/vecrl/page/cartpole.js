"use strict";
/* CartPole-v1, equation by equation as in vecrl/cartpole.py. */
globalThis.WORLDS = globalThis.WORLDS || {};
WORLDS.cartpole = () => {
  const [MOST_POSITION, MOST_ANGLE, LIMIT] = [2.4, (12 * 2 * Math.PI) / 360, 500];
  const reset = (numbers) => ({ physics: numbers.slice(0, 4).map((number) => (number - 0.5) * 0.1), steps: 0 });

  function advance([position, speed, angle, spin], action) {
    const force = action === 1 ? 10 : -10;
    const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
    const push = (force + 0.05 * spin * spin * sine) / 1.1;
    const spinRate = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - (0.1 / 1.1) * cosine * cosine));
    const speedRate = push - (0.05 / 1.1) * spinRate * cosine;
    return [position + 0.02 * speed, speed + 0.02 * speedRate, angle + 0.02 * spin, spin + 0.02 * spinRate];
  }

  return {
    title: "CartPole: a policy balances a pole",
    pace: 50,
    height: 0.5,
    reset,
    observe: (state) => [state.physics],
    step(state, [action], numbers) {
      const physics = advance(state.physics, action);
      const steps = state.steps + 1;
      const over = Math.abs(physics[0]) > MOST_POSITION || Math.abs(physics[2]) > MOST_ANGLE || steps >= LIMIT;
      return { state: over ? reset(numbers) : { physics, steps }, reward: [1], ended: [over] };
    },
    status: (state) => `balanced for ${state.steps} of ${LIMIT} steps`,
    draw(context, width, height, ink, state) {
      const [position, , angle] = state.physics;
      const [meter, floor] = [width / (2 * MOST_POSITION + 0.8), height * 0.78];
      const x = width / 2 + position * meter;
      context.strokeStyle = context.fillStyle = ink;
      context.globalAlpha = 0.35;
      context.fillRect(width / 2 - MOST_POSITION * meter, floor, 2 * MOST_POSITION * meter, 2);
      context.globalAlpha = 1;
      context.fillRect(x - 0.28 * meter, floor - 0.3 * meter, 0.56 * meter, 0.3 * meter);
      context.strokeStyle = "#d97a34";
      context.lineCap = "round";
      context.lineWidth = 0.1 * meter;
      context.beginPath();
      context.moveTo(x, floor - 0.3 * meter);
      context.lineTo(x + 1.5 * meter * Math.sin(angle), floor - 0.3 * meter - 1.5 * meter * Math.cos(angle));
      context.stroke();
    },
  };
};
