"""Evaluation of a policy: the flow loss of held-out demonstrations, and episodes in a closed loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.workload import Session
from torchyard_trainers.vla import flow, tabletop
from torchyard_trainers.vla.demonstrations import Tabletop, keys_of
from torchyard_trainers.vla.observation import Demonstration
from torchyard_trainers.vla.params import Settings


def flow_loss(session: Session, settings: Settings, show: Callable[[list[int]], Demonstration], count: int) -> float:
    """Return the mean flow loss of a valid action step of the held-out demonstrations. Collective.

    Args:
        session: its model is evaluated.
        settings: of the run.
        show: returns the demonstrations at positions below `count`.
        count: demonstrations.
    """
    model, device = session.parallel.module, session.world.device

    def measure(positions: list[int]) -> Tensor:
        shown, ids = show(positions), torch.tensor(positions, device=device)
        draws = flow.draw(keys_of(settings, ids, "flow", held_out=True), settings.chunk, model.action_size)
        size = shown.actions.shape[-1]
        padded = nn.functional.pad(shown.actions, (0, model.action_size - size))
        velocity = model(shown.observation, flow.noisy(padded, draws), draws.time)
        losses = flow.flow_loss(velocity[..., :size], shown.actions, draws.noise[..., :size])
        return torch.stack([(losses * shown.valid).sum(1), shown.valid.sum(1).float()], 1)

    sums = over_ranks(session, measure, count, at_once=settings.eval_batch).sum(0)
    return float(sums[0] / sums[1])


def closed_loop(session: Session, settings: Settings, table: Tabletop) -> dict[str, float]:
    """Return the rates of success and of wrong objects over whole episodes, in all and by instruction. Collective."""
    device = session.world.device

    def measure(positions: list[int]) -> Tensor:
        ids = torch.tensor(positions, device=device)
        scene = table.scenes(ids, "episodes", held_out=True)
        path = play(session, settings, table, ids, scene)
        outcome = tabletop.judge(scene, path[:, -1])
        return torch.stack([outcome.success, outcome.wrong_object, scene.colour], 1).double()

    found = over_ranks(session, measure, settings.eval_episodes, at_once=settings.eval_batch)
    metrics = {
        "successRate": float(found[:, 0].mean()),
        "wrongObjectRate": float(found[:, 1].mean()),
        "episodes": float(len(found)),
    }
    for number, colour in enumerate(tabletop.COLOURS):
        own = found[found[:, 2] == number]
        if len(own):
            metrics[f"successRate{colour.capitalize()}"] = float(own[:, 0].mean())
    return metrics


@torch.no_grad()
def play(session: Session, settings: Settings, table: Tabletop, ids: Tensor, scene: tabletop.Scene) -> Tensor:
    """Play the episodes of ids [m] in their scenes; return the path of the gripper, [m, STEPS + 1, 2].

    The model looks every `execute` steps.
    """
    gripper = scene.start
    path = [gripper]
    keys = split_keys(keys_of(settings, ids, "noise", held_out=True), tabletop.STEPS)
    for first in range(0, tabletop.STEPS, settings.execute):
        noise = _noise(session, settings, keys[:, first])
        chunk = session.parallel.module(
            table.observe(scene, gripper), noise, steps=settings.flow_steps, size=tabletop.ACTION_SIZE
        )
        actions = table.action_scaling.restore(chunk)
        for number in range(min(settings.execute, tabletop.STEPS - first)):
            gripper = tabletop.step(gripper, actions[:, number])
            path.append(gripper)
    return torch.stack(path, 1)


def _noise(session: Session, settings: Settings, keys: Tensor) -> Tensor:
    size = session.parallel.module.action_size
    return flow.draw(keys, settings.chunk, size).noise
