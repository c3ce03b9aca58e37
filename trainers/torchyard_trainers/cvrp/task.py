"""REINFORCE on routing problems as a workload of the training loop."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from torchyard_trainers.core.export.program import Page, Program
from torchyard_trainers.core.graphs import eager_mode
from torchyard_trainers.core.optimizers import AdamW
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload
from torchyard_trainers.cvrp import export, published
from torchyard_trainers.cvrp.baselines import Baseline, build_baseline
from torchyard_trainers.cvrp.evaluation import EVALUATION, heuristic_cost, make, solve, tour_lengths
from torchyard_trainers.cvrp.files import cvrplib
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.policy import Policy, Routes
from torchyard_trainers.cvrp.problems import open_problem
from torchyard_trainers.cvrp.report import EvaluationReport, arrange, described, gap
from torchyard_trainers.cvrp.solver import check_installed, solver_cost


class Cvrp(Workload):
    """The workload `cvrp`."""

    max_grad_norm = 1.0

    def __init__(self, settings: Settings) -> None:
        """Store resolved parameters.

        Raises:
            ConfigError: the problem is of the user's and cannot be used, or the solver is not installed.
        """
        self.settings = settings
        self.problem = open_problem(settings.problem)
        own = {"trainer.params.problem": settings.problem} if settings.problem != "cvrp" else {}
        self.architecture = ("trainer.name", "trainer.params.model", "trainer.params.heads", *own)
        self._reference = list(self.problem.heuristics)[-1]  # the metric that gaps are to
        self.total_steps = settings.steps
        self.global_batch = settings.batch
        self.log_every = settings.log_every
        self.eval_every = settings.eval_every
        rollout = settings.baseline == "rollout"
        self.identity: Mapping[str, str | int | float] = {
            **({"trainer.params.baselineInstances": settings.baseline_instances} if rollout else {}),
            "trainer.name": "cvrp",
            **own,
            "trainer.params.seed": settings.seed,
            "trainer.params.model": settings.model,
            "trainer.params.heads": settings.heads,
            "trainer.params.baseline": settings.baseline,
            "trainer.params.customers": settings.customers,
            "trainer.params.capacity": settings.capacity,
            "trainer.params.distribution": settings.distribution,
            "trainer.params.samples": settings.samples,
            **({"trainer.params.starts": settings.starts} if settings.starts != "free" else {}),
            "global batch (trainer.params.batch)": settings.batch,
        }
        if settings.solver != "none":
            check_installed()
        self._baseline: Baseline | None = None
        self._problems = cvrplib.find(Path(settings.instances)) if settings.instances else []
        self._heuristics: dict[str, float] = {}
        self._report: EvaluationReport | None = None

    @property
    def baseline(self) -> Baseline:
        """The baseline of REINFORCE; available once the model is built."""
        assert self._baseline is not None
        return self._baseline

    def build(self) -> nn.Module:
        """See `Workload`."""
        torch.manual_seed(stream_key(self.settings.seed, "weights") % 2**63)
        settings = self.settings
        critic = settings.baseline == "critic"
        sizes = settings.embedding, settings.heads, settings.layers
        policy = Policy(settings.model, *sizes, critic=critic, compiled=settings.compile, problem=self.problem)
        self._baseline = build_baseline(settings, policy)
        return policy

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """See `Workload`."""
        assert isinstance(model, Policy)
        return list(model.encoder.blocks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """See `Workload`."""
        return AdamW(model.parameters(), lr=self.settings.lr, weight_decay=1e-6, fused=True)

    def learning_rate(self, step: int) -> float:
        """Cosine from `lr` to `lr_final`."""
        settings = self.settings
        share = min(step / max(settings.steps - 1, 1), 1.0)
        return settings.lr_final + (settings.lr - settings.lr_final) * 0.5 * (1 + math.cos(math.pi * share))

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the untrained policy and, for baseline rollout, its first copy."""
        self.baseline.begin(session)
        metrics = self._measure(session)
        return {**metrics, "costUntrained": metrics["cost"]}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """REINFORCE: (cost - baseline) times log-likelihood, mean over an instance's samples, summed over instances."""
        settings = self.settings
        with session.data_wait:
            instances = make(settings, "train", batch.ids)
        keys = split_keys(sample_keys(stream_key(settings.seed, "routes"), batch.ids), settings.samples)
        starts = None
        if settings.starts == "customers":
            customers = instances.xy.shape[1] - 1
            starts = torch.arange(settings.samples, device=keys.device) % customers + 1
        routes: Routes = session.parallel.forward(instances, keys, likelihood=True, starts=starts)
        cost, log_likelihood = routes.cost, routes.log_likelihood
        baseline = self.baseline(instances, routes)
        assert baseline.shape == (len(batch.ids), 1)
        advantage = (cost - baseline).detach()
        assert advantage.shape == log_likelihood.shape == keys.shape
        per_instance = (advantage * log_likelihood).mean(1)
        if routes.expected is not None:
            per_instance = per_instance + critic_loss(routes.expected, cost)
        assert per_instance.shape == batch.weights.shape
        means = {"trainCost": cost.mean(1), "advantage": advantage.mean(1)}
        statistics = {name: (values * batch.weights).sum() for name, values in means.items()}
        return LossOutput((per_instance * batch.weights).sum(), statistics)

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Renew the baseline and evaluate when each is due."""
        metrics = self.baseline.after_step(session, step, means)
        last = step == self.total_steps
        if step % self.eval_every == 0 or last:
            session.reporter.phase("eval")
            metrics |= self.evaluate(session) if last else self._measure(session)
        return metrics

    def _measure(self, session: Session) -> dict[str, float]:
        """Mean greedy tour length on the evaluation set, and its gap to the best heuristic (negative: shorter)."""
        cost = self._mean_cost(session, "greedy")
        heuristics = {name: self._heuristic(session, name) for name in self.problem.heuristics}
        return {"cost": cost, **heuristics, **self._gap(cost, heuristics)}

    def _gap(self, cost: float, metrics: Mapping[str, float]) -> dict[str, float]:
        return {f"gap{self._reference.removeprefix('cost')}Percent": gap(cost, metrics[self._reference])}

    def evaluate(self, session: Session) -> dict[str, float]:
        """Run the full evaluation: greedy and searched tours, heuristics, published figures, files."""
        settings = self.settings
        metrics = self._measure(session)
        shortest = metrics["cost"]
        if settings.decoding != "greedy":
            shortest = self._mean_cost(session, settings.decoding)
            metrics[f"cost{settings.decoding.capitalize()}"] = shortest
            metrics |= self._gap(shortest, metrics)
        if settings.solver != "none":
            metrics["costSolver"] = solver_cost(session, settings)
            metrics["gapSolverPercent"] = gap(shortest, metrics["costSolver"])
        sizes = settings.customers, settings.capacity, settings.distribution
        reference = published.reference(*sizes, settings.problem)
        if reference is not None:
            metrics["gapReferencePercent"] = gap(metrics["cost"], reference)
        with eager_mode(compiled=settings.compile):  # problems of as many sizes as there are files, each solved once
            tours = solve(session, session.parallel.module, settings, self._problems) if self._problems else []
            self._report = arrange(session, settings, metrics, self._problems, tours)
        return metrics | self._report.metrics

    def programs(self, model: nn.Module, cases: int) -> dict[str, Program]:
        """See `Exportable`: `policy` scores the next node."""
        assert isinstance(model, Policy)
        return {export.PROGRAM: export.program(model, self.settings, cases)}

    def page(self) -> Page:
        """See `Playable`."""
        return export.page(self.settings)

    def write_report(self, session: Session, folder: Path, curves: Path) -> list[Path]:
        """Print a table of the last evaluation; write it, tours and curve as files. See `WritesReport`."""
        if self._report is None:
            self.evaluate(session)
        assert self._report is not None
        report = self._report
        return session.world.from_leader(lambda: report.write(folder, curves))

    def _mean_cost(self, session: Session, decoding: str) -> float:
        count = self.settings.eval_instances
        module = session.parallel.module
        return float(tour_lengths(session, module, self.settings, EVALUATION, count, how=decoding).mean())

    def _heuristic(self, session: Session, name: str) -> float:
        if name not in self._heuristics:
            count = self.settings.eval_instances
            self._heuristics[name] = heuristic_cost(session, self.settings, name, EVALUATION, count)
        return self._heuristics[name]

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Mean greedy tour length."""
        return metrics.get("cost")

    def state(self) -> dict[str, Any]:
        """See `Workload`."""
        state = self.baseline.state()
        return {"baseline": state} if state else {}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings = self.settings
        searched = f"cost{settings.decoding.capitalize()}"
        gaps = (f"gap{self._reference.removeprefix('cost')}Percent", "gapSolverPercent")
        names = ("cost", searched, *self.problem.heuristics, "costSolver", *gaps)
        shortest = metrics.get(searched, metrics["cost"])
        against = {"costSolver": "PyVRP", self._reference: self.problem.heuristics[self._reference].name}
        compared = [
            f"{abs(gap(shortest, metrics[name])):.1f} % {'shorter' if shortest < metrics[name] else 'longer'} than "
            f"{what} ({metrics[name]:.3f})"
            for name, what in against.items()
            if name in metrics
        ]
        text = (
            f"{described(settings)}: tours of {shortest:.3f} ({settings.decoding}) after "
            f"{self.total_steps} steps, {', '.join(compared)}; greedy {metrics['cost']:.3f}, untrained "
            f"{metrics.get('costUntrained', math.nan):.3f}"
        )
        return {
            "trainer": "cvrp",
            "steps": self.total_steps,
            "decoding": settings.decoding,
            **{name: metrics[name] for name in (*names, "costUntrained") if name in metrics},
            "text": text,
        }


def critic_loss(expected: Tensor, cost: Tensor) -> Tensor:
    """Return the Huber loss of the critic, [B, 1] and [B, S] -> [B].

    It is linear for large errors, so that a poor critic leaves the policy its
    share of the clipped gradient.
    """
    mean = cost.mean(1, keepdim=True)
    assert expected.shape == mean.shape
    return functional.smooth_l1_loss(expected, mean, reduction="none")[:, 0]
