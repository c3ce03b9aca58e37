"""The workers of this pod: at most one round of them at a time; started, followed, stopped, and how they ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.settings import Settings
from torchyard_agent.telemetry.gpu_health import GpuHealth
from torchyard_agent.telemetry.log_forwarder import LogForwarder
from torchyard_agent.telemetry.logs import RankLog, bound_stderr
from torchyard_agent.workers import failed_rounds, failure
from torchyard_agent.workers.background import Background
from torchyard_agent.workers.command import Plain, Torchrun, classify, sent_program, torchrun_interpreter
from torchyard_agent.workers.environment import REMOVED_FROM_WORKERS
from torchyard_agent.workers.ports import ReservedPort
from torchyard_agent.workers.process import kill_descendants, reaped
from torchyard_agent.workers.recording import Recording
from torchyard_agent.workers.round_run import KILL_SECONDS, RoundRun, round_spec
from torchyard_agent.workers.zygote_client import WarmStart

_LEAVE_SECONDS = 5.0
_RECORD_SECONDS = 30.0
"""How long a round that is over already waits for the record of its environment, which takes a fifth of a second on a
quiet machine, unless a folder of Python's path hangs."""
_NEVER_STARTED = -1  # stands for the process id of a launcher there never was

logger = logging.getLogger(__name__)


class Workers:
    """The launcher and the workers below this agent.

    Args:
        settings: of the agent.
        kind: the kind of `COMMAND`, from `classify`.
        env: of the workers.
        procs: local world size where a command does not say it.
        warm: the state of warm start.
        recording: of the environment of rounds.
        gpus: the health of the GPUs of this pod.
        environment_with: returns the environment of the workers where variables of the spec have other values.

    Attributes:
        kind: of the newest round.
        round: the current round; None between rounds. The HTTP thread also reads it.
        exit: `exit` of the newest round, as in docs/protocol.md; None before the first has ended.
        disk: writes what failed rounds leave; a disk of others may take minutes.
    """

    def __init__(
        self,
        settings: Settings,
        kind: Any,
        env: Dict[str, str],
        procs: int,
        warm: WarmStart,
        *,
        recording: Recording,
        gpus: GpuHealth,
        environment_with: Callable[[Mapping[str, str]], Dict[str, str]],
    ) -> None:
        self.settings, self.kind, self.env, self.procs, self.warm = settings, kind, env, procs, warm
        self._pod_kind, self._environment_with = kind, environment_with
        self.recording, self._gpus = recording, gpus
        self.round: Optional[RoundRun] = None
        self.exit: Optional[Dict[str, Any]] = None
        self.port = ReservedPort()
        self.disk = Background("failed-rounds")
        self._echo = LogForwarder(sys.stdout.buffer)
        self._last_reports: List[Dict[str, Any]] = []
        self._last_logs: List[RankLog] = []
        self._statuses: Dict[int, int] = {}
        self._record_deadline: Optional[float] = None

    def start(self, command: Dict[str, Any], number: int, packages: Optional[str] = None) -> bool:
        """Start the round of a `run` command; return False if torch is still being imported.

        Args:
            command: the command.
            number: of the round.
            packages: folder of installed requirements.

        Raises:
            ValueError: a field is missing or of the wrong kind.
        """
        if self.warm.starting:
            return False
        program = sent_program(command)
        self.kind, env = self._pod_kind, self.env
        if program is not None:
            self.kind = classify(program.command, torchrun_interpreter(program.command[0]))
            env = self._environment_with(program.env)
        spec = round_spec(self.settings, command, self.kind, self.procs, REMOVED_FROM_WORKERS)
        spec["packages"] = packages
        self.port.lend()
        run = RoundRun(self.settings, spec, plain=isinstance(self.kind, Plain))
        if self.settings.keep_files_seconds and self.settings.record_folder is not None and not spec["nodeRank"]:
            folder, age = self.settings.record_folder, self.settings.keep_files_seconds
            self.disk.begin(lambda: failed_rounds.prune(folder, age))
        self.round = run
        logger.info("round %d: %d of %d nodes, %d workers", number, spec["nodeRank"], spec["nodes"], len(run.ranks))
        zygote = self.warm.zygote_for(self.kind) if env == self.env else None  # what torch reads once cannot change
        run.cold = zygote is None
        try:
            if zygote is not None:
                zygote.ask(run.spec_path)
            else:
                run.start_cold(self.kind.interpreter if isinstance(self.kind, Torchrun) else sys.executable, env)
        except OSError as error:
            logger.warning("round %d: %s", number, error)
            run.launcher = _NEVER_STARTED
            self._statuses[_NEVER_STARTED] = ExitCode.NOT_FOUND
        return True

    def tend(self, now: float) -> bool:
        """Follow the round and enforce pending requests; return whether the round has just ended."""
        run = self.round
        if run is None:
            return False
        for rank, lines in run.follow().items():
            self._echo.say(rank, lines)
        self.warm.prepare_for_optimizers(run.reports.all)
        if run.launcher in self._statuses:
            if self._waits_for_record(run, now):
                return False
            self._ended(run, self._statuses.pop(run.launcher))
            return True
        fault = self._gpus.fault_since(run.began)
        if fault is not None and fault.fatal and run.fault is None and run.kill_deadline is None:
            run.fault = fault
            logger.warning("round %d: %s", run.number, fault.message)
            self.stop(now)
        if run.hangs(now):
            logger.warning("round %d: %s", run.number, run.hung.message if run.hung else "")
            self.stop(now)
        if run.save_deadline is not None and run.kill_deadline is None:
            run.ask_by_signal()
            if run.saved():
                run.save_deadline = min(run.save_deadline, now + _LEAVE_SECONDS)  # they leave by themselves
                if not run.still_leaving():
                    run.save_deadline = now
            if now >= run.save_deadline:
                self.stop(now)
        if run.kill_deadline is not None and now >= run.kill_deadline:
            logger.warning("round %d: killed the remaining processes of the workers", run.number)
            kill_descendants(os.getpid(), self.warm.pids())
        return False

    def _waits_for_record(self, run: RoundRun, now: float) -> bool:
        """Return whether a round that ended early has to wait until its environment is recorded."""
        if run.asked or run.preempted or not self.recording.busy:
            return False
        if self._record_deadline is None:
            self._record_deadline = now + _RECORD_SECONDS
        return now < self._record_deadline

    def stop(self, now: float) -> None:
        """Send SIGTERM to the launcher of the round, and later SIGKILL to the remaining processes."""
        run = self.round
        assert run is not None
        run.asked = True
        if run.kill_deadline is None and run.launcher > 0:
            run.kill_deadline = now + KILL_SECONDS + 0.5
            try:
                os.kill(run.launcher, signal.SIGTERM)
            except ProcessLookupError:
                return

    def pids(self) -> Dict[int, int]:
        """Return the known process ids of the workers by global rank."""
        return self.round.workers() if self.round else {}

    def reports(self) -> List[Dict[str, Any]]:
        """Return the newest reports of the current or last round."""
        return self.round.newest_reports() if self.round else self._last_reports

    def hear_zygote(self) -> None:
        """Handle messages of the zygote, and its end."""
        zygote = self.warm.zygote
        if zygote is None:
            return
        for message in zygote.receive():
            if "started" in message and self.round is not None and not self.round.launcher:
                self.round.launcher = message["started"]
            elif "ended" in message:
                self._statuses[message["ended"]] = message["status"]
            elif "ready" in message:
                logger.info("warm start: %s has imported torch", message["ready"])
        if zygote.state == "failed":
            self._zygote_failed(zygote.reason)

    def reap(self) -> None:
        """Reap all children that have ended, including inherited ones."""
        for pid, code in reaped():
            if pid in self.warm.pids():
                self._zygote_failed(failure.describe(failure.exit_code(code)))
            elif self.round is not None and pid == self.round.launcher:
                self._statuses[pid] = code

    def close(self) -> None:
        """Write the remaining reports and end all processes."""
        self._echo.close()
        self.warm.close()
        kill_descendants(os.getpid())

    def _zygote_failed(self, reason: str) -> None:
        self.warm.failed(reason)
        if self.round is not None and not self.round.cold:
            self.round.launcher = self.round.launcher or _NEVER_STARTED
            self._statuses.setdefault(self.round.launcher, -signal.SIGKILL)

    def keep_failed(self, *, terminated: bool) -> None:
        """Begin to write output and files of the round that has just ended, if its failure began here."""
        ended, folder = self.exit, self.settings.record_folder
        if ended is None or folder is None or not failed_rounds.began_here(ended, terminated=terminated):
            return
        run_dir = self.settings.run_dir if self.settings.keep_files_seconds else None
        evidence = failed_rounds.Evidence(self.settings.pod_name, ended, self._last_logs, run_dir)
        if not self.disk.begin(lambda: evidence.write(folder)):
            evidence.close()
            logger.warning(
                "round %d: its output is not kept: %s does not take that of former ones", ended["round"], folder
            )

    def _ended(self, run: RoundRun, status: int) -> None:
        left = kill_descendants(os.getpid(), self.warm.pids())
        for rank, lines in run.follow(last=True).items():
            self._echo.say(rank, lines)
        run.fault = run.fault or self._gpus.fault_since(run.began)
        self.exit = run.ended(status, self._gpus.program_errors_since(run.began))
        self._last_reports, self._last_logs = run.reports.all(), run.logs
        if self.exit["code"] != 0:  # another round may follow
            self.warm.prepare_for_optimizers(run.reports.all)
        self.round = self._record_deadline = None
        self.reap()
        bound_stderr()
        logger.info("round %d ended: code %d%s", run.number, self.exit["code"], f", {left} killed" if left else "")
