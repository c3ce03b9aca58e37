"""Baselines of REINFORCE: what a route is compared with, for each instance by itself."""

import copy
import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp.evaluation import greedy_costs
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.params import Settings

ALPHA = 0.05


def shared_baseline(cost: Tensor) -> Tensor:
    """Give the mean over an instance's own samples (POMO, Kwon 2020): [B, S] -> [B, 1]."""
    return cost.mean(1, keepdim=True)


class RolloutBaseline:
    """Greedy routes of a frozen copy of the policy (Kool 2019).

    Every `baseline_every` steps the policy challenges its copy on a set of instances; if a one-sided paired t-test says
    it is better (alpha 0.05), it becomes the new copy and the set is drawn afresh, so that no policy is fitted to it.
    Costs are merged exactly, so that every rank comes to the same verdict.
    """

    def __init__(self, settings: Settings, policy: nn.Module) -> None:
        """Freeze a copy of a policy that is not yet sharded."""
        self._settings = settings
        self._frozen = copy.deepcopy(policy).requires_grad_(requires_grad=False)
        self._costs = torch.zeros(settings.baseline_instances, dtype=torch.float64)
        self._renewals = torch.zeros((), dtype=torch.int64)

    def begin(self, session: Session) -> None:
        """Measure the first copy on the first set."""
        self._costs.copy_(self._measure(session, self._frozen.to(session.world.device)))

    @torch.no_grad()
    def __call__(self, instances: Instances) -> Tensor:
        """Give the cost of the frozen copy's greedy route for each instance: [B, 1]."""
        return self._frozen.to(instances.xy.device)(instances).cost

    def challenge(self, session: Session) -> dict[str, float]:
        """Test the policy against its copy and renew the copy if it is better."""
        costs = self._measure(session, session.parallel.module)
        if significantly_shorter(costs, self._costs):
            self._frozen.load_state_dict(session.parallel.full_state())
            self._renewals += 1
            self._costs.copy_(self._measure(session, self._frozen))
        return {"baselineCost": float(self._costs.mean()), "baselineRenewals": float(self._renewals)}

    def state(self) -> dict[str, Any]:
        """Give the tensors a checkpoint must hold."""
        return {"frozen": self._frozen.state_dict(), "costs": self._costs, "renewals": self._renewals}

    def _measure(self, session: Session, policy: nn.Module) -> Tensor:
        stream = f"t-test/{int(self._renewals)}"
        return greedy_costs(session, policy, self._settings, stream, self._settings.baseline_instances)


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
