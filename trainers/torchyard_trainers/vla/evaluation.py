"""Evaluation of a policy: the loss of held-out demonstrations, and episodes in a closed loop."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchyard_trainers.core.device import only_memory
from torchyard_trainers.core.evaluation import over_ranks, wilson
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.workload import Session
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.demonstrations import Tabletop, keys_of
from torchyard_trainers.vla.objectives import Objective
from torchyard_trainers.vla.observation import Demonstration
from torchyard_trainers.vla.params import Settings


def held_out_loss(
    session: Session,
    settings: Settings,
    objective: Objective,
    show: Callable[[list[int]], Demonstration],
    count: int,
) -> float:
    """Return the mean loss of a valid action step of the held-out demonstrations. Collective.

    Args:
        session: its model is evaluated.
        settings: of the run.
        objective: of the run.
        show: returns the demonstrations at positions below `count`.
        count: demonstrations.
    """
    model, device = session.parallel.module, session.world.device

    def measure(positions: list[int]) -> Tensor:
        shown, ids = show(positions), torch.tensor(positions, device=device)
        found = objective.losses(model, shown, keys_of(settings, ids, "flow", held_out=True)[:, None])
        return torch.stack([(found.loss * shown.valid).sum(1), shown.valid.sum(1).float()], 1)

    sums = over_ranks(session, measure, count, at_once=settings.eval_batch).sum(0)
    return float(sums[0] / sums[1])


def closed_loop(session: Session, settings: Settings, objective: Objective, table: Tabletop) -> dict[str, float]:
    """Return the rates of success and of wrong objects over whole episodes, in all and by instruction. Collective.

    `successRateLow` and `successRateHigh` are the ends of the 95 % confidence interval.
    """
    device = session.world.device

    def measure(positions: list[int]) -> Tensor:
        scene, path = play(session, settings, objective, table, torch.tensor(positions, device=device))
        outcome = tabletop.judge(scene, path[:, -1])
        return torch.stack([outcome.success, outcome.wrong_object, scene.colour], 1).double()

    found = over_ranks(session, measure, settings.eval_episodes, at_once=settings.eval_batch)
    low, high = wilson(float(found[:, 0].sum()), len(found))
    metrics = {
        "successRate": float(found[:, 0].mean()),
        "successRateLow": low,
        "successRateHigh": high,
        "wrongObjectRate": float(found[:, 1].mean()),
        "episodes": float(len(found)),
    }
    for number, colour in enumerate(tabletop.COLOURS):
        own = found[found[:, 2] == number]
        if len(own):
            metrics[f"successRate{colour.capitalize()}"] = float(own[:, 0].mean())
    return metrics


@torch.no_grad()
def play(
    session: Session, settings: Settings, objective: Objective, table: Tabletop, ids: Tensor
) -> tuple[tabletop.Scene, Tensor]:
    """Play the episodes of ids [m]; return their scenes, and the path of the gripper, [m, STEPS + 1, 2].

    The model looks every `execute` steps.
    """
    scene = table.scenes(ids, "episodes", held_out=True)
    gripper = scene.start
    path = [gripper]
    keys = split_keys(keys_of(settings, ids, "noise", held_out=True), tabletop.STEPS)
    for first in range(0, tabletop.STEPS, settings.execute):
        chunk = objective.act(session.parallel.module, table.observe(scene, gripper), keys[:, first])
        actions = table.action_scaling.restore(chunk)
        for number in range(min(settings.execute, tabletop.STEPS - first)):
            gripper = tabletop.step(gripper, actions[:, number])
            path.append(gripper)
        if only_memory() and first:  # it has looked beside what its first look left
            break
    return scene, torch.stack(path, 1)
