"""REINFORCE on CVRP as a workload of the training loop."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.core.workload import MicroBatch, Session, Terms
from torchyard_trainers.cvrp.baseline import RolloutBaseline, shared_baseline
from torchyard_trainers.cvrp.evaluation import EVALUATION, greedy_costs, make, nearest_cost
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.policy import Policy


class Cvrp:
    """The workload `cvrp`."""

    max_grad_norm = 1.0

    def __init__(self, settings: Settings) -> None:
        """Take settled parameters."""
        self.settings = settings
        self.total_steps = settings.steps
        self.global_batch = settings.batch
        self.log_every = settings.log_every
        rollout = settings.baseline == "rollout"
        self.identity: Mapping[str, str | int | float] = {
            **({"trainer.params.baselineInstances": settings.baseline_instances} if rollout else {}),
            "trainer.name": "cvrp",
            "trainer.params.seed": settings.seed,
            "trainer.params.model": settings.model,
            "trainer.params.heads": settings.heads,
            "trainer.params.baseline": settings.baseline,
            "trainer.params.customers": settings.customers,
            "trainer.params.capacity": settings.capacity,
            "trainer.params.distribution": settings.distribution,
            "trainer.params.samples": settings.samples,
            "global batch (trainer.params.batch)": settings.batch,
        }
        self._baseline: RolloutBaseline | None = None
        self._nearest: float | None = None

    def build(self) -> nn.Module:
        """See `Workload`."""
        torch.manual_seed(stream_key(self.settings.seed, "weights") % 2**63)
        settings = self.settings
        policy = Policy(settings.model, settings.embedding, settings.heads, settings.layers)
        if settings.baseline == "rollout":
            self._baseline = RolloutBaseline(settings, policy)
        return policy

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """See `Workload`."""
        assert isinstance(model, Policy)
        return list(model.encoder.blocks)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """See `Workload`."""
        return AdamW(parameters, lr=self.settings.lr, weight_decay=1e-6, fused=True)

    def learning_rate(self, step: int) -> float:
        """Cosine from `lr` to `lr_final`."""
        settings = self.settings
        share = min(step / max(settings.steps - 1, 1), 1.0)
        return settings.lr_final + (settings.lr - settings.lr_final) * 0.5 * (1 + math.cos(math.pi * share))

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the untrained policy and, for baseline rollout, its first copy."""
        if self._baseline is not None:
            self._baseline.begin(session)
        metrics = self.evaluate(session)
        return {**metrics, "costUntrained": metrics["cost"]}

    def loss(self, session: Session, batch: MicroBatch) -> Terms:
        """REINFORCE: (cost - baseline) times log-likelihood, mean over an instance's samples, summed over instances."""
        settings = self.settings
        instances = make(settings, "train", batch.ids)
        keys = split_keys(sample_keys(stream_key(settings.seed, "routes"), batch.ids), settings.samples)
        cost, log_likelihood, _ = session.parallel.forward(instances, keys)
        baseline = shared_baseline(cost) if self._baseline is None else self._baseline(instances)
        advantage = (cost - baseline).detach()
        assert advantage.shape == log_likelihood.shape == keys.shape
        per_instance = (advantage * log_likelihood).mean(1)
        assert per_instance.shape == batch.weights.shape
        return Terms((per_instance * batch.weights).sum(), {"trainCost": (cost.mean(1) * batch.weights).sum().detach()})

    def after_step(self, session: Session, step: int, _means: Mapping[str, float]) -> dict[str, float]:
        """Challenge the baseline and evaluate, each at its own pace."""
        metrics: dict[str, float] = {}
        last = step == self.total_steps
        if self._baseline is not None and step % self.settings.baseline_every == 0:
            session.reporter.phase("eval")
            metrics |= self._baseline.challenge(session)
        if step % self.settings.eval_every == 0 or last:
            session.reporter.phase("eval")
            metrics |= self.evaluate(session)
        return metrics

    def evaluate(self, session: Session) -> dict[str, float]:
        """Mean greedy tour length on the evaluation set, and its gap to nearest neighbour (negative: shorter)."""
        count = self.settings.eval_instances
        cost = float(greedy_costs(session, session.parallel.module, self.settings, EVALUATION, count).mean())
        if self._nearest is None:
            self._nearest = nearest_cost(session, self.settings, EVALUATION, count)
        return {"cost": cost, "costNearest": self._nearest, "gapPercent": 100 * (cost / self._nearest - 1)}

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Mean greedy tour length."""
        return metrics.get("cost")

    def state(self) -> dict[str, Any]:
        """See `Workload`."""
        return {"baseline": self._baseline.state()} if self._baseline is not None else {}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        cost, nearest = metrics["cost"], metrics["costNearest"]
        untrained = metrics.get("costUntrained", math.nan)
        better = "shorter" if cost < nearest else "longer"
        text = (
            f"CVRP with {self.settings.customers} customers: tours of {cost:.3f} after {self.total_steps} steps, "
            f"{abs(metrics['gapPercent']):.1f} % {better} than nearest neighbour ({nearest:.3f}); "
            f"untrained {untrained:.3f}"
        )
        return {
            "trainer": "cvrp",
            "steps": self.total_steps,
            "cost": cost,
            "costNearest": nearest,
            "costUntrained": untrained,
            "gapPercent": metrics["gapPercent"],
            "text": text,
        }
