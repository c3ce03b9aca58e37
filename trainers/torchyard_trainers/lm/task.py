"""Fine-tuning of a causal language model as a workload of the training loop."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.optimizers import adamw
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload
from torchyard_trainers.lm.evaluation import answers, score_answers
from torchyard_trainers.lm.models import LanguageModel, build_model
from torchyard_trainers.lm.params import Settings
from torchyard_trainers.lm.tokens import character_tokenizer


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
        own = ("seed", "method", "model", "task", "length", "symbols")
        self.identity: Mapping[str, str | int | float] = {
            "trainer.name": "lm",
            **{f"trainer.params.{name}": getattr(settings, name) for name in own},
            "global batch (trainer.params.batch)": settings.batch,
        }
        self.architecture = ("trainer.name", "trainer.params.model")

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return character_tokenizer()

    def build(self) -> nn.Module:
        """See `Workload`."""
        seed = stream_key(self.settings.seed, "weights") % 2**63
        return build_model(self.settings.model, self.tokenizer, seed=seed)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the decoder layers."""
        assert isinstance(model, LanguageModel)
        return list(model.lm.base_model.layers)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW; norms, biases and embeddings do not decay."""
        return adamw(model, self.settings.lr, weight_decay=self.settings.weight_decay, betas=(0.9, 0.95))

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step: rising from 0 during the warm-up, then linear from `lr` to `lr_final`."""
        settings = self.settings
        if step < settings.warmup_steps:
            return settings.lr * (step + 1) / settings.warmup_steps
        share = min((step - settings.warmup_steps) / max(settings.steps - settings.warmup_steps, 1), 1.0)
        return settings.lr + (settings.lr_final - settings.lr) * share

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the model before training."""
        metrics = self.evaluate(session)
        return {**metrics, "exactMatchUntrained": metrics["exactMatch"]}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the cross-entropy of the right answers, summed over their tokens."""
        with session.data_wait:
            found = answers(self.settings, self.tokenizer, batch.ids.cpu())
            tokens, labels = found.tokens.to(batch.ids.device), found.labels.to(batch.ids.device)
        labels = labels.masked_fill(batch.weights[:, None] == 0, IGNORE)
        loss = session.parallel.forward(tokens, labels)
        count = (labels != IGNORE).sum()
        documents, lengths = batch.weights.sum(), (tokens != self.tokenizer.pad_token_id).sum(-1) + 1
        statistics = {
            "tokens": Mean((lengths * batch.weights).sum(), documents),
            "completionTokens": Mean(count.float(), documents),
        }
        return LossOutput(loss, statistics, count)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return loss and perplexity of the right answers, and the share that greedy decoding gives exactly."""
        session.parallel.module.eval()
        found = score_answers(session, self.settings, self.tokenizer)
        session.parallel.module.train()
        loss = float(found.loss.sum() / found.tokens.sum())
        return {
            "evalLoss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "exactMatch": float(found.exact.mean()),
        }

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the loss of the right answers."""
        return metrics.get("evalLoss")

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings = self.settings
        names = ("exactMatch", "exactMatchUntrained", "evalLoss", "perplexity")
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
