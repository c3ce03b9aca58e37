"""Baselines of REINFORCE: what the length of a route is compared with.

`shared` and `rollout` give every instance its own; `ema` is one number; `critic` is learned by the policy's network.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchyard_trainers.core.device import can_sync
from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp.evaluation import tour_lengths
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.policy import Policy, Routes

ALPHA = 0.05
DECAY = 0.8  # as Kool 2019


class Baseline(Protocol):
    """Compares routes; what it remembers is part of a checkpoint."""

    def begin(self, session: Session) -> None:
        """Act once before the first step of a run."""

    def __call__(self, instances: Instances, routes: Routes) -> Tensor:
        """Return what the routes [B, S] are compared with: [B, 1], without gradient."""

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Act after `step` finished steps; give metrics.

        `means` are those of the last one: `trainCost` of the routes' lengths, `advantage` of what they have above the
        baseline.
        """

    def state(self) -> dict[str, Any]:
        """Return the tensors a checkpoint must hold; a restore fills them in place."""


class Shared:
    """The mean over an instance's own samples (POMO, Kwon 2020)."""

    def begin(self, session: Session) -> None:
        """See `Baseline`."""

    def __call__(self, _instances: Instances, routes: Routes) -> Tensor:
        """See `Baseline`."""
        return routes.cost.mean(1, keepdim=True)

    def after_step(self, _session: Session, _step: int, _means: Mapping[str, float]) -> dict[str, float]:
        """See `Baseline`."""
        return {}

    def state(self) -> dict[str, Any]:
        """See `Baseline`."""
        return {}


class Critic(Shared):
    """The length that the policy's own critic expects of an instance; trained beside the policy."""

    def __call__(self, _instances: Instances, routes: Routes) -> Tensor:
        """See `Baseline`."""
        assert routes.expected is not None
        return routes.expected.detach()


class MovingAverage:
    """An exponential moving average of the batches' mean length."""

    def __init__(self, settings: Settings) -> None:
        """Know nothing yet."""
        self._settings = settings
        self._mean = torch.zeros((), dtype=torch.float64)

    def begin(self, session: Session) -> None:
        """Start from the untrained policy's greedy routes."""
        count = self._settings.baseline_instances
        self._mean.copy_(tour_lengths(session, session.parallel.module, self._settings, "baseline", count).mean())

    def __call__(self, _instances: Instances, routes: Routes) -> Tensor:
        """See `Baseline`."""
        return torch.zeros_like(routes.cost[:, :1]) + self._mean

    def after_step(self, _session: Session, _step: int, means: Mapping[str, float]) -> dict[str, float]:
        """See `Baseline`."""
        self._mean.add_((1 - DECAY) * means["advantage"])  # b + (1 - decay) (c - b) = decay b + (1 - decay) c
        return {"baselineCost": float(self._mean)}

    def state(self) -> dict[str, Any]:
        """See `Baseline`."""
        return {"mean": self._mean}


class Rollout:
    """Greedy routes of a frozen copy of the policy (Kool 2019).

    Every `baseline_every` steps the policy challenges its copy on a set of instances; if a one-sided paired t-test says
    it is better (alpha 0.05), it becomes the new copy and the set is drawn afresh, so that no policy is fitted to it.
    Costs are merged exactly, so that every rank comes to the same result. Until the first challenge the moving average
    stands in: the routes of an untrained copy say nothing of an instance.

    A sampled route is longer than a greedy one, so that nearly all samples would count as bad, each by nearly as much.
    The moving average of that surplus is part of the baseline: it changes no expectation, and takes out its noise.
    """

    def __init__(self, settings: Settings, policy: Policy) -> None:
        """Freeze a copy of a policy that is not yet sharded.

        Raises:
            ConfigError: compilation is asked for and there is no compiler.
        """
        self._settings = settings
        self._warm_up = MovingAverage(settings)
        self._frozen = frozen(policy)
        if settings.compile:  # the training loop knows of the policy alone
            compile_blocks(list(self._frozen.encoder.blocks))
        self._costs = torch.zeros(settings.baseline_instances, dtype=torch.float64)
        self._renewals = torch.zeros((), dtype=torch.int64)
        self._surplus = torch.zeros((), dtype=torch.float64)
        self._steps = torch.zeros((), dtype=torch.int64)

    def begin(self, session: Session) -> None:
        """Measure the first copy on the first set."""
        self._costs.copy_(self._measure(session, self._frozen.to(session.world.device)))
        self._warm_up.begin(session)

    @torch.no_grad()
    def __call__(self, instances: Instances, routes: Routes) -> Tensor:
        """See `Baseline`."""
        # A forecast, whose numbers cannot be read, is of what lasts.
        if can_sync(self._steps) and self._steps < self._settings.baseline_every:
            return self._warm_up(instances, routes)
        return self._frozen.to(instances.xy.device)(instances).cost + self._surplus

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Test the policy against its copy when it is time, and renew the copy if it is better."""
        self._steps.fill_(step)
        if step <= self._settings.baseline_every:
            self._warm_up.after_step(session, step, means)
        else:
            self._surplus.add_((1 - DECAY) * means["advantage"])
        if step % self._settings.baseline_every:
            return {}
        session.reporter.phase("eval")
        costs = self._measure(session, session.parallel.module)
        if significantly_shorter(costs, self._costs):
            session.parallel.copy_to(self._frozen)
            self._renewals += 1
            self._costs.copy_(self._measure(session, self._frozen))
        return {"baselineCost": float(self._costs.mean()), "baselineRenewals": float(self._renewals)}

    def state(self) -> dict[str, Any]:
        """See `Baseline`."""
        return {
            "frozen": self._frozen.state_dict(),
            "costs": self._costs,
            "renewals": self._renewals,
            "surplus": self._surplus,
            "steps": self._steps,
            "warmUp": self._warm_up.state(),
        }

    def _measure(self, session: Session, policy: nn.Module) -> Tensor:
        # A forecast does not know how many there were, and any set takes as much.
        renewals = int(self._renewals) if can_sync(self._renewals) else 0
        stream = f"t-test/{renewals}"
        return tour_lengths(session, policy, self._settings, stream, self._settings.baseline_instances)


def build_baseline(settings: Settings, policy: Policy) -> Baseline:
    """Make the baseline of the settings for a policy that is not yet sharded."""
    if settings.baseline == "rollout":
        return Rollout(settings, policy)
    if settings.baseline == "ema":
        return MovingAverage(settings)
    return Critic() if settings.baseline == "critic" else Shared()


def significantly_shorter(candidate: Tensor, current: Tensor) -> bool:
    """One-sided paired t-test at level `ALPHA`: whether `candidate` [M] is shorter than `current` [M] on average."""
    assert candidate.shape == current.shape
    difference = (candidate - current).double()
    count = len(difference)
    mean, deviation = float(difference.mean()), float(difference.std(correction=1))
    if mean >= 0:
        return False
    return deviation == 0 or mean / (deviation / math.sqrt(count)) < t_quantile(ALPHA, count - 1)


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion around the normal (Abramowitz and Stegun 26.7.5).

    Within 1e-5 from 30 degrees of freedom on, at the levels tests use.
    """
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
