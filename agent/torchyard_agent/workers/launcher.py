"""One round of a torchrun command line: torch's own elastic launcher, given size, rank and rendezvous by the round.

Runs in a separate process (a fork of the zygote, or a fresh interpreter) whose exit code is that of the first
failing worker, and which leaves `failure.json` behind. torchrun itself would exit 1 whatever happened.
"""

from __future__ import annotations

import errno
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import read_json, try_write_json
from torchyard_agent.workers import code, evidence, failure, gpu_check, guard, hooks
from torchyard_agent.workers.forks import Forked, context_class
from torchyard_agent.workers.process import die_with_parent, stand_before_others

_SAVE_SKEW_SECONDS = 10.0  # between ranks that save because another pod was asked to
# Options of torchrun that have no effect here: the output of each rank is in its log.
_ABOUT_OUTPUT = (
    "log_dir",
    "redirects",
    "tee",
    "local_ranks_filter",
    "log_line_prefix_template",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
)


def main() -> None:
    """Cold start: run the round in the file named by the first argument; the second is the agent's process id."""
    die_with_parent(signal.SIGKILL, int(sys.argv[2]))
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


def run(spec: Dict[str, Any], forks: Sequence[Forked] = ()) -> int:
    """Run the round `spec` (see `round_spec`) to its end; the exit code of this pod.

    Args:
        spec: the round.
        forks: a process for each worker, to be used instead of executing one; none in a cold start.
    """
    for name in spec["unset"]:
        os.environ.pop(name, None)
    os.environ.update(spec["env"])
    # A DNS that does not answer costs ten seconds for each fully qualified name torch puts into its own log records.
    socket.getfqdn = lambda name="": name or socket.gethostname()
    launch = Launch(spec, forks)
    stand_before_others(0.5)  # its end costs a round, the zygote's another import of torch, the agent's the pod
    guard.watch(lambda: list(launch.pids.values()), launch.stopped)
    if (fault := code_fault(spec)) is not None:
        return launch.refuse(*fault)
    try:
        return launch()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return launch.refuse(ExitCode.TORCH_MISSING, f"{sys.executable} has no module torch")


def code_fault(spec: Dict[str, Any]) -> Optional[Tuple[int, str]]:
    """Enter the code of the round, if it has one; return the exit code and the sentence if that is not possible."""
    found = spec.get("code")
    if found is None:
        return None
    here = code.Code(found["digest"], Path(found["root"]), Path(found["mount"]))
    try:
        os.environ.update(code.enter(here, spec["workingFolder"], os.environ, spec.get("packages")))
    except (code.MissingError, code.MismatchError) as error:
        return ExitCode.CODE_MISMATCH, str(error)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return ExitCode.STORAGE, f"the code cannot be unpacked: {error.strerror}"
        return ExitCode.CONFIG, f"spec.workingDir: `{spec['workingFolder']}` is not a folder of the code ({error})"
    return None


class Launch:
    """The launcher process of one round."""

    def __init__(self, spec: Dict[str, Any], forks: Sequence[Forked] = ()) -> None:
        self.spec, self.forks = spec, list(forks)
        self.run_dir = Path(spec["runDir"])
        self.exits: Dict[int, Dict[str, Any]] = {}
        self.pids: Dict[int, int] = {}
        self.notices: List[str] = []
        self.first_saved = 0.0
        self.ages = evidence.Ages(self.run_dir)

    def __call__(self) -> int:
        """Run the round; the exit code of this pod."""
        from torch.distributed.elastic import multiprocessing
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher import api

        lacking = gpu_check.check(self.spec["gpus"], torch_is_there=True)
        if lacking:
            return self.refuse(ExitCode.HARDWARE, lacking)
        try:
            args = self._arguments()
            config, entrypoint, arguments = _config(args, warm=bool(self.forks))
        except ValueError as error:
            return self.refuse(ExitCode.CONFIG, f"torchrun: {error}")
        refusal = _cannot_start(args)
        if refusal:
            return self.refuse(ExitCode.NOT_FOUND, refusal)
        cold = _why_cold(args, entrypoint) if self.forks else None
        if cold:
            self.notice(f"warm start is off: {cold}")
        if self.forks and not cold:
            multiprocessing.SubprocessContext = context_class(multiprocessing.SubprocessContext, self.forks)
        else:
            log = self.spec["logDir"] + "/rank-{rank}.log"
            arguments = exec_arguments(self.spec, [entrypoint, *arguments], log=log)
            entrypoint = sys.executable
        api.LocalElasticAgent = self._agent_class(api.LocalElasticAgent)
        self.ages.start()
        try:
            api.elastic_launch(config, entrypoint)(*arguments)
        except ChildFailedError as error:
            guard.give_way()
            return self._failed(error)
        except Exception as error:
            self._tell_of(error)
            raise
        self._write(0, [])
        return 0

    def _arguments(self) -> Any:
        """Return the user's torchrun options, parsed by torchrun's parser; values of the round replace theirs.

        Raises:
            ValueError: what the parser says is wrong with them.
        """
        from torch.distributed.run import get_args_parser

        parser = get_args_parser()
        parser.error = _wrong
        try:
            args = parser.parse_args(self.spec["args"])
        except SystemExit:  # --help and the like: the answer was printed, nothing trains
            raise ValueError(f"`{' '.join(self.spec['args'])}` starts no training script") from None
        unused = [name for name in _ABOUT_OUTPUT if getattr(args, name, None) != parser.get_default(name)]
        if unused:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            self.notice(f"torchrun {names}: no effect, the output of every rank is in its log: see `torchyard logs`")
        decided = {
            "nnodes": str(self.spec["nodes"]),
            "node_rank": self.spec["nodeRank"],
            "nproc_per_node": str(self.spec["procs"]),
            "master_addr": self.spec["masterAddress"],
            "master_port": self.spec["masterPort"],
            "local_addr": self.spec["address"],
            "rdzv_backend": "static",
            "rdzv_endpoint": "",
            "rdzv_id": f"{self.spec['job']}-{self.spec['round']}",
            "standalone": False,
            "max_restarts": self.spec["round"] - 1,  # all of them are used: the operator opens rounds instead
            "redirects": "0",
            "tee": "0",
            "log_dir": str(self.run_dir / "elastic"),
            "run_path": False,
        }
        for name, value in decided.items():
            setattr(args, name, value)
        return args

    def _agent_class(launch, base: Any) -> Any:  # noqa: N805 - `self` is the agent's below
        """Torch's agent, guarded; it records which workers ended by themselves before it ends the others."""
        from torch.distributed.elastic.agent.server import api

        class Agent(base):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                self._remaining_restarts = 0

            def _start_workers(self, group: Any) -> Any:
                started = super()._start_workers(group)
                launch.pids = dict(self._pcontext.pids())
                launch.announce({worker.global_rank: started[worker.local_rank] for worker in group.workers})
                return started

            def _monitor_workers(self, group: Any) -> Any:
                ended = _ended(self._pcontext)
                if any(ended.values()):
                    now = time.time()
                    if launch.still_saving(ended, now):
                        return api.RunResult(state=api.WorkerState.HEALTHY)
                    for local_rank, status in ended.items():
                        if status:
                            launch.note(group.workers[local_rank].global_rank, local_rank, status, now)
                    guard.end_workers([pid for rank, pid in launch.pids.items() if rank not in ended])
                return super()._monitor_workers(group)

        return Agent

    def announce(self, pids: Dict[int, int]) -> None:
        """Write `workers.json` for the agent: the process id of each global rank."""
        try_write_json(self.run_dir / "workers.json", {"round": self.spec["round"], "pids": pids})

    def notice(self, text: str) -> None:
        """Add a notice to those for the agent, in `notice.launcher.json`."""
        self.notices.append(text)
        try_write_json(self.run_dir / "notice.launcher.json", {"notices": self.notices})

    def still_saving(self, ended: Dict[int, int], now: float) -> bool:
        """Return whether the other workers may continue for now, since those that ended did so on request.

        Each rank of a program takes its own time to save. The agent ends them all when the grace period is over.
        """
        if len(ended) == len(self.pids):
            return False
        saved = set(ended.values()) == {ExitCode.PREEMPTED}
        if (self.run_dir / "preempt").exists() and (saved or not self._answers_by_file()):
            return True
        if not saved or not any(self.run_dir.glob("saved.*")):
            return False  # a program's own 75
        self.first_saved = self.first_saved or now
        return now - self.first_saved < _SAVE_SKEW_SECONDS

    def _answers_by_file(self) -> bool:
        reports = (read_json(path) or {} for path in self.run_dir.glob("report.*.json"))
        return any(report.get("saves") is True for report in reports)

    def note(self, rank: int, local_rank: int, status: int, now: float) -> None:
        """Remember that a worker ended by itself with `status` (negative: a signal)."""
        self.exits[rank] = {
            "local_rank": local_rank,
            "pid": self.pids.get(local_rank, 0),
            "code": failure.exit_code(status),
            "time": now,
        }

    def stopped(self) -> None:
        """Write the outcome after a SIGTERM; the guard calls this last."""
        self._write(ExitCode.TERMINATED, [])

    def refuse(self, code: int, message: str) -> int:
        """End the round before it starts; `message` describes what is missing."""
        print(message, file=sys.stderr, flush=True)
        self._write_own(code, {"message": message, "secondary": False})
        return code

    def _tell_of(self, error: Exception) -> None:
        """Report an error of torch's launcher itself, which no worker has caused."""
        name = f"{type(error).__module__}.{type(error).__qualname__}".replace("builtins.", "")
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._write_own(1, {"exception": name, "message": f"torchrun: {error}", "traceback": trace})

    def _write_own(self, code: int, found: Dict[str, Any]) -> None:
        rank = self.spec["nodeRank"] * self.spec["procs"]
        found = {**found, "code": code}
        self._write(code, [failure.record(rank=rank, local_rank=0, pid=0, code=code, time=time.time(), found=found)])

    def _failed(self, error: Any) -> int:
        if not self.exits:  # torch saw a failure that was gone from our view: take its word
            for rank, process in error.failures.items():
                self.note(rank, process.local_rank, process.exitcode, time.time())
        failures = []
        for rank, facts in self.exits.items():
            known = evidence.found(self.ages, rank, facts["pid"], code=facts["code"], alone=False)
            watched = hooks.is_watched(self.run_dir, facts["pid"])
            failures.append(failure.record(rank=rank, found=known, watched=watched, **facts))
        cause = failure.first_cause(failures)
        code = cause["code"] if cause else 1
        self._write(code, failures)
        return int(code)

    def _write(self, code: int, failures: List[Dict[str, Any]]) -> None:
        """Write how the round ended; without this file, the agent goes by the exit code of this process."""
        document = {
            "round": self.spec["round"],
            "code": code,
            "failure": failure.first_cause(failures),
            "failures": failures,
        }
        try_write_json(self.run_dir / "failure.json", document)


def exec_arguments(spec: Dict[str, Any], argv: List[str], *, log: str) -> List[str]:
    """Arguments for a Python that becomes `argv` with its output in `log` (empty: where it goes); see `_exec.py`."""
    code = (pkgutil.get_data("torchyard_agent.workers", "_exec.py") or b"").decode()
    said = spec["runDir"] + "/failure.{rank}.json"
    return ["-I", "-S", "-c", code, str(os.getpid()), log, said, *argv]


def _wrong(message: str) -> NoReturn:
    raise ValueError(message)


def _config(args: Any, *, warm: bool) -> Any:
    import torch
    from torch.distributed.run import config_from_args

    if warm:
        # LaunchConfig counts accelerators to choose a NUMA default. Counting starts CUDA, which takes a second.
        available, torch.accelerator.is_available = torch.accelerator.is_available, lambda: False
    try:
        config, entrypoint, arguments = config_from_args(args)
    finally:
        if warm:
            torch.accelerator.is_available = available
    config.signals_to_handle = "SIGINT"
    return config, entrypoint, arguments


def _why_cold(args: Any, entrypoint: str) -> Optional[str]:
    """Return why a fork of the zygote cannot run this command line; None if it can."""
    if args.no_python:
        return "--no-python runs a program that is not Python"
    if entrypoint != sys.executable:
        return f"PYTHON_EXEC names another interpreter, {entrypoint}"
    if getattr(args, "numa_binding", None) is not None:
        return "--numa-binding binds a process before torch is imported"
    own, packages = os.environ.get(code.FOLDER), os.environ.get(code.PACKAGES)
    hidden = (_shadowing(Path(own)) if own else None) or (_hiding(Path(packages)) if packages else None)
    if hidden or args.module:
        return hidden or _shadowing(Path.cwd())
    script = Path(args.training_script)
    if script.is_dir():
        return _shadowing(script)
    if pkgutil.get_importer(str(script)) is not None or script.suffix in {".pyc", ".pyo"}:
        return f"{script} is not a source file"
    return _shadowing(script.resolve().parent)


def _shadowing(folder: Path) -> Optional[str]:
    """Return which module of `folder`, first on the program's path, hides one that the zygote has imported."""
    return None if getattr(sys.flags, "safe_path", False) else _hiding(folder)


def _hiding(folder: Path) -> Optional[str]:
    """Return which module of `folder`, first on PYTHONPATH, hides one that the zygote has imported."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # Python finds no module in a folder that it may not list
        return None
    for entry in entries:
        name = entry.name.partition(".")[0]
        if name not in sys.modules:
            continue
        package = os.path.exists(entry / "__init__.py")  # noqa: PTH110 - of a folder without rights, pathlib's raises
        if not (package or entry.name.endswith(suffixes)):
            continue
        spec = getattr(sys.modules[name], "__spec__", None)
        origin = getattr(spec, "origin", None)
        if spec is None or origin is None or not spec.has_location:
            continue  # built into the interpreter: no file hides it
        if folder.resolve() not in Path(origin).resolve().parents:
            return f"{entry} hides the module `{name}` of {origin}, which is already imported"
    return None


def _cannot_start(args: Any) -> Optional[str]:
    """Return why the training script cannot be found; None if it can be found, or if that is unknown."""
    script = args.training_script
    if args.no_python:
        return None
    if args.module:
        package = script.partition(".")[0]
        return None if _can_import(package) else f"{script}: no module named `{package}` on the Python path"
    if not os.path.exists(script):  # noqa: PTH110 - see above
        return f"{script}: no such file; the working directory is {Path.cwd()}"
    return None


def _can_import(package: str) -> bool:
    """Return whether a worker will find a package, on its path or by a finder such as that of an editable install."""
    ours = sys.path[:]
    sys.path[0] = str(Path.cwd())
    sys.path += filter(None, [os.environ.get(code.PACKAGES)])
    importlib.invalidate_caches()
    try:
        return importlib.util.find_spec(package) is not None
    except Exception:  # noqa: BLE001 - a finder is anyone's code; the worker shows its error
        return True
    finally:
        sys.path[:] = ours


def _ended(context: Any) -> Dict[int, int]:
    """Exit status of each local rank that has ended; negative for signals."""
    statuses = {rank: handler.proc.poll() for rank, handler in context.subprocess_handlers.items()}
    return {rank: status for rank, status in statuses.items() if status is not None}
