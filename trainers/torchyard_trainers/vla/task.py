"""Behaviour cloning of a vision-language-action model as a workload of the training loop."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.optimizers import adamw
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload
from torchyard_trainers.vla import flow, report, tabletop
from torchyard_trainers.vla.demonstrations import Tabletop
from torchyard_trainers.vla.evaluation import closed_loop, flow_loss
from torchyard_trainers.vla.models import PRESETS, Policy, build_policy
from torchyard_trainers.vla.normalization import as_json
from torchyard_trainers.vla.params import Settings

# Parts of the model that learn with `expertLrScale`.
EXPERT = ("pi0.model.dit.*", "pi0.embed_action_time.*", "pi0.action_out_proj.*")


class VisionLanguageAction(Workload):
    """The workload `vla`."""

    deferred = True

    def __init__(self, settings: Settings) -> None:
        """Store resolved parameters."""
        self.settings = settings
        self.total_steps = settings.steps
        self.global_batch = settings.batch
        self.log_every = settings.log_every
        self.eval_every = settings.eval_every
        self.max_grad_norm = settings.max_grad_norm
        own = ("seed", "model", "objects", "chunk", "draws", "normalization")
        self.identity: Mapping[str, str | int | float] = {
            "trainer.name": "vla",
            **{f"trainer.params.{name}": getattr(settings, name) for name in own},
            "global batch (trainer.params.batch)": settings.batch,
            "seed": settings.seed,
        }
        self.architecture = ("trainer.name", "trainer.params.model")
        self.table = Tabletop(settings, PRESETS[settings.model]["vlm_config"]["vision_config"]["image_size"])

    def build(self) -> nn.Module:
        """See `Workload`."""
        settings = self.settings
        policy = build_policy(settings.model, chunk=settings.chunk)
        policy.freeze(vision=settings.freeze_vision, language=settings.freeze_language)
        return policy

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the layers of vision tower, language model and expert."""
        assert isinstance(model, Policy)
        return model.blocks

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW; norms, biases and embeddings do not decay, the expert has a learning rate of its own."""
        settings = self.settings
        return adamw(
            model,
            settings.lr,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            rates=dict.fromkeys(EXPERT, settings.expert_lr_scale),
        )

    def learning_rate(self, step: int) -> float:
        """See `Workload`."""
        settings = self.settings
        final = min(settings.lr_final / settings.lr, 1.0) if settings.lr else 0.0
        return settings.lr * factor(settings.schedule, step, settings.steps, warm_up=settings.warmup_steps, final=final)

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the model before training."""
        metrics = self.evaluate(session)
        return {**metrics, "successRateUntrained": metrics["successRate"]}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the flow-matching loss, summed over valid action steps."""
        settings, model = self.settings, session.parallel.module
        with session.data_wait:
            shown = self.table.demonstrations(batch.ids)
            keys = split_keys(self.table.keys(batch.ids, "flow"), settings.draws).flatten()
            draws = flow.draw(keys, settings.chunk, model.action_size)
        size = shown.actions.shape[-1]
        actions = shown.actions.repeat_interleave(settings.draws, 0)
        padded = nn.functional.pad(actions, (0, model.action_size - size))
        velocity = session.parallel.forward(shown.observation, flow.noisy(padded, draws), draws.time)
        losses = flow.flow_loss(velocity[..., :size], actions, draws.noise[..., :size])
        losses = losses.unflatten(0, (-1, settings.draws)).mean(1)
        counted = shown.valid * batch.weights[:, None]
        count = counted.sum()
        return LossOutput((losses * counted).sum(), {"validActions": Mean(count, batch.weights.sum())}, count)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return the flow loss of held-out demonstrations, and the rates of closed-loop episodes."""
        session.parallel.module.eval()
        metrics = {"flowLoss": flow_loss(session, self.settings, self.table)}
        metrics |= closed_loop(session, self.settings, self.table)
        session.parallel.module.train()
        return metrics

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the rate of failed episodes, the flow loss between equal ones."""
        if "successRate" not in metrics:
            return None
        return 1 - metrics["successRate"] + 1e-3 * metrics["flowLoss"]

    def assets(self) -> Mapping[str, Path | str]:
        """Return the statistics that state and actions are normalised with."""
        kind: Any = self.settings.normalization
        return {"normalization.json": as_json(kind, tabletop.STATISTICS)}

    def write_report(self, session: Session, folder: Path, _curves: Path) -> list[Path]:
        """See `WritesReport`."""
        return report.write(session, self.settings, self.table, folder)

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings = self.settings
        names = [name for name in metrics if name.startswith("successRate")]
        text = (
            f"{settings.model}: success rate {metrics['successRate']:.3f} over {settings.eval_episodes} closed-loop "
            f"episodes after {self.total_steps} steps, untrained "
            f"{metrics.get('successRateUntrained', math.nan):.3f}; wrong object {metrics['wrongObjectRate']:.3f}; "
            f"flow loss {metrics['flowLoss']:.3f}"
        )
        return {
            "trainer": "vla",
            "model": settings.model,
            "steps": self.total_steps,
            **{name: metrics[name] for name in ("flowLoss", "wrongObjectRate", *names)},
            "text": text,
        }
