"""An environment of your own: a hand with two motors reaches a ball.

`torchyard run examples/own-environment.yaml` trains a policy. Any class derived from gymnasium.Env works: take random
numbers from `self.np_random`, and keep nothing over a reset.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Reach(gymnasium.Env):
    """The hand and the ball are points of a square; the hand moves by at most a tenth in each direction."""

    observation_space = Box(-1, 1, (4,))
    action_space = Box(-0.1, 0.1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Place both at random."""
        super().reset(seed=seed, options=options)
        self.hand, self.ball = self.np_random.uniform(-1, 1, (2, 2))
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move the hand; each step costs the distance that is left."""
        self.hand = np.clip(self.hand + action, -1, 1)
        distance = float(np.linalg.norm(self.hand - self.ball))
        return self._seen(), -distance, distance < 0.1, False, {}

    def _seen(self) -> np.ndarray:
        return np.concatenate([self.hand, self.ball]).astype(np.float32)
