"""The seam between the loop and what is learned: everything below it is one workload's own folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from torchyard_trainers.core.order import order_key, samples_of_step
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.waits import Waits
from torchyard_trainers.core.world import World


class MicroBatch(NamedTuple):
    """What one forward pass works on: global sample ids [m] int64, and weights [m] float32.

    A weight is 1, or 0 for padding, which repeats a sample that counts elsewhere.
    """

    ids: Tensor
    weights: Tensor


class Terms(NamedTuple):
    """Sums over a micro-batch, weighted: the loss (with gradient) and named statistics (without)."""

    loss: Tensor
    statistics: dict[str, Tensor]


@dataclass(frozen=True)
class Session:
    """A model in training, as a workload's methods see it."""

    parallel: Parallel  # `.forward` to train; `.module` to evaluate
    precision: Precision
    world: World
    reporter: Reporter
    micro_batch: int | None  # samples of one forward pass on one rank; None: all that the rank has
    waits: Waits = field(default_factory=Waits)  # `with session.waits:` where a workload gets its samples


class Workload(Protocol):
    """A thing to train. Each step's loss must be a pure function of (parameters, workload state, sample ids).

    Who inherits from it says what is to be learned, `total_steps`, `global_batch`, `identity`, `build`, `learning_rate`
    and `loss`, and has the rest from here.
    """

    total_steps: int
    global_batch: int
    dataset_size: int | None = None  # samples of a finite set, in a new order every epoch; None: ids count on for ever
    log_every: int = 20  # optimizer steps between two lines of output
    eval_every: int = 100  # optimizer steps between evaluations; `evaluation.everySteps` of the config takes its place
    max_grad_norm: float = 1.0
    mixes_samples: bool = False  # a sample's loss depends on others of its micro-batch (negatives): `auto` splits none
    identity: Mapping[str, str | int | float]  # what the data and the model depend on; a resumed run must agree
    architecture: Sequence[str] = ()  # names of `identity` that weights of the same shapes mean nothing without

    def build(self) -> nn.Module:
        """Make the model on the CPU; the same weights in every process."""

    def blocks(self, _model: nn.Module) -> list[nn.Module]:
        """Give the units of sharding, recomputation and compilation, in order of use; none: the model is one."""
        return []

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Make the optimizer over (possibly sharded) parameters, in groups if need be.

        It steps when all gradients of the global batch are there; a GAN's two are two groups of one.
        """
        return AdamW(parameters, lr=self.learning_rate(0), fused=True)

    def learning_rate(self, step: int) -> float:
        """Give the rate of a step (0 is the first), for all groups; `lr_scale` of a group multiplies it."""

    def begin(self, _session: Session) -> dict[str, float]:
        """Act once before the first step of a run (not of a resumed one); give metrics."""
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> Terms:
        """Give the *sum* of the samples' losses, each times its weight; the loop divides it by `global_batch`.

        All of the forward pass goes through `session.parallel.forward`: what is sharded is whole only there.
        `batch.ids` are below `dataset_size` where there is one, and count on for ever where there is none.
        """

    def after_step(self, session: Session, step: int, _means: Mapping[str, float]) -> dict[str, float]:
        """Act after `step` finished steps (evaluate, renew a baseline); give new metrics, the same on every rank.

        `means` are those of the last step over the global batch: its loss, its statistics, its gradient norm.
        """
        if step % self.eval_every and step != self.total_steps:
            return {}
        session.reporter.phase("eval")
        return self.evaluate(session)

    def evaluate(self, _session: Session) -> dict[str, float]:
        """Measure the model on the fixed evaluation set, the same on every rank. Collective.

        Call `session.parallel.module`, in `eval` mode if it has one, as often on every rank, and leave it in `train`.
        """
        return {}

    def score(self, _metrics: Mapping[str, float]) -> float | None:
        """Give how good the model is by what `after_step` just measured, lower is better; None if it did not."""
        return None

    def state(self) -> dict[str, Any]:
        """Give further tensors that a resumed run needs, replicated; a restore fills them in place.

        Evaluation and export load the weights alone: what they need, such as a moving average of the weights, is a part
        of the model (a `core.frozen.frozen` copy, say).
        """
        return {}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Say what was learned; `text` is a sentence."""
        return {**metrics, "text": f"loss {metrics['loss']:.4g} after {self.total_steps} steps"}


MEMBERS = sorted({*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))})


def ids_of_step(work: Workload, step: int) -> Sequence[int]:
    """Give the sample ids of a step (0 is the first), `global_batch` of them, the same in every process."""
    key = order_key(json.dumps(dict(work.identity), sort_keys=True), 0) if work.dataset_size is not None else 0
    return samples_of_step(step, work.global_batch, size=work.dataset_size, key=key)


def epochs(work: Workload, step: int) -> float:
    """Give how often `step` steps went through the set; 0 if it is endless."""
    return step * work.global_batch / work.dataset_size if work.dataset_size is not None else 0.0


@runtime_checkable
class Illustrated(Protocol):
    """A workload that shows people what it measured."""

    def illustrate(self, session: Session, folder: Path, curves: Path) -> list[Path]:
        """Let rank 0 write what the last evaluation found; give the files that people may want. Collective.

        Args:
            session: whose model was evaluated.
            folder: to be made if it is not there.
            curves: `metrics.jsonl` of the run; it may be missing.
        """


def illustrate(work: Workload, session: Session, folder: Path, curves: Path) -> None:
    """Let a workload that can show what it measured, and report its files. Collective."""
    if not isinstance(work, Illustrated):
        return
    files = work.illustrate(session, folder, curves)
    if session.world.leads:
        for path in files:
            session.reporter.artifact(f"{folder.name}/{path.name}", path)
