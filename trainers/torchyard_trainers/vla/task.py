"""Behaviour cloning of a vision-language-action model as a workload of the training loop."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.checkpoints.checkpoint import GEOMETRY, HEAD, PROMPT
from torchyard_trainers.core.data.loader import on_device
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.geometry import geometry_of
from torchyard_trainers.core.image_processor import HALVES, check_colours
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.metrics.plots import write_curve
from torchyard_trainers.core.optimizers import adamw
from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.core.vocabulary import PRETRAINED, Vocabulary, open_vocabulary
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload
from torchyard_trainers.vla import models, paligemma, report, tabletop
from torchyard_trainers.vla.data.augmentation import augmented
from torchyard_trainers.vla.data.recordings import Recordings, evenly, open_recordings
from torchyard_trainers.vla.demonstrations import Tabletop, keys_of
from torchyard_trainers.vla.evaluation import closed_loop, held_out_loss, play_robot
from torchyard_trainers.vla.heads.objective import Objective
from torchyard_trainers.vla.heads.objectives import objective_of
from torchyard_trainers.vla.heads.own import build_own, policy_class
from torchyard_trainers.vla.identity import identity_of
from torchyard_trainers.vla.models import build_policy, config_of, parts_of
from torchyard_trainers.vla.observation import Demonstration
from torchyard_trainers.vla.robot import Robot, open_robot
from torchyard_trainers.vla.settings import Settings

# Parts of the model that learn with `expertLrScale`.
EXPERT = ("pi0.model.dit.*", "pi0.embed_action_time.*", "pi0.action_out_proj.*")
HEAD_PARTS = ("head.*",)


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
        self.average_decay = settings.ema
        self.read_workers = settings.workers
        self.identity: Mapping[str, str | int | float] = identity_of(settings)
        self.architecture = ["trainer.name"]
        self.architecture += ["trainer.params.model"] if settings.pretrained is None else []
        self.architecture += ["trainer.params.lora_alpha"] if settings.lora_rank is not None else []
        self.tabletop: Tabletop | None = None
        self.source: Recordings | None = None
        self._config: Any = None  # of a model of transformers, and its type
        self._kind = ""
        self._own = policy_class(settings.policy) if settings.policy is not None else None
        self.deferred = self._own is None
        vocabulary = None if self._own is not None else self._open_model()
        size = self._own.image_size if self._own is not None else parts_of(self._config).vision_config.image_size
        if settings.recorded:
            self.source, self._held_out = open_recordings(settings, size, vocabulary)
        else:
            self.tabletop = Tabletop(settings, size, vocabulary)
        self._made: Recordings | Tabletop = self.source or self.tabletop  # type: ignore[assignment]
        self._state, self._action = self._sizes()
        self.fingerprints = {PROMPT: self._made.instructions.fingerprint}
        if self._own is None:
            self._fit()
            self.fingerprints[GEOMETRY] = geometry_of(self._config)
        if settings.head == "tokens":
            self.fingerprints[HEAD] = paligemma.ANSWERS
        self.objective: Objective = objective_of(settings, self._config, parts=self._action)
        self.robot: Robot | None = None
        if settings.environment is not None and self.source is not None:
            self.robot = open_robot(settings, self.source, size)

    def _open_model(self) -> Vocabulary | None:
        """Read the config of the model; return what encodes its instructions, None: words.

        Raises:
            ConfigError: the folder has no such model, or its tokenizer or images are of another kind.
        """
        settings = self.settings
        folder = Path(settings.pretrained) if settings.pretrained is not None else None
        self._config = config_of(settings.model, folder, chunk=settings.chunk)
        self._kind = str(self._config.model_type)
        if folder is not None:
            prefix, renamed = ("pi0.", models.RENAMED) if self._kind == "pi0" else ("vlm.", paligemma.RENAMED)
            self.pretrained = Pretrained(folder, prefix=prefix, renamed=renamed)
            check_colours(folder, PRETRAINED, HALVES)
        tokenizer = Path(settings.tokenizer) if settings.tokenizer is not None else None
        vocabulary = open_vocabulary(folder, tokenizer, source=models.TOKENIZER_SOURCE)
        if vocabulary is not None:
            vocabulary.check_fits(parts_of(self._config).text_config.vocab_size)
        return vocabulary

    def build(self) -> nn.Module:
        """See `Workload`."""
        settings, sizes = self.settings, {"state": self._state, "action": self._action}
        if settings.policy is not None:
            views = self.source.views if self.source is not None else 1
            vocabulary = self._made.instructions.highest + 1
            given = {**sizes, "chunk": settings.chunk, "views": views, "vocabulary": vocabulary}
            return build_own(settings.policy, seed=settings.seed, **given)
        bins = settings.bins if settings.head == "tokens" else None
        chosen: dict[str, Any] = {"bins": bins, "head": settings.head, "pre_norm": settings.pre_norm}
        policy = build_policy(self._config, **sizes, horizon=settings.chunk, **chosen)
        if settings.lora_rank is not None:
            targets = settings.lora_targets or "all-linear"
            add_lora(policy.language, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets)
            policy.freeze_idle()
        policy.freeze(vision=settings.freeze_vision, language=settings.freeze_language)
        return policy

    def _fit(self) -> None:
        """Check that the model takes state, actions and instructions; one with random weights is made for them.

        Raises:
            ConfigError: naming what is too large.
        """
        config, settings = self._config, self.settings
        origin = f"trainer.params.{'model' if settings.pretrained is None else 'pretrained'}"
        if settings.head != "flow" and self._kind != "paligemma":
            raise ConfigError(
                f"{origin}: is a {self._kind}, but trainer.params.head {settings.head} needs a paligemma; change one"
            )
        sizes = {"max_state_dim": self._state, "max_action_dim": self._action} if self._kind == "pi0" else {}
        for name, size in sizes.items():
            if size > getattr(config, name) and settings.pretrained is not None:
                raise ConfigError(
                    f"trainer.params.pretrained: {name} of {settings.pretrained} is {getattr(config, name)}, but the "
                    f"data has {size} parts; use another model"
                )
            setattr(config, name, max(size, getattr(config, name)))
        words = parts_of(config).text_config.vocab_size
        answers = settings.bins + settings.chunk * self._action if settings.head == "tokens" else 0
        if self._made.instructions.highest >= words - answers:
            bins = f" and the actions {answers}" if answers else ""
            fix = ", fewer trainer.params.bins or a shorter trainer.params.chunk" if answers else ""
            raise ConfigError(
                f"{origin}: has {words} tokens, but the instructions need {self._made.instructions.highest + 1}{bins}; "
                f"use a model with a larger vocabulary{fix}"
            )

    def _sizes(self) -> tuple[int, int]:
        """Return the parts of a state and of an action."""
        if self.source is not None:
            return self.source.state_size, self.source.action_size
        return tabletop.STATE_SIZE, tabletop.ACTION_SIZE

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the layers of vision tower, language model and expert."""
        blocks: list[nn.Module] = getattr(model, "blocks", [])  # type: ignore[assignment]
        return blocks

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW; norms, biases and embeddings do not decay, expert or head have a learning rate of their own."""
        settings = self.settings
        expert = EXPERT if self._kind == "pi0" else HEAD_PARTS if settings.head not in ("tokens", "policy") else ()
        return adamw(
            model,
            settings.lr,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            rates=dict.fromkeys(expert, settings.expert_lr_scale),
        )

    def learning_rate(self, step: int) -> float:
        """See `Workload`."""
        settings = self.settings
        final = min(settings.lr_final / settings.lr, 1.0) if settings.lr else 0.0
        return settings.lr * factor(settings.schedule, step, settings.steps, warm_up=settings.warmup_steps, final=final)

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the model before training."""
        if self.source is not None and session.world.is_main:
            for text in self.source.warnings():
                session.reporter.warn(text)
                say(text)
        metrics = self.evaluate(session)
        untrained = {"successRateUntrained": metrics["successRate"]} if "successRate" in metrics else {}
        name = self.objective.metric
        return {**metrics, f"{name}Untrained": metrics[name], **untrained}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the loss of the objective, summed over valid action steps."""
        settings = self.settings
        with session.data_wait:
            shown = self._shown(batch)
            keys = split_keys(keys_of(settings, batch.ids, "flow"), settings.draws)
            if self.source is not None:  # a frame has other times and noise in each epoch
                keys = split_keys(keys, 1, offset=batch.step).squeeze(-1)
        found = self.objective.losses(session.parallel.forward, shown, keys)
        counted = shown.valid * batch.weights[:, None]
        count = counted.sum()
        statistics = {name: Mean((each * counted).sum(), count) for name, each in found.statistics.items()}
        statistics["validActions"] = Mean(count, batch.weights.sum())
        return LossOutput((found.loss * counted).sum(), statistics, count)

    def _shown(self, batch: MicroBatch) -> Demonstration:
        if self.source is None:
            assert self.tabletop is not None
            return self.tabletop.demonstrations(batch.ids)
        shown = self.source.demonstrations(batch.data)
        if not self.settings.augment:
            return shown
        keys = split_keys(keys_of(self.settings, batch.ids, "augmentation"), 1, offset=batch.step)[:, 0]
        images = augmented(shown.observation.images, keys, self.settings.augment)
        return shown._replace(observation=shown.observation._replace(images=images))

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return the loss of held-out demonstrations, and on the tabletop the rates of closed-loop episodes."""
        settings, table, device = self.settings, self.tabletop, session.world.device
        count = settings.eval_samples if table is not None else min(settings.eval_samples, len(self._held_out))
        frames = range(count) if table is not None else evenly(len(self._held_out), count)

        def demonstrations(places: Sequence[int]) -> Demonstration:
            if table is not None:
                return table.demonstrations(torch.tensor(places, device=device), held_out=True)
            held_out = self._held_out
            return held_out.demonstrations(on_device(held_out.read([frames[each] for each in places]), device))

        session.parallel.module.eval()
        metrics = closed_loop(session, settings, self.objective, table) if table is not None else {}
        if self.robot is not None:
            metrics = play_robot(session, settings, self.objective, self.robot)
        metrics[self.objective.metric] = held_out_loss(session, settings, self.objective, demonstrations, count)
        session.parallel.module.train()
        return metrics

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the rate of failed episodes, the held-out loss between equal ones; of recordings that loss."""
        if "successRate" in metrics:
            return 1 - metrics["successRate"] + 1e-3 * metrics[self.objective.metric]
        return metrics.get(self.objective.metric)

    def assets(self) -> Mapping[str, Path | str]:
        """Return the statistics that state and actions are normalised with, and what encodes instructions."""
        return self._made.assets()

    def write_report(self, session: Session, folder: Path, curves: Path) -> list[Path]:
        """See `WritesReport`: pictures of closed-loop episodes, and of the success rate over steps."""
        if self.tabletop is not None:
            files = report.write(session, self.settings, self.objective, self.tabletop, folder)
        elif self.robot is not None:
            files = report.write_robot(session, self.settings, self.objective, self.robot, folder)
        else:
            return []
        return files + write_curve(folder, curves, "successRate", "success rate over steps") if files else []

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings, loss = self.settings, self.objective.metric
        names = [
            name
            for name in metrics
            if name.startswith(("successRate", loss, "wrongObjectRate", "episodeReturn", "maxReward"))
        ]
        model = settings.model if settings.pretrained is None else settings.pretrained
        text = f"{model}: {loss} {metrics[loss]:.3f} after {self.total_steps} steps"
        if "successRate" in metrics:
            text += (
                f"; success rate {metrics['successRate']:.3f} ({metrics['successRateLow']:.3f} to "
                f"{metrics['successRateHigh']:.3f} at 95 %) over {settings.eval_episodes} closed-loop episodes, "
                f"untrained {metrics.get('successRateUntrained', math.nan):.3f}"
            )
        if "wrongObjectRate" in metrics:
            text += f"; wrong object {metrics['wrongObjectRate']:.3f}"
        return {
            "trainer": "vla",
            "model": model,
            "steps": self.total_steps,
            **{name: metrics[name] for name in names},
            "text": text,
        }
