"""How fast environments run, by themselves and under a policy: mode `bench` tells both beside training."""

import time
from collections.abc import Callable

import torch

from torchyard_trainers.core.workload import Session
from torchyard_trainers.vecrl.collector import Collector
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.rollout import luck, moments_of

WARM_UP_RUNS = 2
MEASURED_SECONDS = 2.0


@torch.no_grad()
def speeds(collector: Collector, session: Session, settings: Settings) -> dict[str, float]:
    """Measure steps of all environments of this rank a second; agents of one environment step together.

    `environmentOnlyStepsPerSecond`: random actions, nobody looks. `rolloutStepsPerSecond`: the policy looks and acts,
    and what happened is valued.
    """
    environment, device = collector.environment(session), session.world.device
    own = range(session.world.rank, settings.environments, session.world.size)
    ids = torch.tensor(own, dtype=torch.int64, device=device)  # none where there are more ranks than environments
    chance = luck(settings, environment, moments_of(settings, ids, 0))
    actions = chance.noise.argmax(-1)
    state = environment.reset(chance.numbers[0])

    def walk() -> None:
        nonlocal state
        for action, numbers in zip(actions, chance.numbers, strict=True):
            state = environment.step(state, action, numbers).state

    steps = len(ids) * settings.horizon
    return {
        "environmentOnlyStepsPerSecond": steps / _seconds(walk, device),
        "rolloutStepsPerSecond": steps / _seconds(lambda: collector.play(session, 0), device),
    }


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """Give the mean time of a run, over a few seconds after a warm-up."""

    def finished() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for _ in range(WARM_UP_RUNS):
        act()
    began, runs = finished(), 0
    while finished() - began < MEASURED_SECONDS:
        act()
        runs += 1
    return (finished() - began) / runs
