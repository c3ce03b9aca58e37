"""Speed of the environments, alone and under a policy: mode `bench` reports both beside the training speed."""

import time
from collections.abc import Callable

import torch

from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.distributions import distribution_of
from torchyard_trainers.rl.rollout import draw_noise, sample_ids_of
from torchyard_trainers.vecrl.collector import Collector
from torchyard_trainers.vecrl.params import Settings

WARM_UP_RUNS = 2
MEASURED_SECONDS = 2.0


@torch.no_grad()
def speeds(collector: Collector, session: Session, settings: Settings) -> dict[str, float]:
    """Measure the steps per second of this rank's environments; the agents of one environment step together.

    `environmentOnlyStepsPerSecond`: random actions, no observations. `rolloutStepsPerSecond`: the policy observes and
    acts, and the trajectory is evaluated.
    """
    environment, device = collector.environment(session), session.world.device
    own = range(session.world.rank, settings.environments, session.world.size)
    ids = torch.tensor(own, dtype=torch.int64, device=device)  # empty if there are more ranks than environments
    noise = draw_noise(settings, environment, sample_ids_of(settings, ids, 0))
    distribution = distribution_of(environment)
    actions = distribution.sample(torch.zeros(distribution.parameters, device=device), noise.actions)
    state = environment.reset(noise.uniform[0])

    def walk() -> None:
        nonlocal state
        for action, numbers in zip(actions, noise.uniform, strict=True):
            state = environment.step(state, action, numbers).state

    steps = len(ids) * settings.horizon
    return {
        "environmentOnlyStepsPerSecond": steps / _seconds(walk, device),
        "rolloutStepsPerSecond": steps / _seconds(lambda: collector.play(session, 0), device),
    }


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """Return the mean seconds of a call, over a few seconds after a warm-up."""

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
