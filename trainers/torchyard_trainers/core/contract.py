"""Checks a custom workload against the interface in `core/workload.py`.

A value that the loop cannot use raises an error that names the method, the value and the fix: it would otherwise fail
far from its cause, or silently produce a wrong number.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from types import new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import LBFGS, Optimizer

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parallel import SHARDED
from torchyard_trainers.core.workload import MEMBERS, LossOutput, Mean, MicroBatch, Session, Workload

_REQUIRED = ("build", "learning_rate", "loss")
_COUNTS = ("total_steps", "global_batch", "dataset_size", "log_every", "eval_every", "save_every")
# Metrics that the loop itself writes; a workload's metric of the same name would overwrite them.
_OF_STEP = {"step", "loss", "gradNorm", "learningRate", "skippedSteps"}
_OF_MACHINE = {"memoryPeakBytes", "dataWaitShare", "stepsPerSecond", "samplesPerSecond", "tokensPerSecond", "mfu"}
_SEE = "see torchyard_trainers.core.workload.Workload"


def checked(kind: Callable[[Any], Any], settings: Any, name: str) -> Workload:
    """Create a custom workload whose methods are checked at every call.

    Args:
        kind: the class.
        settings: the return value of its module's `resolve_params`.
        name: the `trainer.name` of the config.

    Raises:
        ConfigError: it is not a class, rejects its settings, or lacks a member.
    """
    if not isinstance(kind, type):
        raise ConfigError(f"trainer.name: {name!r} is not a class, but {_kind(kind)}; name a subclass of Workload")
    lacking = [each for each in _REQUIRED if getattr(kind, each, None) in (None, getattr(Workload, each))]
    if not lacking:
        try:
            work: Any = new_class(kind.__name__, (_Checked, kind))(settings)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"trainer.params: {error}") from error
        lacking = [each for each in MEMBERS if not hasattr(kind, each) and each not in vars(work)]
    if lacking:
        raise ConfigError(
            f"trainer.name: {name!r} has no {', '.join(lacking)}; {_SEE}, which has defaults for most "
            "members of a workload"
        )
    for each in _COUNTS:
        number = getattr(work, each)
        if (number is not None or each != "dataset_size") and (not isinstance(number, int) or number < 1):
            raise ConfigError(f"{kind.__name__}.{each}: {number!r} is not a whole number of at least 1; {_SEE}")
    if work.average_decay is not None and not 0 < work.average_decay < 1:
        what = f"{kind.__name__}.average_decay: {work.average_decay!r} is not between 0 and 1"
        raise ConfigError(f"{what}; use the share that an average keeps in a step, such as 0.999, or None")
    for key, value in _mapping(kind.__name__, "identity", work.identity).items():
        if not isinstance(value, str | int | float):  # a tuple would come back from run.json as a list
            what = f"{kind.__name__}.identity: {key!r} is {_kind(value)}"
            raise ConfigError(f"{what}; use text or a number, so that a resumed run can be compared")
    found: Workload = work
    return found


def check_asked(kind: type, config: Config) -> None:
    """Check that the workload has the methods that the job's settings need.

    Raises:
        ConfigError: naming the field and the missing method.
    """
    mode, best = config.trainer.mode, config.checkpoint.keep_best
    every = config.evaluation.every_steps if config.evaluation is not None else None
    asked: list[tuple[str, bool, tuple[str, ...]]] = [
        ("trainer.mode: eval", mode == "eval", ("evaluate",)),
        (f"evaluation.everySteps: {every}", every is not None, ("evaluate", "after_step")),
        (f"checkpoint.keepBest: {best}", mode == "train" and best > 0, ("score",)),
    ]
    for field, wanted, methods in asked:
        if wanted and all(getattr(kind, each) is getattr(Workload, each) for each in methods):
            raise ConfigError(f"{field}, but {kind.__name__} has no {methods[0]}; add it, or remove this; {_SEE}")


class _Checked(Workload if TYPE_CHECKING else object):  # type: ignore[misc]
    """The first base of a custom workload's class: forwards each call and checks its return value."""

    def build(self) -> nn.Module:
        model = super().build()
        if not isinstance(model, nn.Module):
            raise self._error("build", f"returned {_kind(model)}", "return the model, an nn.Module")
        if not any(each.requires_grad for each in model.parameters()):
            raise self._error(
                "build", "returned a model none of whose parameters takes a gradient", "leave some to be learned"
            )
        odd = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
        if odd:
            what = f"returned a model whose state_dict has {', '.join(odd[:3])}, which is no tensor"
            raise self._error("build", what, "a checkpoint holds tensors: keep it in a buffer")
        return model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        found, parts = super().blocks(model), set(model.modules())
        if not isinstance(found, Iterable) or not parts.issuperset(listed := list(found)):
            raise self._error("blocks", f"returned {_kind(found)}", "return a list of modules of the model, or []")
        return listed

    def optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        try:
            found = super().optimizer(model)
        except TypeError as error:  # an optimizer of modules: a method that expects parameters got the model
            raise self._error(
                "optimizer", f"failed with the model ({error})", "pass model.parameters() to the optimizer"
            ) from error
        made = list(found) if isinstance(found, Sequence) else [found]
        # LBFGS would call the loss by itself.
        odd = [each for each in made if not isinstance(each, Optimizer) or isinstance(each, LBFGS)]
        if odd or not made:
            fix = "return one torch.optim.Optimizer that steps without a closure, or a list of them"
            raise self._error("optimizer", f"returned {_kind(odd[0] if odd else found)}", fix)
        groups = [group for each in made for group in each.param_groups]
        held = [id(parameter) for group in groups for parameter in group["params"]]
        if len(held) > len(set(held)):
            fix = "give each parameter to one optimizer"
            raise self._error("optimizer", "returned several optimizers of the same parameter", fix)
        rates = list(dict.fromkeys(group["lr"] for group in groups))
        if len(rates) > 1:
            what = f"returned groups with lr {', '.join(map(str, rates))}, but learning_rate(step) sets that of all"
            raise self._error("optimizer", what, "give a group lr_scale, by which its rate is multiplied")
        return found

    def learning_rate(self, step: int) -> float:
        return self._number("learning_rate", super().learning_rate(step))

    def begin(self, session: Session) -> dict[str, float]:
        with _casting(session):
            found = super().begin(session)
        return self._metrics("begin", found)

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        found = super().prepare(session, step)
        return self._metrics("prepare", found)

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        if not vars(self).get("_weighted"):
            vars(self)["_weighted"] = True
            self._check_weights(session, batch)
        with _casting(session):
            found = super().loss(session, batch)
        if not isinstance(found, LossOutput):
            raise self._error("loss", f"returned {_kind(found)}", "return LossOutput(loss, {}) of core.workload")
        loss, statistics, count = found
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            raise self._error("loss", f"returned {_kind(loss)} as loss", "return one number, the sum over the samples")
        if not loss.requires_grad:
            what = "returned a loss that no parameter has a part in"
            raise self._error("loss", what, "make it of what session.parallel.forward(...) gives, not detached")
        for name, value in _mapping(type(self).__name__, "loss: its statistics", statistics).items():
            self._named("loss", name)
            for part in value if isinstance(value, Mean) else (value,):
                if not isinstance(part, Tensor) or part.shape != ():
                    what = f"returned {_kind(part)} as statistic {name!r}"
                    raise self._error("loss", what, "return one number in a tensor, the sum over the samples")
        if count is not None and (not isinstance(count, Tensor) or count.shape != ()):
            raise self._error(
                "loss", f"returned {_kind(count)} as count", "return one number in a tensor, such as tokens"
            )
        names = vars(self).setdefault("_statistics", tuple(statistics))
        if names != tuple(statistics):
            what = f"returned the statistics {', '.join(statistics)} after {', '.join(names)}"
            raise self._error("loss", what, "return the same names in every call")
        return LossOutput(loss, {name: _detached(value) for name, value in statistics.items()}, count)

    def _check_weights(self, session: Session, batch: MicroBatch) -> None:
        """Compute the loss once with all weights 0: any result but 0 is not a weighted sum, and would train wrongly.

        A loss over pairs of samples is not checked: it may be undefined without any sample.
        """
        if self.mixes_samples:
            return
        device = batch.weights.device
        generators = torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda")
        with generators, session.parallel.buffers.kept(), _casting(session):
            found = super().loss(session, batch._replace(weights=torch.zeros_like(batch.weights)))
        if not isinstance(found, LossOutput) or not isinstance(found.statistics, Mapping):
            return  # the call that follows raises the error
        sums = {"the loss": found.loss, **found.statistics, **({} if found.count is None else {"count": found.count})}
        for name, value in ((name, value.total if isinstance(value, Mean) else value) for name, value in sums.items()):
            if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.shape != ():
                continue
            if value.item() != 0:
                what = f"returned {value.item():.4g} as {name} of samples whose weights are all 0"
                raise self._error("loss", what, "return sums over the samples, each times its weight, and no means")

    def after_step(self, session: Session, step: int, means: Mapping[str, float]) -> dict[str, float]:
        with _casting(session):
            found = super().after_step(session, step, means)
        return self._metrics("after_step", found)

    def evaluate(self, session: Session) -> dict[str, float]:
        modes = [(each, each.training) for each in session.parallel.module.modules()]
        with _casting(session):
            found = super().evaluate(session)
        # A model left in `eval` mode would train without dropout until a restart, and with it from then on.
        for each, mode in modes:
            each.training = mode
        return self._metrics("evaluate", found)

    def score(self, metrics: Mapping[str, float]) -> float | None:
        found = super().score(metrics)
        return None if found is None else self._number("score", found)

    def state(self) -> dict[str, Any]:
        found = _mapping(type(self).__name__, "state", super().state())
        for name, value in _leaves(found):
            if not isinstance(value, Tensor):
                what = f"{name} is {_kind(value)}"
                raise self._error("state", what, "return tensors, nested in dicts: a restore fills them in place")
        return found

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        found = _mapping(type(self).__name__, "summary", super().summary(metrics))
        if not isinstance(found.get("text"), str):
            raise self._error("summary", f"returned {_kind(found.get('text'))} as text", "return a sentence")
        try:
            json.dumps(found)
        except TypeError as error:
            raise self._error("summary", f"cannot be written as JSON ({error})", "return text and numbers") from error
        return found

    def _error(self, method: str, what: str, fix: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__}.{method}: {what}; {fix}")

    def _number(self, method: str, value: Any) -> float:
        try:
            return _float(value)
        except TypeError:
            raise self._error(method, f"returned {_kind(value)}", "return one number") from None

    def _named(self, method: str, name: Any) -> None:
        if not isinstance(name, str):
            raise self._error(method, f"returned {name!r} as the name of a metric", "return text")
        if name in _OF_STEP | _OF_MACHINE:
            own = f"eval{name[0].upper()}{name[1:]}"
            raise self._error(
                method, f"returned {name!r}, which the loop itself reports", f"name it {own}, for example"
            )

    def _metrics(self, method: str, found: Any) -> dict[str, float]:
        numbers = {}
        statistics = vars(self).get("_statistics", ())
        for name, value in _mapping(type(self).__name__, method, found).items():
            self._named(method, name)
            if name in statistics:  # the two curves would become one
                fix = f"name one of them eval{name[0].upper()}{name[1:]}, say"
                raise self._error(method, f"returned {name!r}, which is also a statistic of loss", fix)
            try:
                numbers[name] = _float(value)
            except TypeError:
                what = f"returned {_kind(value)} as {name!r}"
                raise self._error(method, what, "return one number by each name") from None
        return numbers


def _casting(session: Session) -> AbstractContextManager[object]:
    """Cast fp32 inputs of a sharded half-precision model, as autocast does for an unsharded one."""
    return session.precision.casting() if session.parallel.strategy in SHARDED else nullcontext()


def _float(value: Any) -> float:
    """Convert a number, or a tensor or array with one element, to a float that JSON accepts.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, Real):
        return float(value)
    if getattr(value, "shape", None) == ():
        return _float(value.item())
    raise TypeError


def _mapping(kind: str, method: str, found: Any) -> dict[Any, Any]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{kind}.{method}: returned {_kind(found)}; return a dict, {{}} if it is empty")
    return dict(found)


def _detached(value: Tensor | Mean) -> Tensor | Mean:
    return Mean(value.total.detach(), value.count) if isinstance(value, Mean) else value.detach()


def _leaves(nested: Mapping[Any, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def _kind(value: Any) -> str:
    """Describe a value for an error message."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, str | int | float):
        return f"{value!r}"
    return f"a {type(value).__name__}"
