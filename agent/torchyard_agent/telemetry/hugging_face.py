"""Have the `Trainer` of a `transformers` program report steps and metrics, without a change to it.

The trainer's own progress call (Kubeflow's) comes every five seconds, without the last steps, and knows only the
training that runs: a program may train one model after another. Nothing here may break the program: where the library
differs from what is expected, its own call and the count of optimizer steps remain.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from types import ModuleType
from typing import Any, Dict, Type

from torchyard_agent.telemetry.progress import report

_OWN_CALL = "KubeflowCallback"
_TAKEN = {"step", "total_steps", "epoch", "phase", "checkpoint_step"}  # what `report` calls otherwise

_steps_before = 0  # of trainings in this process that have ended


def report_from(module: ModuleType) -> None:
    """Have every `Trainer` of the module that defines the class report from its next `train` on."""
    with contextlib.suppress(Exception):
        trainer: Any = module.Trainer
        train = trainer.train

        @functools.wraps(train)
        def reporting_train(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                _prepare(self)
            try:
                return train(self, *args, **kwargs)
            finally:
                with contextlib.suppress(Exception):
                    _count(self)

        trainer.train = reporting_train


def _prepare(trainer: Any) -> None:
    callback = _callback()
    if any(isinstance(each, callback) for each in trainer.callback_handler.callbacks):
        return
    trainer.add_callback(callback())
    url = os.environ.get("KUBEFLOW_TRAINER_SERVER_URL", "")
    if url.startswith("http://127.0.0.1:"):  # the agent's: it would hear of the same steps twice
        for each in list(trainer.callback_handler.callbacks):
            if type(each).__name__ == _OWN_CALL:
                trainer.remove_callback(each)


def _count(trainer: Any) -> None:
    global _steps_before  # noqa: PLW0603 - one count a process
    _steps_before += int(trainer.state.global_step)


@functools.cache
def _callback() -> Type[Any]:
    """Return a class of callbacks for the library that is imported."""

    class Reporter(importlib.import_module("transformers.trainer_callback").TrainerCallback):  # type: ignore[misc]
        """Reports each optimizer step, and what rank 0 logs."""

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            _report(state)

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            _report(state)

        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            with contextlib.suppress(Exception):
                if state.is_world_process_zero and logs:
                    metrics = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
                    _report(state, **{name: value for name, value in metrics.items() if name not in _TAKEN})

        on_train_end = on_train_begin

    return Reporter


def _report(state: Any, **metrics: Any) -> None:
    with contextlib.suppress(Exception):
        known: Dict[str, Any] = {"epoch": state.epoch, **metrics}
        if state.max_steps > 0:
            known["total_steps"] = _steps_before + state.max_steps
        report(_steps_before + state.global_step, **known)
