"""Fine-tuning of a causal language model as a workload of the training loop."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.data.source import check_same_data
from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.optimizers import adamw, muon
from torchyard_trainers.core.quantization import BLOCK, check_installed, quantize_frozen
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload, evaluated, ids_of_step
from torchyard_trainers.lm.agreement import check_agreement, check_generation
from torchyard_trainers.lm.data.batches import Batch
from torchyard_trainers.lm.data.datasets import Datasets, RecordPrompts
from torchyard_trainers.lm.data.prompts import Prompts
from torchyard_trainers.lm.document_attention import use_document_attention
from torchyard_trainers.lm.evaluation import Result, answers, score_answers, seen_on
from torchyard_trainers.lm.folder import (
    check_learns_tokens,
    end_tokens,
    set_end_tokens,
)
from torchyard_trainers.lm.functions.tools import Tools
from torchyard_trainers.lm.generation.completions import Completed, Judge, complete, means, rows_of_table, write_table
from torchyard_trainers.lm.generation.engine import Engine
from torchyard_trainers.lm.generation.tool_engine import ToolEngine, ToolUse
from torchyard_trainers.lm.identity import identity_of
from torchyard_trainers.lm.methods.preferences import Preferences, TaskAnswers, objective_of
from torchyard_trainers.lm.methods.reinforcement import Reinforcement, engine_of, sampling_of
from torchyard_trainers.lm.models import LanguageModel, decoder_layers, vision_of
from torchyard_trainers.lm.origin import Origin
from torchyard_trainers.lm.params import with_steps
from torchyard_trainers.lm.scoring import Reference
from torchyard_trainers.lm.settings import PAIRED, PREFERENCES, REINFORCED, Settings
from torchyard_trainers.lm.summary import summary_of


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
        self.average_decay = settings.ema
        self.export_dtype = settings.export_dtype
        self.save_every = settings.steps_per_rollout
        self.planned_step = settings.sft_steps
        self.identity: Mapping[str, str | int | float] = identity_of(settings)
        self.architecture = ["trainer.name"]
        self._origin = Origin(settings)
        if settings.pretrained is None:
            # No process has the memory of a large model, and peft cannot adapt the fake tensors of a forecast.
            self.deferred = settings.lora_rank is not None or not settings.model.startswith("tiny")
            self.architecture.append("trainer.params.model")
        else:
            self.pretrained = self._origin.pretrained
        if self.deferred or self.pretrained is not None:
            self.identity = {**self.identity, "seed": settings.seed}  # of what no file has, adapters and heads
        if settings.lora_rank is not None:
            self.architecture.append("trainer.params.lora_alpha")
        self._notes: list[str] = []
        self._functions: Tools | None = None
        if settings.tools:
            self._functions = Tools(settings.tools, seconds=settings.tool_seconds, workers=settings.tool_workers)
            schemas = json.dumps(self._functions.schemas)
            self.settings = settings = msgspec.structs.replace(settings, tool_schemas=schemas)
        self._objective = objective_of(settings) if settings.method in PREFERENCES else None
        self._data = self._opened() if settings.reads_files else None
        if self._data is not None:
            self._notes += self._data.notes
            self._count_epochs(self._data)
        settings = self.settings
        if self._data is not None and settings.method not in REINFORCED:
            self.source = self._data.train
        elif self._data is not None:
            self.identity = {**self.identity, "dataset": self._data.fingerprint}
        self._completed: list[Completed] = []
        self._compared = False  # the prompts of all ranks
        self._agrees = False  # the model, with that of transformers
        self._started = False
        self._reference: Reference | None = None
        self._reinforcement: Reinforcement | None = None
        self._preferences: Preferences | None = None

    def _count_epochs(self, data: Datasets) -> None:
        """Set the number of steps, if it follows from that of the records."""
        if self.settings.epochs is None or data.train is None:
            return
        self.settings = settings = with_steps(self.settings, len(data.train))
        self.total_steps = settings.steps
        self._notes.append(
            f"trainer.params.epochs: {settings.epochs:g} of {len(data.train):,} samples are {settings.steps:,} steps"
        )

    def _opened(self) -> Datasets:
        """Open the files of `data` and `validation`."""
        self.settings, note = self._origin.fitted(self.settings)
        self._notes += [note] if note else []
        return self._origin.opened(self.settings)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return self._origin.tokenizer

    @cached_property
    def _prompts(self) -> Prompts:
        if self._data is None:
            return Prompts(self.settings, self.tokenizer)
        return RecordPrompts(self.settings, self.tokenizer, self._data)

    @cached_property
    def _tools(self) -> ToolUse | None:
        if self._functions is None or self._data is None:
            return None
        form = self._data.chat.tool_format(self._functions.schemas)
        return ToolUse(self._functions, form, self.tokenizer, self._prompts.ends, self.settings.max_turns)

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self.settings, self._prompts.decode)

    def build(self) -> nn.Module:
        """See `Workload`."""
        settings = self.settings
        model = self._origin.model()
        ends = end_tokens(self.tokenizer, model.lm, self._data.turn_ends if self._data is not None else ())
        self._prompts.end_at(ends)
        set_end_tokens(model.lm, ends)
        if self._origin.images is not None and only_shapes():
            raise ConfigError(
                f"trainer.params.pretrained: {settings.pretrained} reads images, of which every sample has others: a "
                "forecast is not available; trainer.mode: bench measures steps"
            )
        if settings.lora_rank is not None:
            targets = list(settings.lora_targets) or "all-linear"
            model.lm = add_lora(
                model.lm,
                rank=settings.lora_rank,
                alpha=settings.lora_alpha,
                dropout=settings.lora_dropout,
                targets=targets,
                whole=settings.modules_to_save,
            )
        if settings.freeze_vision:
            vision_of(model.lm).requires_grad_(requires_grad=False)
        if settings.quantize is not None:
            check_installed(f"trainer.params.quantize: {settings.quantize}")
            if not quantize_frozen(model.lm):
                raise ConfigError(
                    f"trainer.params.quantize: {settings.quantize}, but the model has no frozen linear layer "
                    f"whose rows are a multiple of {BLOCK} numbers; remove it"
                )
        if settings.add_tokens:
            check_learns_tokens(model.lm)
        if settings.packs and not settings.compile:  # compiled blocks would be made again for each list of documents
            use_document_attention(model.lm)
        self._reference = Reference(model) if settings.needs_reference else None
        if settings.method in REINFORCED:
            self._reinforcement = Reinforcement(settings, self._prompts, self._judge, self._reference, self._tools)
        if self._objective is not None:
            answers = self._data or TaskAnswers(settings, self.tokenizer)
            self._preferences = Preferences(settings, answers, self._objective, self._reference)
        return model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the decoder layers."""
        assert isinstance(model, LanguageModel)
        return decoder_layers(model.lm)

    def optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        """Return the optimizer of the parameters; norms, biases and embeddings do not decay."""
        settings = self.settings
        rates = {"value_head.*": settings.value_lr_scale} if settings.method == "ppo" else {}
        if settings.optimizer == "muon":
            return muon(model, settings.lr, weight_decay=settings.weight_decay, rates=rates)
        bits: Literal[8, 32] = 8 if settings.optimizer == "adamw8bit" else 32
        return adamw(model, settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.95), rates=rates, bits=bits)

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
        self._check_trains()
        metrics = self.evaluate(session)
        names = [name for name in ("exactMatch", "evalLoss", "evalReward") if name in metrics]
        records = self._data.metrics if self._data is not None else {}
        return {**metrics, **{f"{name}Untrained": metrics[name] for name in names}, **records}

    def _check_trains(self) -> None:
        if self._data is not None and self._data.train is None:
            raise ConfigError(
                "trainer.params.data: is not set, and validation is for mode eval only; set data, or trainer.mode: eval"
            )

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        """Make the rollout that starts at this step, or score its pairs with the reference."""
        checked = {}
        if self._data is not None and not only_shapes():
            checked = self._data.check_beside(starts=session.world.is_main)
        shown = (step + 1) % self.log_every == 0 or step + 1 == self.total_steps
        return {**(checked if shown else {}), **self._prepared(session, step)}

    def _prepared(self, session: Session, step: int) -> dict[str, float]:
        own = step - self.settings.sft_steps
        # With dropout, a policy would have other probabilities in a step than in its rollout or as the reference.
        session.parallel.module.train(self.settings.method == "sft" or own < 0)
        self._check_trains()
        if self._data is not None and self.source is None and not self._compared:
            check_same_data(self._data, session.world)
            self._compared = True
        if self._reinforcement is not None and not self._started:
            self._reinforcement.check(session)
            self._started = True
        if own < 0:
            return {}
        if self._reinforcement is not None:
            return self._reinforcement.prepare(session, own)
        if self._preferences is not None:
            return self._preferences.prepare(session, ids_of_step(self, step), own)
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
            read = self._documents(batch)
            tokens, labels, document, sizes = (
                read[name].to(batch.ids.device) for name in ("tokens", "labels", "document", "sizes")
            )
        counts = batch.weights
        if "right" in read:  # answers with labels
            counts = counts * read["right"].to(batch.ids.device)
        labels = labels.masked_fill(counts[document] == 0, IGNORE)
        packing: dict[str, Any] = {}
        if "positions" in read:
            packing = {"position_ids": read["positions"].to(batch.ids.device), "documents": read["inputs"]}
        if self.settings.method == "ppo":
            # Every parameter needs a gradient, for ddp: that of the value head is 0.
            scores = session.parallel.forward(tokens, labels, scores=True)
            loss = -scores.log_probability.sum() + 0 * scores.value.sum()
        else:
            seen = seen_on(read.get("seen"), tokens.device)
            loss = session.parallel.forward(tokens, labels, **packing, **seen)
        count, documents = (labels != IGNORE).sum(), batch.weights.sum()
        statistics = {
            "tokens": Mean((sizes * batch.weights).sum(), documents),
            "completionTokens": Mean(count.float(), counts.sum()),
        }
        return LossOutput(loss, statistics, count)

    def _documents(self, batch: MicroBatch) -> dict[str, Any]:
        """Return right answers with their prompts: `tokens`, `labels`, `document` and `sizes`."""
        if self._data is None:
            found = answers(self.settings, self.tokenizer, batch.ids.cpu())
            number = torch.arange(len(found.tokens), device=found.tokens.device)[:, None]
            sizes = (found.tokens != self.tokenizer.pad_token_id).sum(-1) + 1
            return {"tokens": found.tokens, "labels": found.labels, "document": number, "sizes": sizes}
        if batch.data is None:
            assert isinstance(self._prompts, RecordPrompts)
            return self._prompts.documents(batch.ids)
        half = len(batch.weights)  # of pairs, the chosen answers
        return {name: each[:half] if self.settings.method in PAIRED else each for name, each in batch.data.items()}

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Evaluate when due, and after the supervised steps."""
        own = step - self.settings.sft_steps
        if step == self.total_steps and self._data is not None:
            self._data.end_check()
        if own > 0 and self._reinforcement is not None:
            self._reinforcement.finished(own)
        if own == 0 and step:
            metrics = evaluated(self, session)
            return {**metrics, **{f"{name}Supervised": metrics[name] for name in ("exactMatch",) if name in metrics}}
        return super().after_step(session, step, means)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return loss and perplexity of the right answers, and the share that greedy decoding gives exactly."""
        settings, data = self.settings, self._data
        if session.world.is_main and not only_shapes():
            for note in self._notes:
                say(note)
            self._notes = []
        session.parallel.module.eval()
        if self.pretrained is not None and not self._agrees and not only_shapes():
            folder = str(self.pretrained.folder)
            check_agreement(session, folder, packs=settings.packs, compiled=settings.compile)
            if settings.eval_completions or self._reinforcement is not None:
                check_generation(session, folder, compiled=settings.compile)
            self._agrees = True
        metrics = self._preferences.evaluate(session) if self._preferences is not None else {}
        found: Result | None = None
        if data is None:
            found = score_answers(session, self._task_answers, settings.eval_samples, at_once=settings.eval_batch)
        elif settings.method not in REINFORCED:
            found = score_answers(session, data.answers, data.held_out_count, at_once=settings.eval_batch)
        self._completed = self._complete(session)  # before any number is looked at: a forecast comes as far as that
        if found is not None and found.tokens.any():
            loss = float(found.loss.sum() / found.tokens.sum())
            metrics |= {"evalLoss": loss, "perplexity": math.exp(min(loss, 700.0))}
        metrics |= means(self._completed)
        if found is not None and (data is None or data.has_answers):
            metrics["exactMatch"] = float(found.exact[found.tokens > 0].mean())
        session.parallel.module.train()
        return metrics

    def _complete(self, session: Session) -> list[Completed]:
        """Complete held-out prompts, if the parameters say so."""
        settings, data = self.settings, self._data
        if not settings.eval_completions or (data is not None and not data.asking):
            return []
        prompts, count = self._prompts, settings.eval_completions
        ways = sampling_of(settings, prompts, greedy=True), sampling_of(settings, prompts, held_out=True)
        most = count if data is None else min(count, len(data.asking))
        engine: Engine = engine_of(session, prompts, compiled=settings.compile)
        if self._tools is not None:
            engine = ToolEngine(engine, self._tools, session)
        return complete(session, settings, prompts, engine=engine, judge=self._judge, samplings=ways, count=most)

    def table(self) -> list[dict[str, str | float]]:
        """See `ShowsTable`: completions of the last evaluation."""
        return rows_of_table(self._completed)

    def write_report(self, session: Session, folder: Path, _curves: Path) -> list[Path]:
        """See `WritesReport`: a table of completions."""
        if not self._completed and self.settings.eval_completions:  # the last evaluation was in an earlier round
            session.parallel.module.eval()
            self._completed = self._complete(session)
            session.parallel.module.train()
        return write_table(self.table(), folder) if self._completed and session.world.is_main else []

    def _task_answers(self, positions: list[int]) -> Batch:
        return answers(self.settings, self.tokenizer, positions, held_out=True)

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the loss of the right answers; of records with prompts only, the negative reward."""
        if "evalLoss" in metrics:
            return metrics["evalLoss"]
        return -metrics["evalReward"] if "evalReward" in metrics else None

    def state(self) -> dict[str, Any]:
        """Return the weights of the reference."""
        return {"reference": self._reference.state()} if self._reference is not None else {}

    def assets(self) -> Mapping[str, Path | str]:
        """Return the files of the tokenizer, with its chat template, and of what reads images."""
        return self._origin.assets()

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        count = self.settings.eval_samples if self._data is None else self._data.held_out_count
        return summary_of(self.settings, metrics, steps=self.total_steps, count=count)
