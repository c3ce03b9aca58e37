"""The interface between the training loop and a workload."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from torchyard_trainers.core.companions import MovingAverage
from torchyard_trainers.core.data.packing import Packing
from torchyard_trainers.core.data.source import Source
from torchyard_trainers.core.data_wait import DataWait
from torchyard_trainers.core.optimizers import AdamW, trainable
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.sampler import order_key, samples_of_step
from torchyard_trainers.core.weights import default_initialize
from torchyard_trainers.core.world import World


class MicroBatch(NamedTuple):
    """The samples of one forward pass: global ids [m] int64, and weights [m] float32.

    A weight is 1, or 0 for padding, which repeats a sample that is counted elsewhere.
    """

    ids: Tensor
    weights: Tensor
    step: int = 0  # of the optimizer; 0 is the first
    data: Any = None  # what `Workload.source` read for these ids, with its tensors on the device


class Mean(NamedTuple):
    """A statistic with a divisor of its own: a weighted sum over a micro-batch, and what it is summed over."""

    total: Tensor
    count: Tensor


class LossOutput(NamedTuple):
    """Weighted sums over a micro-batch: the loss (with gradient) and named statistics (without).

    `count` is the number of parts of the loss, for example of completion tokens, each times the weight of its sample.
    Loss and statistics are then divided by the count of the whole global batch, in place of the number of samples, so
    that a step is the same however samples are distributed over ranks and micro-batches. A statistic that is a mean
    over something else is a `Mean`.
    """

    loss: Tensor
    statistics: Mapping[str, Tensor | Mean]
    count: Tensor | None = None


@dataclass(frozen=True)
class Session:
    """The model in training and its environment, passed to a workload's methods."""

    parallel: Parallel  # `.forward` to train; `.module` to evaluate
    precision: Precision
    world: World
    reporter: Reporter
    micro_batch: int | None  # samples of one forward pass on one rank; None: all samples of the rank
    data_wait: DataWait = field(default_factory=DataWait)  # `with session.data_wait:` around reading samples
    packing: Packing | None = None  # micro-batches by tokens, in place of `micro_batch`
    average: MovingAverage | None = None  # of the weights, if `Workload.average_decay` is set

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the moving average, if there is one, takes the place of the weights."""
        return self.average.in_place() if self.average is not None else nullcontext()


class Workload(Protocol):
    """A model, its data and its loss. A step's loss must be a pure function of (parameters, state, sample ids).

    A subclass defines `total_steps`, `global_batch`, `identity`, `build`, `learning_rate` and `loss`; everything else
    has a default here.
    """

    total_steps: int
    global_batch: int
    dataset_size: int | None = None  # samples, in a new order every epoch; None: those of `source`, or endless
    log_every: int = 20  # optimizer steps between two log lines
    eval_every: int = 100  # optimizer steps between evaluations; `evaluation.everySteps` of the config overrides it
    max_grad_norm: float = 1.0
    average_decay: float | None = None  # of an exponential moving average of the weights; see `evaluate`
    save_every: int = 1  # checkpoints only after steps that are multiples of it: a rollout lasts that many steps
    planned_step: int = 0  # the step that takes most memory, which a forecast is made of
    reads_values: bool = False  # of tensors, between steps: a forecast needs real ones, and does not try shapes first
    pretrained: Pretrained | None = None  # a Hugging Face folder: weights for the model that `build` makes without them
    export_dtype: str | None = None  # of weights in Hugging Face formats; None: that of `pretrained`, else float32
    deferred: bool = False  # `build` makes a model without weights, also without `pretrained`; see `initialize`
    entry_points: Sequence[str] = ()  # methods of the model, besides `forward`, that need its whole parameters
    source: Source | None = None  # reads the samples ahead of time; None: `loss` creates them from their ids
    read_workers: int | None = None  # processes of each rank that read from `source`; None: one a core; 0: none
    mixes_samples: bool = False  # losses depend on other samples (negatives): `auto` must not split micro-batches
    identity: Mapping[str, str | int | float]  # settings of data and model; a resumed run must have the same
    architecture: Sequence[str] = ()  # keys of `identity` that weights depend on beyond their shapes
    fingerprints: Mapping[str, str] = MappingProxyType({})  # like those: what decides what the same weights compute

    def build(self) -> nn.Module:
        """Build the model on the CPU, with the same weights in every process.

        With `pretrained` or `deferred`, parameters are created on the meta device, so that a large model needs no
        memory here; buffers get their values. Weights are read, or come from `initialize`, once the model is sharded.
        Frozen parameters of such a model are held in the precision that computes.
        """

    def initialize(self, model: nn.Module, module: nn.Module, name: str) -> None:
        """Fill the parameters of one module of a deferred model that has no pretrained weights.

        `module` has no modules below it and is on the CPU, whose generator is seeded by `name`: the weights are the
        same at every world size. The default asks the transformers model around it, or calls `reset_parameters`.
        """
        default_initialize(model, module, name)

    def blocks(self, _model: nn.Module) -> list[nn.Module]:
        """Return the units of sharding, recomputation and compilation, in order of use; []: the whole model."""
        return []

    def optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        """Create the optimizer of a (possibly sharded) model, or several of different parameters.

        They step once per global batch. Groups by parameter name, Muon and others: `core.optimizers`.
        """
        return AdamW(trainable(model).values(), lr=self.learning_rate(0), fused=True)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step (0 is the first) for all groups; a group's `lr_scale` multiplies it."""

    def begin(self, _session: Session) -> dict[str, float]:
        """Run once before the first step of a new run (not of a resumed one); return metrics."""
        return {}

    def prepare(self, _session: Session, _step: int) -> dict[str, float]:
        """Run before the micro-batches of a step, outside of autocast and accumulation; return metrics. Collective.

        Rollouts belong here: every `save_every` steps, in phase `rollout` of `session.reporter`. A resumed run calls it
        for its first step, which is then a multiple of `save_every`, so that what it holds is no part of `state`.
        """
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the *sum* of the samples' losses, each times its weight; the loop divides by `global_batch`.

        With `LossOutput.count`, the loop divides by the count of the global batch instead.

        Call the model as `session.parallel.forward(...)` only: sharded parameters are gathered there.
        `batch.ids` are below `dataset_size` if it is set, and never repeat otherwise.
        """

    def after_step(self, session: Session, step: int, _means: Mapping[str, float]) -> dict[str, float]:
        """Run after `step` finished steps (evaluate, renew a baseline); return new metrics, equal on every rank.

        `means` are the last step's means over the global batch: loss, statistics, gradient norm.
        """
        if step % self.eval_every and step != self.total_steps:
            return {}
        return evaluated(self, session)

    def evaluate(self, _session: Session) -> dict[str, float]:
        """Evaluate the model on the fixed evaluation set; return metrics, equal on every rank. Collective.

        With `average_decay`, the weights are the moving average (see `evaluated`), as those of the final model are.
        Call `session.parallel.module` in `eval` mode, equally often on every rank, and put it back in `train` mode.
        """
        return {}

    def score(self, _metrics: Mapping[str, float]) -> float | None:
        """Return a score from the metrics of `after_step`, lower is better; None if they hold no evaluation."""
        return None

    def state(self) -> dict[str, Any]:
        """Return further replicated tensors that a resumed run needs; a restore fills them in place.

        Evaluation and export load only the weights: what they need, such as a moving average of the weights, must be a
        part of the model (for example a `core.frozen.frozen` copy).
        """
        return {}

    def assets(self) -> Mapping[str, Path | str]:
        """Return files that an export of the model needs (tokenizer, chat template), by path: a file, or text."""
        return {}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return a summary of the result; `text` is a sentence."""
        return {**metrics, "text": f"loss {metrics['loss']:.4g} after {self.total_steps} steps"}


MEMBERS = sorted({*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))})


def average_of(work: Workload, parallel: Parallel) -> MovingAverage | None:
    """Return the moving average of the weights that the workload asks for, as they are now."""
    return MovingAverage(parallel.module, work.average_decay) if work.average_decay is not None else None


def evaluated(work: Workload, session: Session) -> dict[str, float]:
    """Evaluate during training, in phase `eval`: the moving average of the weights, if there is one. Collective."""
    session.reporter.phase("eval")
    with session.averaged():
        return work.evaluate(session)


def size_of(work: Workload) -> int | None:
    """Return the number of different samples; None: ids never repeat."""
    if work.dataset_size is None and work.source is not None:
        return len(work.source)
    return work.dataset_size


def ids_of_step(work: Workload, step: int) -> Sequence[int]:
    """Return the sample ids of a step (0 is the first), `global_batch` of them, the same in every process."""
    size = size_of(work)
    key = order_key(json.dumps(dict(work.identity), sort_keys=True), 0) if size is not None else 0
    return samples_of_step(step, work.global_batch, size=size, key=key)


def is_boundary(work: Workload, done: int) -> bool:
    """Return whether a checkpoint may be saved after `done` steps."""
    return done % work.save_every == 0 or done == work.total_steps


def epochs(work: Workload, step: int) -> float:
    """Return the epochs after `step` steps; 0 for an endless data set."""
    size = size_of(work)
    return step * work.global_batch / size if size is not None else 0.0


@runtime_checkable
class WritesReport(Protocol):
    """A workload that writes a report of its evaluation."""

    def write_report(self, session: Session, folder: Path, curves: Path) -> list[Path]:
        """Write the report of the last evaluation on rank 0; return its files. Collective.

        Args:
            session: the session of the evaluated model.
            folder: created if it does not exist.
            curves: `metrics.jsonl` of the run; it may be missing.
        """


@runtime_checkable
class ShowsTable(Protocol):
    """A workload whose evaluations have a table: of sample completions, for example."""

    def table(self) -> Sequence[Mapping[str, str | float]]:
        """Return the rows of the last evaluation, the same names in each; [] if there are none."""


def write_report(work: Workload, session: Session, folder: Path, curves: Path) -> None:
    """Write the workload's report, if it has one, and register its files as artifacts. Collective."""
    if not isinstance(work, WritesReport):
        return
    files = work.write_report(session, folder, curves)
    if session.world.is_main:
        for path in files:
            session.reporter.artifact(f"{folder.name}/{path.name}", path)
