"""Have the `Trainer` of a PyTorch Lightning program report steps, metrics and checkpoints, without a change to it.

A Lightning program counts its steps over restarts and knows how many there will be, neither of which the count of
optimizer steps does. Nothing here may break the program: where Lightning differs from what is expected, nothing is
reported, and its optimizer's steps are counted as those of any other program are.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Optional, Type

from torchyard_agent.telemetry.progress import report


def report_from(module: ModuleType) -> None:
    """Have every `Trainer` of the module that defines the class report from its next `fit` on."""
    with contextlib.suppress(Exception):
        trainer = module.Trainer
        _with_callback(trainer, _callback(module.__name__.split(".trainer.")[0]))
        _with_saves(trainer)


def _with_callback(trainer: Any, callback: Type[Any]) -> None:
    fit = trainer.fit

    @functools.wraps(fit)
    def reporting_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            if not any(isinstance(each, callback) for each in self.callbacks):
                self.callbacks.insert(0, callback())  # those that save come last
        return fit(self, *args, **kwargs)

    trainer.fit = reporting_fit


def _with_saves(trainer: Any) -> None:
    save = trainer.save_checkpoint

    @functools.wraps(save)
    def reporting_save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        saved = save(self, filepath, *args, **kwargs)
        with contextlib.suppress(Exception):
            if _outlives_pods(str(filepath)):
                report(self.global_step, checkpoint_step=self.global_step)
        return saved

    trainer.save_checkpoint = reporting_save


def _outlives_pods(path: str) -> bool:
    """Return whether a checkpoint is written, and where the next round finds it; elsewhere it may go with its pod."""
    if "://" in path:
        return True
    folder = os.environ.get("TORCHYARD_CHECKPOINT_DIR", "")
    return folder != "" and Path(path).exists() and Path(folder).resolve() in Path(path).resolve().parents


@functools.cache
def _callback(package: str) -> Type[Any]:
    """Return a class of callbacks for the Lightning that is called `package`."""

    class Reporter(importlib.import_module(f"{package}.callbacks").Callback):  # type: ignore[misc]
        """Reports each optimizer step, and the metrics as often as Lightning logs them."""

        def __init__(self) -> None:
            self.total: Optional[int] = None
            self.step = -1

        def __reduce__(self) -> Any:  # strategies that spawn processes pickle the callbacks
            return _new_callback, (package,)

        def on_train_start(self, trainer: Any, _module: Any) -> None:
            with contextlib.suppress(Exception):
                most = trainer.estimated_stepping_batches
                self.total = int(most) if 0 < most < float("inf") else None
            self._report(trainer)

        def on_train_batch_end(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
            if trainer.global_step != self.step:
                # To read a metric waits for the GPU; Lightning does it as often to log it.
                self._report(trainer, metrics=trainer.global_step % max(1, trainer.log_every_n_steps) == 0)

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            if not trainer.sanity_checking:
                self._report(trainer, metrics=True)

        def on_train_end(self, trainer: Any, _module: Any) -> None:
            self._report(trainer, metrics=True)

        def _report(self, trainer: Any, *, metrics: bool = False) -> None:
            with contextlib.suppress(Exception):
                self.step = trainer.global_step
                known: Dict[str, Any] = _metrics(trainer.callback_metrics) if metrics else {}
                report(self.step, total_steps=self.total, epoch=trainer.current_epoch, **known)

    return Reporter


def _new_callback(package: str) -> Any:
    return _callback(package)()


def _metrics(metrics: Any) -> Dict[str, Any]:
    return {name: value for name, value in metrics.items() if name not in _TAKEN}


_TAKEN = {"step", "total_steps", "epoch", "phase", "checkpoint_step"}  # what `report` calls otherwise
