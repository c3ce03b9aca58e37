"""Pictures of evaluation episodes, as the camera of the environment shows them."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.environment import State, select
from torchyard_trainers.rl.evaluation import evaluation_draws
from torchyard_trainers.rl.film import EPISODES, SIDE, write_film
from torchyard_trainers.rl.rollout import Policy
from torchyard_trainers.vlm.environments import Instructed
from torchyard_trainers.vlm.params import Settings


@torch.no_grad()
def write(session: Session, settings: Settings, environment: Instructed, policy: Policy, folder: Path) -> list[Path]:
    """Play the first episodes of the evaluation again and draw them; return the files. Collective."""
    count = min(EPISODES, settings.eval_episodes)
    ids = torch.arange(count, device=session.world.device)
    session.parallel.module.eval()
    state = environment.reset(evaluation_draws(ids, 0, 1, environment.draws)[0])
    over = succeeded = torch.zeros(count, dtype=torch.bool, device=ids.device)
    moments, actions = [_draw(environment, state, settings)], []
    for numbers in evaluation_draws(ids, 1, environment.limit, environment.draws):
        with session.precision.casting():
            action = policy.logits(environment.observe(state)).argmax(-1)
        outcome = environment.step(state, action, numbers)
        final = outcome.final if outcome.final is not None else outcome.state
        shown = select(over, state, final)
        actions.append(torch.where(over, -1, action[:, 0]))
        succeeded = succeeded | (outcome.terminated[:, 0] & ~over)
        over = over | outcome.terminated[:, 0] | outcome.truncated[:, 0]
        # What is over stays as it is.
        state = select(over, shown, outcome.state)
        moments.append(_draw(environment, shown, settings))
    session.parallel.module.train()
    if not session.world.is_main:
        return []
    titles = [f"{environment.instruction}: {'success' if each else 'failure'}" for each in succeeded.tolist()]
    last = max(len(moments) - 1 - _idle(actions), 1)
    names = [
        [environment.action_names[number] for number in row if number >= 0] for row in torch.stack(actions, 1).tolist()
    ]
    return write_film(folder, moments[: last + 1], titles, {"actions": names})


def _idle(actions: list[Tensor]) -> int:
    """Return for how many steps at the end no episode goes on."""
    return sum(bool((torch.stack(actions[step:]) < 0).all()) for step in range(len(actions)))


def _draw(environment: Instructed, state: State, settings: Settings) -> Tensor:
    """Return what the camera sees, [n, 3, SIDE, SIDE]; an environment that can draws it in that size."""
    if hasattr(environment, "render"):
        images: Tensor = environment.render(state, SIDE)
        return images
    seen = environment.observe(state).reshape(-1, 3, settings.image_size, settings.image_size)
    return F.interpolate(seen, size=SIDE)
