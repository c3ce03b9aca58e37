"""One round in this pod: its description, its launcher process, its logs and reports, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import head, is_text, read_json, try_write_json, write_json
from torchyard_agent.settings import Settings
from torchyard_agent.telemetry.curves import Axis, Curves
from torchyard_agent.telemetry.digest import digest
from torchyard_agent.telemetry.gpu_health import Fault
from torchyard_agent.telemetry.hang_detector import HangDetector, Hung, find_hung_rank
from torchyard_agent.telemetry.logs import NO_PATTERNS, RankLog
from torchyard_agent.telemetry.memory import Memory
from torchyard_agent.telemetry.output import LITTLE_SPACE, free_space
from torchyard_agent.telemetry.patterns import Patterns
from torchyard_agent.telemetry.reports import Reports, from_patterns
from torchyard_agent.workers import failure, printed, stacks
from torchyard_agent.workers.command import Torchrun, is_python
from torchyard_agent.workers.process import is_alive
from torchyard_agent.workers.recipients import handlers
from torchyard_agent.workers.zygote_client import python_code

KILL_SECONDS = 5.0
_LAST_LINES, _LAST_BYTES = 20, 4096
_LOOK_SECONDS = 1.0
_CRASH_BYTES = 16 * 1024
CODE = "TORCHYARD_CODE"
_NOTICES, _NOTICE_BYTES = 4, 400
_UNCAUGHT = 1  # exit code of Python after an uncaught exception
_SIGNALS = 128  # exit codes above it are those of signals


def round_spec(settings: Settings, command: Dict[str, Any], kind: Any, procs: int, unset: List[str]) -> Dict[str, Any]:
    """Return the round of a `run` command, complete for the launcher. `env` holds strings only.

    Raises:
        ValueError: a field is missing or of the wrong kind.
    """
    try:
        numbers = {name: int(command[name]) for name in ("round", "nodes", "nodeRank", "masterPort")}
        master = str(command["masterAddress"])
        procs = int(command.get("procs") or procs)
        extra = {str(name): str(value) for name, value in (command.get("env") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"command `run`: field {error} is missing or of the wrong kind") from None
    return {
        **numbers,
        **_code(settings, command),
        "job": settings.job,
        "masterAddress": master,
        "procs": procs,
        "gpus": settings.gpus,
        "address": settings.address,
        "args": list(kind.args if isinstance(kind, Torchrun) else kind.argv),
        "runDir": str(settings.run_dir),
        "logDir": str(settings.log_dir),
        "unset": unset,
        "env": {**_round_environment(numbers, master, procs, settings), **extra, **_described(command)},
    }


def _code(settings: Settings, command: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the launcher needs to enter the code of the round; empty: the program is in the image.

    Raises:
        ValueError: the agent of this pod was started without a folder for code.
    """
    code = command.get("code")
    if not code:
        return {}
    if (
        settings.code_root is None
        or settings.code_mount is None
        or not isinstance(code, dict)
        or not is_text(code.get("digest"))
    ):
        raise ValueError("command `run`: `code` needs a digest, TORCHYARD_CODE_ROOT and TORCHYARD_CODE_MOUNT")
    return {
        "code": {"digest": code["digest"], "root": str(settings.code_root), "mount": str(settings.code_mount)},
        "workingFolder": settings.working_folder,
    }


def _described(command: Dict[str, Any]) -> Dict[str, str]:
    """Return the variable from which trainers record their code: digest, commit, branch and changes."""
    return {CODE: json.dumps(command["code"])} if command.get("code") else {}


def _round_environment(numbers: Dict[str, int], master: str, procs: int, settings: Settings) -> Dict[str, str]:
    env = {
        "PET_NNODES": str(numbers["nodes"]),
        "PET_NPROC_PER_NODE": str(procs),
        "PET_NODE_RANK": str(numbers["nodeRank"]),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(numbers["masterPort"]),
        "PET_LOCAL_ADDR": settings.address,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(numbers["masterPort"]),
        "NODE_RANK": str(numbers["nodeRank"]),
        "TORCHYARD_ROUND": str(numbers["round"]),
        # Every pod starts the same number of workers: ranks need no exchange through the store.
        "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
    }
    if settings.loopback:
        # Members on one machine: gloo and NCCL would otherwise look the host name up and offer its outer address.
        env.update({name: "lo" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in os.environ})
    return env


class RoundRun:
    """A round from its start to its end here."""

    def __init__(self, settings: Settings, spec: Dict[str, Any], *, plain: bool) -> None:
        self.settings, self.spec, self.plain = settings, spec, plain
        self.number = int(spec["round"])
        procs = 1 if plain else int(spec["procs"])
        first = int(spec["nodeRank"]) * procs
        self.ranks = list(range(first, first + procs))
        self.memory = Memory()
        self.launcher = 0
        self.cold = False
        self.preempted = False
        self.asked = False
        self.signalled: Set[int] = set()  # process ids that were sent SIGTERM to save
        self.save_asked = 0.0  # unix seconds of the request to save; 0: there was none
        self.save_deadline: Optional[float] = None
        self.kill_deadline: Optional[float] = None
        self._next_look = 0.0
        self.hung: Optional[Hung] = None
        self.began = time.time()
        self.fault: Optional[Fault] = None  # of a GPU, for which the round ended or which explains its end
        self.standstill = HangDetector(settings.stall_seconds)
        _clean(settings.run_dir)
        self._patterns = Patterns(settings.patterns) if settings.patterns else NO_PATTERNS
        self._pattern_warnings = 0
        self.logs = [RankLog(settings.log_dir, rank, self._patterns) for rank in self.ranks]
        self.reports = Reports(
            settings.run_dir,
            self.number,
            first,
            procs,
            milestones=settings.milestones,
            total_steps=settings.total_steps,
        )
        self._axis = Axis()
        self._curves: Optional[Curves] = None
        if settings.curves_folder is not None and int(spec["nodeRank"]) == 0:
            self._curves = Curves(settings.curves_folder, tensorboard=settings.tensorboard)
        self._curve_rank: Optional[int] = None  # the first rank whose output matches a pattern
        self.spec_path = settings.run_dir / "round.json"
        write_json(self.spec_path, spec)

    def start_cold(self, interpreter: str, env: Dict[str, str]) -> None:
        """Start the launcher as a fresh interpreter.

        Raises:
            OSError: the interpreter cannot be started.
        """
        program = [sys.executable, "-S"] if self.plain else [interpreter]
        code = python_code("workers.plain_launcher" if self.plain else "workers.launcher")
        # In another session: a signal to the agent's process group must not take the guard of the workers away.
        process = subprocess.Popen(
            [*program, "-u", "-c", code, str(self.spec_path), str(os.getpid())],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.launcher = process.pid
        process.returncode = 0  # reaped by the agent's own loop, not by Popen

    def follow(self, *, last: bool = False) -> Dict[int, List[str]]:
        """Read logs and reports and return new lines of each rank. `last`: the workers have ended."""
        fresh = {}
        matches: Dict[int, List[Dict[str, float]]] = {}
        for local_rank, log in enumerate(self.logs):
            lines = log.finish() if last else log.follow()
            if lines:
                fresh[log.rank] = lines
            if log.matches:
                for match in log.matches:  # one by one: a value at a milestone is that of its step
                    self.reports.add(local_rank, from_patterns(match), lines=1)
                matches[local_rank] = log.matches
        self.reports.read()
        self._store(matches)
        self._warn_of_numbers()
        self.memory.follow()
        return fresh

    def _warn_of_numbers(self) -> None:
        warnings = self._patterns.warnings
        if len(warnings) > self._pattern_warnings:
            self._pattern_warnings = len(warnings)
            try_write_json(self.settings.run_dir / "notice.patterns.json", {"notices": warnings})

    def _store(self, matches: Dict[int, List[Dict[str, float]]]) -> None:
        """Append to the curves what one rank printed or, where no pattern reads its output, reported."""
        if self._curves is None:
            return
        if self.settings.patterns:
            self._curve_rank = min(matches, default=None) if self._curve_rank is None else self._curve_rank
            counted = self.reports.counted(self._curve_rank or 0)
            self._curves.add(self._axis.of_matches(matches.get(self._curve_rank or 0, []), counted))
        else:
            for report in self.reports.all()[:1]:
                self._curves.add(self._axis.of_report(report))

    def newest_reports(self) -> List[Dict[str, Any]]:
        """Return the newest report of each local rank, and of each that stands still unusually long, for how long."""
        reports = self.reports.all()
        quiet = [self.standstill.quiet(report) for report in reports]
        return [report if still is None else {**report, "stillSeconds": still} for report, still in zip(reports, quiet)]

    def workers(self) -> Dict[int, int]:
        """Process id of each worker by rank, once the launcher has reported them."""
        found = read_json(self.settings.run_dir / "workers.json") or {}
        if found.get("round") != self.number:
            return {}
        return {int(rank): int(pid) for rank, pid in found["pids"].items()}

    def ask_to_save(self, seconds: float, now: float) -> None:
        """Ask the workers to save within `seconds`, by the file `preempt`, or by SIGTERM if a program does not read it.

        A program that supports neither is not waited for.
        """
        self.preempted, self.save_asked = True, time.time()
        (self.settings.run_dir / "preempt").touch()
        self.reports.read()
        self.ask_by_signal()
        self.save_deadline = now + (seconds if self.signalled or self._answers_by_file() else 0.0)

    def ask_by_signal(self) -> None:
        """Send SIGTERM once to each process that can save, including those that a shell has started since."""
        if self._answers_by_file():
            return
        for pid in handlers(signal.SIGTERM, self.workers().values(), self.settings.run_dir):
            if pid not in self.signalled:
                self.signalled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _answers_by_file(self) -> bool:
        return any(report.get("saves") for report in self.reports.all())

    def saved(self) -> bool:
        """Return whether every local rank has saved on request."""
        return self.preempted and all((self.settings.run_dir / f"saved.{rank}").exists() for rank in self.ranks)

    def still_leaving(self) -> bool:
        """Return whether ranks that have saved are still exiting."""
        return any(is_alive(pid) for pid in self.workers().values())

    def hangs(self, now: float) -> bool:
        """Return whether a rank made no progress for too long; if so, write its stacks to its log and set `hung`."""
        if now < self._next_look or self.save_deadline is not None or self.kill_deadline is not None:
            return False
        self._next_look = now + _LOOK_SECONDS
        pids = self.workers()
        running = [report for report in self.reports.all() if is_alive(pids.get(report["rank"], 0))]
        overdue = self.standstill.look(running, now)
        if not overdue:
            return False
        written = stacks.collect(self.settings.run_dir)
        found_stacks = {rank: written.get(pid, "") for rank, pid in pids.items()}
        found = find_hung_rank(overdue, found_stacks, running, world=len(self.ranks) * int(self.spec["nodes"]))
        if found.secondary and self.standstill.wait_for_others():
            return False
        self.hung = found
        for rank in pids:  # also of those that made their last step a moment later: they show who waits for whom
            with self._log(rank).path.open("a", encoding="utf-8") as log:
                log.write(f"torchyard-agent: {found.message if rank == found.rank else 'stacks of this rank'}\n")
                log.write((found_stacks[rank] or "this process has not written them") + "\n")
        return True

    def _without_evidence(self, code: int) -> str:
        """Return the message for a launcher that left no failure file, for instance because the disk is full."""
        for folder in (self.settings.log_dir, self.settings.run_dir):
            if free_space(folder) < LITTLE_SPACE:
                what = "the output and the reports of the workers could not be written"
                return f"no space is left on the disk of {folder}: {what} ({failure.describe(code)})"
        return f"the launcher ended before the workers did: {failure.describe(code)}"

    def ended(self, status: int, gpu_errors: Sequence[str] = ()) -> Dict[str, Any]:
        """Return `exit` of the protocol: how the round ended here. Call `follow(last=True)` before.

        Args:
            status: exit status of the launcher, negative for a signal.
            gpu_errors: sentences about errors of the program that a driver has reported.
        """
        if self._curves is not None:
            self._curves.close()
        written = read_json(self.settings.run_dir / "failure.json") or {}
        if written.get("round") != self.number:
            written = {}
        code = int(written.get("code", failure.exit_code(status)))
        cause = written.get("failure")
        saved = self.saved()
        after = bool(self.signalled) and (cause is None or cause["time"] >= self.save_asked)
        asked = saved or after or (self.asked and not (cause and cause["code"] != ExitCode.PREEMPTED))
        if self.fault is not None and not saved and (self.fault.fatal or (code and not asked)):
            code, cause, asked = ExitCode.HARDWARE, self._record_of_gpu(self.fault), False
        elif self.hung is not None:
            code, cause, asked = ExitCode.HUNG, self._record_of(self.hung), False
        elif code and saved:
            code, cause = ExitCode.PREEMPTED, None
        elif asked and not saved:
            # Also with 0: a program that traps SIGTERM often ends with it, long before its work is done.
            code, cause = ExitCode.TERMINATED, None
        elif code and cause is None:
            cause = self._own_record(code, self._without_evidence(code))
        elif code == 0 and self._incomplete():
            code = 1
            cause = self._own_record(code, f"the workers exited with 0 without writing {self.settings.completion_file}")
        cause = cause and self._completed(cause)
        if cause and gpu_errors and code != ExitCode.HARDWARE:
            said = "; ".join(filter(None, (cause["message"], *gpu_errors[:2])))
            cause = failure.bounded({**cause, "message": said, "exitCodeOnly": False})
        return {
            "round": self.number,
            "code": code,
            "saved": saved,
            "asked": asked,
            "time": time.time(),
            "failure": cause,
            "lines": self._lines(cause),
            **self._answer(int(written.get("code", failure.exit_code(status)))),
        }

    def _answer(self, code: int) -> Dict[str, Any]:
        """Return the answer to a request to save: the program ended by itself, was killed, or has no handler."""
        if not self.save_asked or self.saved():
            return {}
        if self.kill_deadline is None:
            how = "ended"
        else:
            how = "killed" if self.signalled or self._answers_by_file() else "deaf"
        return {"answer": how, "answerSeconds": round(time.time() - self.save_asked, 1), "answerCode": code}

    def _incomplete(self) -> bool:
        marker = self.settings.completion_file
        return marker is not None and not marker.exists()

    def _own_record(self, code: int, message: str) -> Dict[str, Any]:
        """Return a failure that no worker could report."""
        found = {"message": message}
        return failure.record(
            rank=self.ranks[0], local_rank=0, pid=self.launcher, code=code, time=time.time(), found=found
        )

    def _record_of(self, hung: Hung) -> Dict[str, Any]:
        rank, pid = hung.rank, self.workers().get(hung.rank, 0)
        local_rank = rank - self.ranks[0]
        found = {
            "code": ExitCode.HUNG,
            "exception": "Hung",
            "message": hung.message,
            "traceback": hung.stacks,
            "secondary": hung.secondary,
        }
        return failure.record(
            rank=rank, local_rank=local_rank, pid=pid, code=ExitCode.HUNG, time=time.time(), found=found
        )

    def _record_of_gpu(self, fault: Fault) -> Dict[str, Any]:
        local_rank = fault.gpu if 0 <= fault.gpu < len(self.ranks) else 0
        found = {"code": ExitCode.HARDWARE, "message": fault.message, "secondary": False}
        return failure.record(
            rank=self.ranks[local_rank],
            local_rank=local_rank,
            pid=self.launcher,
            code=ExitCode.HARDWARE,
            time=fault.time,
            found=found,
        )

    def _completed(self, cause: Dict[str, Any]) -> Dict[str, Any]:
        # Below a plain command the cause may have a rank of a launcher's, and the pod has one report.
        report = next((one for one in self.reports.all() if self.plain or one["rank"] == cause["rank"]), {})
        known = {"step": report.get("step"), "phase": report.get("phase")}
        watched = bool(cause.pop("watched", False))
        if cause["exception"] is None and not cause["classified"] and self._may_be_of_python(cause["code"]):
            found = printed.cause(list(self._log(cause["rank"]).lines), watched=watched)
            if found:
                known.update(found, exitCodeOnly=False)
                known["secondary"] = failure.is_secondary(found["exception"], found["message"], cause["code"])
        if cause["exception"] is None and cause["code"] > 128:
            known.update(self._crash(cause))
        if failure.is_sigkill({**cause, **known}) and self.memory.killed_about(cause["time"]):
            known.update(outOfMemory=True, exitCodeOnly=False, message=self.memory.describe())
        return failure.bounded({**cause, **{name: value for name, value in known.items() if value is not None}})

    def _may_be_of_python(self, code: int) -> bool:
        """Return whether an uncaught exception may have led to an exit code: of Python to 1, of a shell to any."""
        return code == _UNCAUGHT or (code < _SIGNALS and self.plain and not is_python(self.spec["args"][0]))

    def _crash(self, cause: Dict[str, Any]) -> Dict[str, Any]:
        """Return the output of faulthandler: from our file, or from the log if the program enabled it itself."""
        path = self.settings.run_dir / f"crash.{cause['pid']}.txt"
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            found = failure.from_crash(file.read(_CRASH_BYTES), cause["code"])
            if found:
                return found
        return failure.from_crash("\n".join(self._log(cause["rank"]).lines), cause["code"])

    def _lines(self, cause: Optional[Dict[str, Any]]) -> List[str]:
        log = self._log(cause["rank"] if cause else self.ranks[0])
        last = log.last(_LAST_LINES, _LAST_BYTES)
        if cause is None or not cause["traceback"] or self.hung is not None:
            return last
        return digest(cause["traceback"], list(log.lines) or last, _LAST_LINES)

    def _log(self, rank: int) -> RankLog:
        return next((log for log in self.logs if log.rank == rank), self.logs[0])


def notices(run_dir: Path) -> List[str]:
    """Return the notices of the newest round, from `notice.*.json` of its launcher and workers."""
    found = (read_json(path) or {} for path in sorted(run_dir.glob("notice.*.json"))[:_NOTICES])
    texts = [text for document in found for text in document.get("notices") or () if is_text(text)]
    return [head(text, _NOTICE_BYTES) for text in dict.fromkeys(texts)][:_NOTICES]


def _clean(run_dir: Path) -> None:
    """Remove flags and reports of the previous round."""
    patterns = (
        "report.*.json",
        "pace.*.json",
        "saved.*",
        "failure.*json",
        "stacks.*.txt",
        "steps.*",
        "crash.*.txt",
        "notice.*.json",
        "workers.json",
        "preempt",
    )
    for path in (path for pattern in patterns for path in run_dir.glob(pattern)):
        with contextlib.suppress(OSError):
            path.unlink()
