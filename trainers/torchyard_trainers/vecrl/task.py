"""PPO as a workload of the training loop: an optimizer step is a minibatch, and a sample is an environment.

Every minibatch holds all environments, each with a part of its time steps, chosen by a key per environment. A rank
therefore needs the rollouts of its own environments only, at any world size, and a minibatch mixes all environments.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export.program import Page, Program
from torchyard_trainers.core.graphs import GraphedLoss
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload
from torchyard_trainers.core.world import World
from torchyard_trainers.rl.distributions import distribution_of
from torchyard_trainers.rl.evaluation import Evaluator
from torchyard_trainers.rl.ppo import Halting, Minibatch, losses
from torchyard_trainers.rl.rollout import metrics_of, order_of, rows_of
from torchyard_trainers.vecrl import export
from torchyard_trainers.vecrl.collector import Collector
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.params import Settings, is_ours
from torchyard_trainers.vecrl.policy import Policy
from torchyard_trainers.vecrl.speed import speeds


class VecRL(Workload):
    """The workload `vecrl`."""

    def __init__(self, settings: Settings) -> None:
        """Store resolved parameters."""
        self.settings = settings
        self.total_steps = settings.rollouts * settings.steps_per_rollout
        self.global_batch = settings.environments
        self.log_every = settings.log_every
        self.eval_every = settings.eval_every * settings.steps_per_rollout
        self.max_grad_norm = settings.max_grad_norm
        self.save_every = settings.steps_per_rollout
        self.reads_values = True  # the facts of a rollout, before its first step
        own = ("environment", "seed", "horizon", "epochs", "minibatches", "policies", "grid", "agents", "food", "arms")
        own += ("max_episode_steps",) if settings.max_episode_steps is not None else ()
        own += tuple(name for name in ("normalize_observations", "normalize_rewards") if getattr(settings, name))
        own += tuple(name for name in ("frame_stack", "action_bounds") if getattr(settings, name) not in (1, "clip"))
        self.identity: Mapping[str, str | int | float] = {
            "trainer.name": "vecrl",
            **{f"trainer.params.{name}": getattr(settings, name) for name in own},
            "global batch (trainer.params.environments)": settings.environments,
        }
        self.architecture = ("trainer.name", "trainer.params.environment", "trainer.params.policies")
        self._collector: Collector | None = None
        self._measure, self._agents = "evalReturn", settings.agents  # of the environment, once it is made
        self._episodes = torch.zeros((), dtype=torch.int64)
        self._order: tuple[int, Tensor] | None = None
        self._learn: Callable[[Minibatch, Tensor], tuple[Tensor, dict[str, Tensor]]] | None = None
        self._evaluator: Evaluator | None = None
        self._clock = 0.0
        self._paces: deque[float] = deque(maxlen=100)
        self._halted = False  # for the rest of the rollout, by `target_kl`
        self._epochs = 0  # of the rollout from which something was learned

    @property
    def collector(self) -> Collector:
        """Environments and rollouts; available once the model is built."""
        assert self._collector is not None
        return self._collector

    def build(self) -> nn.Module:
        """See `Workload`."""
        torch.manual_seed(stream_key(self.settings.seed, "weights") % 2**63)
        environment = build_environment(self.settings, torch.device("cpu"))
        self._measure, self._agents = environment.measure, environment.agents
        policy = Policy(self.settings, environment)
        self._collector = Collector(self.settings, policy)
        return policy

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """See `Workload`."""
        assert isinstance(model, Policy)
        return [model.actor, model.critic]

    def optimizer(self, model: nn.Module) -> Optimizer:
        """See `Workload`."""
        return Halting(model.parameters(), lr=self.settings.lr, halted=lambda: self._halted)

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step: the same for all minibatches of a rollout, linear from `lr` to `lr_final`."""
        settings = self.settings
        share = min(step // settings.steps_per_rollout / settings.rollouts, 1.0)
        return settings.lr + (settings.lr_final - settings.lr) * share

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the untrained policy."""
        metrics = self.evaluate(session)
        return {**metrics, "evalUntrained": metrics[self._measure], "episodes": 0.0}

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        """Play the rollout that starts at this step."""
        number, index = divmod(step, self.settings.steps_per_rollout)
        if not index:
            session.reporter.phase("rollout")
            self._order, self._halted, self._epochs = None, False, 0
            with session.data_wait:
                self.collector.prepare(session, number)
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return PPO's loss on one minibatch of the rollout."""
        minibatch = self._minibatch(session, batch.ids % self.global_batch, batch.step)
        if self._learn is None:
            self._learn = self._learner(session)
        return LossOutput(*self._learn(minibatch, batch.weights))

    def _learner(self, session: Session) -> Callable[[Minibatch, Tensor], tuple[Tensor, dict[str, Tensor]]]:
        """Return the function that computes PPO's loss; compiled, it is a CUDA graph where no gradient is reduced."""
        model, settings = session.parallel.forward, self.settings
        compiles = settings.compile and session.world.device.type == "cuda"
        compute = torch.compile(losses, dynamic=False) if compiles else losses
        distribution, near = distribution_of(self.collector.environment(session)), settings.value_clip or None

        def learn(minibatch: Minibatch, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            shape = minibatch.action.shape
            logits, value = model(minibatch.observation.flatten(0, 1))
            logits, value = logits.unflatten(0, shape[:2]), value.unflatten(0, shape[:2])
            found = compute(logits, value, minibatch, weights, settings, distribution=distribution, value_clip=near)
            return found.loss, found.statistics

        if settings.compile and GraphedLoss.serves(session.parallel.strategy, session.precision.name):
            return GraphedLoss(learn, list(session.parallel.module.parameters()))
        return learn

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Report the rollout's metrics after its last minibatch; evaluate when due."""
        metrics: dict[str, float] = {}
        if self.settings.target_kl and step % self.settings.minibatches == 0 and not self._halted:
            self._epochs += 1
            self._halted = means["approxKl"] > self.settings.target_kl
        if step % self.settings.steps_per_rollout == 0:
            facts = self.collector.finish(session)
            self._episodes += int(facts["episodes"])
            metrics = self._metrics(facts) | self._pace(session)
            if self.settings.target_kl:
                metrics["updateEpochs"] = float(self._epochs)
        if step % self.eval_every == 0 or step == self.total_steps:
            session.reporter.phase("eval")
            began = time.monotonic()
            metrics |= self.evaluate(session)
            self._clock += time.monotonic() - began if self._clock else 0.0
        return metrics

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return the mean quality of greedy episodes: `evalReturn`, for snake `evalLength`."""
        if self._evaluator is None:
            environment = build_environment(self.settings, session.world.device)
            policy = Policy(self.settings, environment).to(session.world.device)
            self._evaluator = Evaluator(policy, environment, graphs=self.settings.compile)
        session.parallel.copy_to(self._evaluator.policy)
        found = self._evaluator.episodes(session, self.settings.eval_episodes).quality
        return {self._measure: float(found.mean())}

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the negative mean quality of greedy episodes: lower is better."""
        found = metrics.get(self._measure)
        return None if found is None else -found

    def state(self) -> dict[str, Any]:
        """See `Workload`."""
        return {**self.collector.state(), "episodes": self._episodes}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings = self.settings
        measure = self._measure
        names = (measure, "evalUntrained", "episodeReturn", "episodes")
        steps = settings.rollouts * settings.horizon * settings.environments
        what = {"evalLength": "length", "evalReturn": "return"}.get(measure, measure)
        text = (
            f"{settings.environment}: mean greedy {what} {metrics[measure]:.2f} over {settings.eval_episodes} episodes "
            f"after {steps} environment steps; untrained {metrics.get('evalUntrained', math.nan):.2f}"
        )
        return {
            "trainer": "vecrl",
            "environment": settings.environment,
            "environmentSteps": steps,
            **{name: metrics[name] for name in names if name in metrics},
            "text": text,
        }

    def programs(self, model: nn.Module, cases: int) -> dict[str, Program]:
        """See `Exportable`: `policy` returns logits [n, A, actions] for observations [n, A, D]."""
        assert isinstance(model, Policy)
        environment = build_environment(self.settings, torch.device("cpu"))
        return {export.PROGRAM: export.program(model, environment, self.settings, cases)}

    def page(self) -> Page:
        """See `Playable`."""
        if not is_ours(self.settings.environment):
            raise ConfigError(
                f"export.formats: web has no page for {self.settings.environment}; leave it out, or use onnx or pt2"
            )
        environment = build_environment(self.settings, torch.device("cpu"))
        return export.page(self.collector.actor, environment, self.settings)

    def measure(self, session: Session) -> dict[str, float]:
        """See `Measured`: environment steps per second of training and of its parts."""
        ranks = session.world.size
        parts = {name: rate * ranks for name, rate in speeds(self.collector, session, self.settings).items()}
        return parts | ({"envStepsPerSecond": statistics.median(self._paces)} if self._paces else {})

    def _minibatch(self, session: Session, environments: Tensor, step: int) -> Minibatch:
        """Gather the minibatch of `environments` [m] that optimizer step `step` learns from."""
        settings, world = self.settings, session.world
        number, index = divmod(step, settings.steps_per_rollout)
        epoch, part = divmod(index, settings.minibatches)
        rollout, facts = self.collector.rollout
        trajectory, log_probability, advantage, target = rollout[:4]
        length = settings.horizon // settings.minibatches
        rows = rows_of(world, environments)
        times = self._times(world, number * settings.epochs + epoch)[rows, part * length :][:, :length]
        rows = rows[:, None]
        count = settings.environments * settings.horizon * advantage.shape[-1]
        mean = facts["advantage"] / count
        deviation = math.sqrt(max(facts["advantageSquared"] / count - mean**2, 0.0))
        value = rollout.value[times, rows] if settings.value_clip else None
        return Minibatch(
            trajectory.observation[times, rows],
            trajectory.action[times, rows],
            log_probability[times, rows],
            (advantage[times, rows] - mean) / (deviation + 1e-8),
            target[times, rows],
            value,
        )

    def _times(self, world: World, epoch: int) -> Tensor:
        """Return a permutation of the time steps of each environment of this rank for an epoch: [n, horizon]."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, order_of(self.settings, world, epoch))
        return self._order[1]

    def _metrics(self, facts: Mapping[str, float]) -> dict[str, float]:
        """Convert sums over a rollout to metrics."""
        settings = self.settings
        count = settings.environments * settings.horizon * self._agents
        return {"episodes": float(self._episodes), **metrics_of(facts, count)}

    def _pace(self, session: Session) -> dict[str, float]:
        """Return the environment steps per second since the rollout before, averaged over the clocks of all ranks."""
        now, before, self._clock = time.monotonic(), self._clock, time.monotonic()
        seconds = session.world.total(torch.tensor([now - before], dtype=torch.float64)).item() / session.world.size
        if not before:
            return {}
        self._paces.append(self.settings.environments * self.settings.horizon / seconds)
        return {"envStepsPerSecond": self._paces[-1]}
