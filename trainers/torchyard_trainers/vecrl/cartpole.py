"""CartPole-v1 as gymnasium defines it (Barto, Sutton, Anderson 1983): Euler steps of 0.02 s, cut off after 500."""

import math

import torch
from torch import Tensor

from torchyard_trainers.rl.environment import Outcome, State

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5  # of the pole
FORCE = 10.0
SECONDS = 0.02
MOST_ANGLE = 12 * 2 * math.pi / 360
MOST_POSITION = 2.4
LIMIT = 500


class CartPole:
    """One agent pushes a cart left (0) or right (1); reward 1 a step until the pole falls or the cart leaves."""

    agents = 1
    actions = 2
    observed = 4
    planes = None
    draws = 4
    limit = LIMIT
    measure = "evalReturn"

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`: position, speed, angle and angular speed uniform in (-0.05, 0.05)."""
        return {"physics": (numbers - 0.5) * 0.1, "steps": torch.zeros_like(numbers[:, 0], dtype=torch.int32)}

    def observe(self, state: State) -> Tensor:
        """See `Environment`."""
        return state["physics"].unsqueeze(1)

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """See `Environment`."""
        moved = advance(state["physics"], actions[:, 0])
        steps = state["steps"] + 1
        terminated = (moved[:, 0].abs() > MOST_POSITION) | (moved[:, 2].abs() > MOST_ANGLE)
        truncated = ~terminated & (steps >= LIMIT)
        ended = terminated | truncated
        fresh = (numbers - 0.5) * 0.1
        following = {"physics": torch.where(ended[:, None], fresh, moved), "steps": torch.where(ended, 0, steps)}
        reward = torch.ones_like(moved[:, :1])
        final = {"physics": moved, "steps": steps}
        return Outcome(following, reward, terminated[:, None], truncated[:, None], final)

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """See `Environment`: the return is the measure."""
        del terminated
        return episode_return


def advance(physics: Tensor, action: Tensor) -> Tensor:
    """Move carts [N, 4] by one step; `action` [N] is 0 (left) or 1 (right)."""
    position, speed, angle, spin = physics.unbind(-1)
    force = torch.where(action == 1, FORCE, -FORCE)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    push = (force + POLE_MASS * HALF_LENGTH * spin.square() * sine) / TOTAL_MASS
    spin_rate = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS / TOTAL_MASS * cosine.square())
    )
    speed_rate = push - POLE_MASS * HALF_LENGTH / TOTAL_MASS * spin_rate * cosine
    return torch.stack(
        [position + SECONDS * speed, speed + SECONDS * speed_rate, angle + SECONDS * spin, spin + SECONDS * spin_rate],
        -1,
    )
