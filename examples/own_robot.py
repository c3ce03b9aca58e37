"""A robot of your own: a hand above a table reaches a red disc. It is an environment of gymnasium like LeRobot's.

Observations have `pixels` (uint8) and `agent_pos`, and the info of a step says whether the task is done (`is_success`).
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

SIDE, SPEED, NEAR = 42, 0.15, 0.2  # pixels; distances on the table [-1, 1]^2


class Reach(gymnasium.Env):
    def __init__(self):
        pixels = Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = Dict({"pixels": pixels, "agent_pos": Box(-1, 1, (2,), np.float32)})
        self.action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.hand, self.goal = self.np_random.uniform(-0.9, 0.9, (2, 2))
        return self.observation(), {}

    def step(self, action):
        self.hand = np.clip(self.hand + SPEED * np.clip(action, -1, 1), -1, 1)
        done = bool(np.linalg.norm(self.goal - self.hand) < NEAR)
        return self.observation(), float(done), done, False, {"is_success": done}

    def observation(self):
        x, y = np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 2)
        pixels = np.full((SIDE, SIDE, 3), 240, np.uint8)
        for (left, top), colour in ((self.goal, (220, 30, 30)), (self.hand, (30, 30, 30))):
            pixels[(x - left) ** 2 + (y - top) ** 2 < 0.03] = colour
        return {"pixels": pixels, "agent_pos": self.hand.astype(np.float32)}

    def expert(self):
        return np.clip((self.goal - self.hand) / SPEED, -1, 1).astype(np.float32)
