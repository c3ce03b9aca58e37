"""Fine-tuning of a causal language model as a workload of the training loop."""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.optimizers import adamw
from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload, ids_of_step
from torchyard_trainers.lm.evaluation import answers, score_answers
from torchyard_trainers.lm.folder import empty_model, read_tokenizer, tokenizer_files
from torchyard_trainers.lm.models import LanguageModel, build_model
from torchyard_trainers.lm.params import Settings
from torchyard_trainers.lm.preferences import Preferences
from torchyard_trainers.lm.prompts import Prompts
from torchyard_trainers.lm.reinforcement import Reinforcement
from torchyard_trainers.lm.scoring import Reference
from torchyard_trainers.lm.tokens import character_tokenizer, saved

# What samples depend on beyond the task.
_ROLLOUTS = ("minibatches", "iterations", "sft_steps")
_IDENTITY = {"sft": (), "dpo": ("sft_steps",), "grpo": (*_ROLLOUTS, "group"), "ppo": _ROLLOUTS}


class LanguageModeling(Workload):
    """The workload `lm`."""

    def __init__(self, settings: Settings) -> None:
        """Store resolved parameters."""
        self.settings = settings
        self.total_steps = settings.steps
        self.global_batch = settings.batch
        self.log_every = settings.log_every
        self.eval_every = settings.eval_every
        self.max_grad_norm = settings.max_grad_norm
        self.save_every = settings.steps_per_rollout
        origin = "model" if settings.pretrained is None else "pretrained"
        own = ["seed", "method", origin, "task", "length", "symbols", *_IDENTITY[settings.method]]
        own += ["lora_rank", "lora_alpha"] if settings.lora_rank is not None else []
        self.identity: Mapping[str, str | int | float] = {
            "trainer.name": "lm",
            **{f"trainer.params.{name}": getattr(settings, name) for name in own},
            "global batch (trainer.params.batch)": settings.batch,
        }
        self.architecture = ["trainer.name"]
        if settings.pretrained is None:
            self.deferred = not settings.model.startswith("tiny")  # no process has the memory of the whole model
            self.architecture.append("trainer.params.model")
        else:
            folder = Path(settings.pretrained)
            self.pretrained = Pretrained(folder, prefix="lm.")
            self.identity = {**self.identity, "seed": settings.seed}  # of adapters and heads
        if settings.lora_rank is not None:
            self.architecture.append("trainer.params.lora_alpha")
        self._reference: Reference | None = None
        self._reinforcement: Reinforcement | None = None
        self._preferences: Preferences | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return character_tokenizer() if self.pretrained is None else read_tokenizer(self.pretrained.folder)

    def build(self) -> nn.Module:
        """See `Workload`."""
        settings = self.settings
        value_head = settings.method == "ppo"
        if self.pretrained is not None:
            model = empty_model(self.pretrained.folder, self.tokenizer, value_head=value_head)
        else:
            seed = stream_key(settings.seed, "weights") % 2**63
            model = build_model(settings.model, self.tokenizer, seed=seed, value_head=value_head)
        if settings.lora_rank is not None:
            targets = list(settings.lora_targets) or "all-linear"
            model.lm = add_lora(model.lm, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets)
        self._reference = Reference(model) if settings.needs_reference else None
        if settings.method in ("grpo", "ppo"):
            self._reinforcement = Reinforcement(settings, Prompts(settings, self.tokenizer), self._reference)
        if self._reference is not None and settings.method == "dpo":
            self._preferences = Preferences(settings, self.tokenizer, self._reference)
        return model

    def initialize(self, model: nn.Module, module: nn.Module, name: str) -> None:
        """See `Workload`; the value head is 0 at first."""
        if name == "value_head":
            for each in module.parameters():
                nn.init.zeros_(each)
        else:
            super().initialize(model, module, name)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the decoder layers."""
        assert isinstance(model, LanguageModel)
        return list(model.lm.base_model.layers)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW; norms, biases and embeddings do not decay."""
        return adamw(model, self.settings.lr, weight_decay=self.settings.weight_decay, betas=(0.9, 0.95))

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, the same for all steps of a rollout.

        In the supervised steps of another method it is `sft_lr`, with a warm-up of their own.
        """
        settings = self.settings
        if step < settings.sft_steps:
            warm_up = min(settings.warmup_steps, settings.sft_steps)
            return settings.sft_lr * factor("constant", step, settings.sft_steps, warm_up=warm_up)
        rollouts = [
            -(-steps // settings.steps_per_rollout)
            for steps in (settings.steps - settings.sft_steps, settings.warmup_steps)
        ]
        number = (step - settings.sft_steps) // settings.steps_per_rollout
        final = settings.lr_final / settings.lr if settings.lr else 0.0
        return settings.lr * factor(settings.schedule, number, rollouts[0], warm_up=rollouts[1], final=final)

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the model before training."""
        metrics = self.evaluate(session)
        return {**metrics, **{f"{name}Untrained": metrics[name] for name in ("exactMatch", "evalLoss")}}

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        """Make the rollout that starts at this step, or score its pairs with the reference."""
        own = step - self.settings.sft_steps
        if own < 0:
            return {}
        if self._reinforcement is not None:
            return self._reinforcement.prepare(session, own)
        if self._preferences is not None:
            self._preferences.prepare(session, ids_of_step(self, step), own)
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the loss of the method; in the first `sftSteps` that of supervised fine-tuning."""
        own = batch.step - self.settings.sft_steps
        if own >= 0 and self._reinforcement is not None:
            return self._reinforcement.loss(session, batch, own)
        if own >= 0 and self._preferences is not None:
            return self._preferences.loss(session, batch)
        return self._supervised(session, batch)

    def _supervised(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the cross-entropy of the right answers, summed over their tokens."""
        with session.data_wait:
            found = answers(self.settings, self.tokenizer, batch.ids.cpu())
            tokens, labels = found.tokens.to(batch.ids.device), found.labels.to(batch.ids.device)
        labels = labels.masked_fill(batch.weights[:, None] == 0, IGNORE)
        if self.settings.method == "ppo":
            # Every parameter needs a gradient, for ddp: that of the value head is 0.
            scores = session.parallel.forward(tokens, labels, scores=True)
            loss = -scores.log_probability.sum() + 0 * scores.value.sum()
        else:
            loss = session.parallel.forward(tokens, labels)
        count = (labels != IGNORE).sum()
        documents, lengths = batch.weights.sum(), (tokens != self.tokenizer.pad_token_id).sum(-1) + 1
        statistics = {
            "tokens": Mean((lengths * batch.weights).sum(), documents),
            "completionTokens": Mean(count.float(), documents),
        }
        return LossOutput(loss, statistics, count)

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Evaluate when due, and after the supervised steps."""
        own = step - self.settings.sft_steps
        if own > 0 and self._reinforcement is not None:
            self._reinforcement.finished(own)
        if own == 0 and step:
            session.reporter.phase("eval")
            metrics = self.evaluate(session)
            return {**metrics, "exactMatchSupervised": metrics["exactMatch"]}
        return super().after_step(session, step, means)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return loss and perplexity of the right answers, and the share that greedy decoding gives exactly."""
        session.parallel.module.eval()
        found = score_answers(session, self.settings, self.tokenizer)
        loss = float(found.loss.sum() / found.tokens.sum())
        more = self._preferences.evaluate(session) if self._preferences is not None else {}
        session.parallel.module.train()
        return more | {
            "evalLoss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "exactMatch": float(found.exact.mean()),
        }

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the loss of the right answers."""
        return metrics.get("evalLoss")

    def state(self) -> dict[str, Any]:
        """Return the weights of the reference."""
        return {"reference": self._reference.state()} if self._reference is not None else {}

    def assets(self) -> Mapping[str, Path | str]:
        """Return the files of the tokenizer, with its chat template."""
        return saved(self.tokenizer) if self.pretrained is None else tokenizer_files(self.pretrained.folder)

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings = self.settings
        names = (
            *("exactMatch", "exactMatchUntrained", "exactMatchSupervised"),
            *("evalLoss", "evalLossUntrained", "perplexity"),
            *("reward", "completionTokens", "preferenceAccuracy", "rewardAccuracy", "rewardMargin"),
        )
        untrained = metrics.get("exactMatchUntrained", math.nan)
        text = (
            f"{settings.task} by {settings.method}: exact match {metrics['exactMatch']:.3f} on {settings.eval_samples} "
            f"held-out prompts after {self.total_steps} steps; untrained {untrained:.3f}"
        )
        return {
            "trainer": "lm",
            "method": settings.method,
            "task": settings.task,
            "steps": self.total_steps,
            **{name: metrics[name] for name in names if name in metrics},
            "text": text,
        }
