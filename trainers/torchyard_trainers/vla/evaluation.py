"""Evaluation of a policy: the loss of held-out demonstrations, and episodes in a closed loop."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchyard_trainers.core.device import only_memory
from torchyard_trainers.core.evaluation import over_ranks, wilson
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.workload import Session
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.demonstrations import Tabletop, keys_of
from torchyard_trainers.vla.heads.objective import Objective
from torchyard_trainers.vla.observation import Demonstration
from torchyard_trainers.vla.robot import Episode, Robot
from torchyard_trainers.vla.settings import Settings

FIRST_SEED = 1000
"""Of the first episode in an environment of gymnasium, as LeRobot's evaluation has it; the others follow."""


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


def play_robot(session: Session, settings: Settings, objective: Objective, robot: Robot) -> dict[str, float]:
    """Return success rate and rewards over whole episodes in an environment of gymnasium. Collective."""

    def measure(positions: list[int]) -> Tensor:
        episodes = play_episodes(session, settings, objective, robot, positions)
        return torch.tensor([each.end() for each in episodes], dtype=torch.float64)

    ends = over_ranks(session, measure, settings.eval_episodes, at_once=settings.eval_batch)
    low, high = wilson(float(ends[:, 0].sum()), len(ends))
    return {
        "successRate": float(ends[:, 0].mean()),
        "successRateLow": low,
        "successRateHigh": high,
        "episodeReturn": float(ends[:, 1].mean()),
        "maxReward": float(ends[:, 2].mean()),
        "episodes": float(len(ends)),
    }


@torch.no_grad()
def play_episodes(
    session: Session, settings: Settings, objective: Objective, robot: Robot, positions: list[int]
) -> list[Episode]:
    """Play the episodes at positions, whose seeds follow from nothing else; the model looks every `execute` steps.

    All ranks look equally often, as a sharded model requires: until the last episode of any of them is over.
    """
    device, source = session.world.device, robot.source
    environments = [robot.make() for _ in positions]
    episodes = [
        Episode(robot, env, FIRST_SEED + position) for env, position in zip(environments, positions, strict=True)
    ]
    tokens, mask = (
        each.to(device) if each is not None else None for each in source.instruct(robot.task, len(positions))
    )
    ids = torch.tensor(positions, device=device)
    keys = split_keys(keys_of(settings, ids, "noise", held_out=True), robot.limit)
    for first in range(0, robot.limit, settings.execute):
        images, states = (np.stack(each) for each in zip(*(episode.view() for episode in episodes), strict=True))
        state = torch.from_numpy(states).to(device)
        seen = source.observation(torch.from_numpy(images).to(device), state, tokens, mask)
        chunk = objective.act(session.parallel.module, seen, keys[:, first])
        if only_memory():
            if first:
                break  # it has looked beside what its first look left
            continue
        commands = source.commands(chunk, state).float().cpu().numpy()
        for number in range(settings.execute):
            for episode, actions in zip(episodes, commands, strict=True):
                episode.step(actions[number])
        session.reporter.goes_on()
        if all(session.world.gather(all(each.over for each in episodes))):
            break
    for each in environments:
        each.close()
    return episodes
