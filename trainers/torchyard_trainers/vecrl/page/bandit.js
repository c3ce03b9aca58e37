"use strict";
/* A row of arms, one of which pays and shows it: see vecrl/bandit.py. */
globalThis.WORLDS = globalThis.WORLDS || {};
WORLDS.bandit = ({ arms }) => {
  const reset = (numbers) => ({ paying: Math.floor(Math.fround(numbers[0] * arms)), pulled: null });
  return {
    title: `Bandit: one of ${arms} arms pays`,
    pace: 2,
    height: 0.3,
    reset,
    observe: ({ paying }) => [Array.from({ length: arms }, (_, arm) => Number(arm === paying))],
    step({ paying }, [action], numbers) {
      return { state: { ...reset(numbers), pulled: action }, reward: [Number(action === paying)], ended: [true] };
    },
    status: ({ paying }) => `arm ${paying + 1} pays`,
    draw(context, width, height, ink, { paying, pulled }) {
      for (let arm = 0; arm < arms; arm++) {
        context.fillStyle = arm === paying ? "#3d9a63" : ink;
        context.globalAlpha = arm === paying ? 1 : 0.2;
        const side = width / arms;
        context.fillRect((arm + 0.2) * side, height * 0.2, side * 0.6, height * 0.5);
        context.globalAlpha = arm === pulled ? 1 : 0;
        context.fillRect((arm + 0.2) * side, height * 0.8, side * 0.6, 4);
      }
      context.globalAlpha = 1;
    },
  };
};
