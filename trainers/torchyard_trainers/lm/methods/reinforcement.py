"""GRPO and PPO: rollouts before the steps that use them, and the loss of these steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.parallel import SHARDED
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session
from torchyard_trainers.lm.data.prompts import Prompts
from torchyard_trainers.lm.generation.completions import Judge
from torchyard_trainers.lm.generation.engine import Engine, Sampling, WeightsEngine
from torchyard_trainers.lm.generation.rollouts import Collector, Rollout, rows_of_samples, samples_of_rank
from torchyard_trainers.lm.generation.tool_engine import ToolEngine, ToolUse
from torchyard_trainers.lm.generation.vllm_engine import GIB, VllmEngine, VllmMemory, check_model, size_of
from torchyard_trainers.lm.methods.losses import importance_weights, policy_loss, value_loss
from torchyard_trainers.lm.scoring import Reference, scored, scorer
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.rl.clipped import low_variance_kl


class Reinforcement:
    """The steps of GRPO and PPO."""

    def __init__(
        self,
        settings: Settings,
        prompts: Prompts,
        judge: Judge,
        reference: Reference | None,
        tools: ToolUse | None = None,
    ) -> None:
        """Take the parts that all methods share, and the tools that completions may call."""
        self._settings, self._prompts, self._judge, self._reference = settings, prompts, judge, reference
        self._tools = tools
        self._collector: Collector | None = None
        self._held: Rollout | None = None

    def check(self, session: Session) -> None:
        """Check before the first step that the engine of rollouts can be used.

        Raises:
            ConfigError: it cannot.
        """
        if self._settings.engine == "vllm" and not only_shapes():
            model: Any = session.parallel.module
            check_model(model.lm.config, session.world.device)

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        """Make the rollout that starts at `step`, if one does; return its metrics. Collective.

        Args:
            session: the model in training, in `eval` mode.
            step: counted from the first of this method.
        """
        settings = self._settings
        number, index = divmod(step, settings.steps_per_rollout)
        if index:
            return {}
        session.reporter.phase("rollout")
        if not number and self._reference is not None:
            self._reference.renew()
        several = settings.steps_per_rollout > 1 or settings.method == "ppo"
        temperature = settings.temperature
        known = self._reference.scorer(session, temperature=temperature) if self._reference is not None else None
        self._held = None  # never two at once
        self._held, metrics = self._collector_of(session).collect(
            session,
            number,
            score=scorer(session, temperature=temperature) if several else None,
            reference=known,
        )
        return metrics

    def loss(self, session: Session, batch: MicroBatch, step: int) -> LossOutput:
        """Return the loss of completions of the rollout that `step` is part of."""
        settings, world = self._settings, session.world
        rollout, index = self._held, step % settings.steps_per_rollout
        assert rollout is not None, "a rollout is prepared before its steps"
        samples = batch.ids % settings.batch
        if only_shapes():
            own = rollout.first(len(samples))
        else:
            rows = rows_of_samples(settings, world.size, world.rank, index % settings.minibatches, samples)
            own = rollout.take(rows)
        found = session.parallel.forward(own.tokens, own.labels, scores=True, temperature=settings.temperature)
        now, mask = scored(found, own.labels), own.labels != IGNORE
        acted = now.log_probability.detach() if own.acted is None else own.acted
        correction = None
        if own.sampled is not None:
            correction = importance_weights(acted, own.sampled, mask, cap=settings.importance_cap)
        policy = policy_loss(
            now.log_probability,
            acted,
            own.advantage,
            mask,
            batch.weights,
            low=settings.clip,
            high=settings.clip_high,
            level=settings.loss_level,
            ratio_level=settings.ratio_level,
            longest=settings.max_new_tokens,
            reference=own.reference if settings.method == "grpo" else None,
            kl_coefficient=settings.kl_coefficient,
            correction=correction,
        )
        loss, statistics = policy.loss, dict(policy.statistics)
        statistics["entropy"] = (now.entropy * mask * batch.weights[:, None]).sum()
        if own.sampled is not None:
            divergence = low_variance_kl((acted - own.sampled).masked_fill(~mask, 0))
            statistics["engineKl"] = (divergence * batch.weights[:, None]).sum()
        if own.target is not None:
            error = value_loss(now.value, own.target, mask, batch.weights)
            # Both parts are divided by the same count.
            loss = loss + settings.value_coefficient * error * (policy.count / policy.tokens.clamp(min=1))
            statistics["valueLoss"] = error.detach()
            if own.reference is not None and own.acted is not None:
                statistics["kl"] = ((own.acted - own.reference) * mask * batch.weights[:, None]).sum()
        documents = batch.weights.sum()
        lengths = (mask | (own.tokens != self._prompts.pad)).sum(1) + 1
        means: dict[str, Tensor | Mean] = {name: Mean(total, policy.tokens) for name, total in statistics.items()}
        means["tokens"] = Mean((lengths * batch.weights).sum(), documents)
        # Where nothing is left to learn, the mean is that of no loss at all.
        empty = self._collector is not None and index % settings.minibatches in self._collector.masked
        return LossOutput(loss, means, documents if empty else policy.count)

    def finished(self, step: int) -> None:
        """Drop the rollout after its last step; `step` steps of this method are finished."""
        if step % self._settings.steps_per_rollout == 0:
            self._held = None

    def _collector_of(self, session: Session) -> Collector:
        if self._collector is None:
            sampling = sampling_of(self._settings, self._prompts)
            engine = rollout_engine(session, self._settings, self._prompts)
            if self._tools is not None:
                engine = ToolEngine(engine, self._tools, session)
            prompts = self._prompts
            self._collector = Collector(
                self._settings, prompts.of_ids, engine, sampling, self._judge, pad=self._prompts.pad
            )
        return self._collector


def sampling_of(settings: Settings, prompts: Prompts, *, greedy: bool = False, held_out: bool = False) -> Sampling:
    """Return how the completions of a run are sampled."""
    return Sampling(
        settings.max_new_tokens,
        temperature=0.0 if greedy else settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        stop_tokens=prompts.ends,
        stop=settings.stop,
        seed=settings.seed,
        held_out=held_out,
    )


def rollout_engine(session: Session, settings: Settings, prompts: Prompts) -> Engine:
    """Return the engine of rollouts that the parameters name."""
    if settings.engine == "torch":
        return engine_of(session, prompts, compiled=settings.compile)
    module: Any = session.parallel.module
    dtype = session.precision.dtype
    positions, _ = samples_of_rank(settings, session.world.size, session.world.rank)
    size = size_of(
        module.lm.config,
        dtype,
        sequences=min(settings.rollout_batch or len(positions), len(positions)),
        tokens=prompts.longest + settings.max_new_tokens,
        cache=None if settings.engine_cache_gib is None else int(settings.engine_cache_gib * GIB),
    )
    if only_shapes():
        return VllmMemory(module, session.world.device, size, dtype=dtype)
    tokenizer = prompts.tokenizer if settings.stop else None
    return VllmEngine(module, session.world, size, dtype=dtype, tokenizer=tokenizer, compiled=settings.compile)


def engine_of(session: Session, prompts: Prompts, *, compiled: bool) -> WeightsEngine:
    """Return an engine that generates with the model in training, with CUDA graphs if its blocks are compiled."""
    module: Any = session.parallel.module
    world = session.world

    def all_ranks(value: bool) -> bool:
        missing = torch.tensor([float(not value)], dtype=torch.float64, device=world.device)
        return not world.total(missing).item()

    @contextmanager
    def gathered() -> Iterator[None]:
        with session.precision.forward(), session.parallel.gathered():
            yield

    sharded = session.parallel.strategy in SHARDED
    return WeightsEngine(
        module,
        module.lm.config,
        device=world.device,
        decode=prompts.decode,
        all_ranks=all_ranks if sharded else None,
        compiled=compiled,
        graphs=compiled and not sharded,  # gathering uses streams of its own, which a graph cannot record
        within=gathered,
    )
