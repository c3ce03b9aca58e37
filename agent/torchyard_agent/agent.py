"""The agent: one loop that hears signals, children and the operator, and makes one move at a time.

Threads only carry: the sync client, the local HTTP server, NVML and the echo of output. Everything is decided here.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from typing import Any, Dict, List, Optional

from torchyard_agent import dump, failure, local_http, termination, told
from torchyard_agent.command import Plain, Torchrun, classify, torchrun_interpreter
from torchyard_agent.echo import Echo
from torchyard_agent.environment import REMOVED_FROM_WORKERS, worker_environment, write_hooks, zygote_environment
from torchyard_agent.files import write_json
from torchyard_agent.gpus import Gpus
from torchyard_agent.ports import ReservedPort
from torchyard_agent.process import become_subreaper, catches, kill_descendants, reaped
from torchyard_agent.reports import from_kubeflow, trimmed
from torchyard_agent.round_run import KILL_SECONDS, RoundRun, round_spec
from torchyard_agent.rounds import Move, Standing, next_move
from torchyard_agent.settings import Settings
from torchyard_agent.sync import Sync
from torchyard_agent.wakeup import Wakeup
from torchyard_agent.warm import WarmStart

PREEMPTED, TERMINATED = 75, 143
_TICK_RUNNING, _TICK_IDLE = 0.25, 1.0
_SAVE_RESERVE_SECONDS = 5.0
_LEAVE_SECONDS = 5.0
_FORWARDED = (signal.SIGHUP, signal.SIGUSR1)
_NEVER_STARTED = -1  # stands for the process id of a launcher there never was

logger = logging.getLogger(__name__)


class Agent:
    """PID 1 of one training container."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(16)
        self.standing = Standing()
        self.round: Optional[RoundRun] = None
        self.exit: Optional[Dict[str, Any]] = None
        self.last_reports: List[Dict[str, Any]] = []
        self.dumped: Optional[Dict[str, Any]] = None
        self.leaving: Optional[int] = None  # the code to exit with, once no worker is left
        self.terminated = False
        self.notices: List[str] = []
        self.port = ReservedPort()
        self.echo = Echo(sys.stdout)
        self.gpus = Gpus()
        self.statuses: Dict[int, int] = {}
        self._published: Any = None
        self._bad_command = 0

    def run(self) -> int:
        """Serve until told to exit; the exit code of the pod."""
        self._open()
        while True:
            self._wait()
            self._reap()
            self._hear_signals()
            now = time.monotonic()
            self._tend_round(now)
            code = self._move(now)
            self._publish()
            if code is not None:
                return self._close(code)

    # Opening and closing

    def _open(self) -> None:
        settings = self.settings
        for folder in (settings.run_dir, settings.log_dir):
            folder.mkdir(parents=True, exist_ok=True)
        self.wakeup = Wakeup((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, *_FORWARDED))
        if os.getpid() != 1 and not become_subreaper():
            self.notices.append("prctl is not available: processes that leave their session are not cleaned up")
        token = secrets.token_hex(16)
        token_file = settings.run_dir / "progress.token"
        os.close(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        token_file.write_text(token, encoding="utf-8")
        server = local_http.serve(settings.listen, token, self.status, self._progress)
        host, port = str(server.server_address[0]), int(server.server_address[1])
        self.env = worker_environment(
            os.environ, settings, f"http://{host}:{port}{local_http.PROGRESS_PATH}", token_file
        )
        write_hooks(settings)
        write_json(
            settings.run_dir / "agent.json",
            {"pid": os.getpid(), "port": port, "instance": self.instance, "startTime": time.time()},
        )
        self.gpus.start()
        self.procs = settings.procs or self.gpus.count() or 1
        interpreter = torchrun_interpreter(settings.command[0])
        self.kind = classify(settings.command, interpreter)
        zygote_env = zygote_environment(self.env, self.procs)
        self.warm = WarmStart(self.kind, zygote_env, settings.preload, wanted=settings.warm_start)
        self.sync = Sync(settings.operator_url, settings.token_file, settings.ca_file, self.instance, self.wakeup.wake)
        self._publish()
        self.sync.start()

    def _close(self, code: int) -> int:
        self.echo.close()
        if not self.sync.superseded:
            self.sync.flush(2.0)
        self.sync.close()
        self.gpus.stop()
        self.warm.close()
        kill_descendants(os.getpid())
        if self.settings.termination_log is not None:
            termination.write(self.settings.termination_log, code, self.exit)
        logger.info("exit %d", code)
        return code

    # What is heard

    def _wait(self) -> None:
        zygote = self.warm.zygote
        watched = [] if zygote is None else [zygote.socket]
        if self.wakeup.wait(watched, _TICK_RUNNING if self.round else _TICK_IDLE) and zygote is not None:
            for message in zygote.receive():
                self._hear_zygote(message)
            if zygote.state == "failed":
                self._zygote_failed(zygote.reason)
        self.warm.give_up_after(self.settings.warm_seconds)

    def _hear_zygote(self, message: Dict[str, Any]) -> None:
        if "started" in message and self.round is not None and not self.round.launcher:
            self.round.launcher = message["started"]
        elif "ended" in message:
            self.statuses[message["ended"]] = message["status"]
        elif "ready" in message:
            logger.info("warm: %s has torch imported", message["ready"])

    def _zygote_failed(self, reason: str) -> None:
        self.warm.failed(reason)
        if self.round is not None and not self.round.cold:
            self.round.launcher = self.round.launcher or _NEVER_STARTED
            self.statuses.setdefault(self.round.launcher, -signal.SIGKILL)

    def _reap(self) -> None:
        for pid, code in reaped():
            if pid in self.warm.pids():
                self._zygote_failed(failure.describe(failure.exit_code(code)))
            elif self.round is not None and pid == self.round.launcher:
                self.statuses[pid] = code

    def _hear_signals(self) -> None:
        for number in self.wakeup.signals():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._terminate()
            elif number == signal.SIGUSR2:
                logger.info("stacks:\n%s", dump.dump(self.settings.run_dir, self.round.workers() if self.round else {}))
            elif self.round is not None:
                for pid in self.round.workers().values():
                    if catches(pid, number):
                        os.kill(pid, number)

    def _terminate(self) -> None:
        """SIGTERM: save within the grace period and leave; the second one: leave now."""
        now = time.monotonic()
        again, self.terminated = self.terminated, True
        if self.round is None:
            self.leaving = PREEMPTED if (self.exit or {}).get("saved") else TERMINATED
        elif again or self.round.kill_deadline is not None:
            self._stop_round(now)
        elif self.round.save_deadline is None:
            self.round.ask_to_save(max(0.0, self.settings.grace_seconds - _SAVE_RESERVE_SECONDS), now)

    # The round

    def _tend_round(self, now: float) -> None:
        run = self.round
        if run is None:
            return
        for rank, lines in run.follow().items():
            self.echo.say(rank, lines)
        if run.launcher in self.statuses:
            self._round_ended(self.statuses.pop(run.launcher))
            return
        if run.save_deadline is not None and run.kill_deadline is None:
            if run.saved():
                run.save_deadline = min(run.save_deadline, now + _LEAVE_SECONDS)  # they leave by themselves
                if not run.still_leaving():
                    run.save_deadline = now
            if now >= run.save_deadline:
                self._stop_round(now)
        if run.kill_deadline is not None and now >= run.kill_deadline:
            logger.warning("round %d: killed what was left of the workers", run.number)
            kill_descendants(os.getpid(), self.warm.pids())

    def _stop_round(self, now: float) -> None:
        run = self.round
        assert run is not None
        run.asked = True
        if run.kill_deadline is None and run.launcher > 0:
            run.kill_deadline = now + KILL_SECONDS + 0.5
            try:
                os.kill(run.launcher, signal.SIGTERM)
            except ProcessLookupError:
                return

    def _round_ended(self, status: int) -> None:
        run = self.round
        assert run is not None
        left = kill_descendants(os.getpid(), self.warm.pids())
        for rank, lines in run.follow(last=True).items():
            self.echo.say(rank, lines)
        self.exit = run.ended(status)
        self.last_reports = run.reports.all()
        self.round = None
        self._reap()
        logger.info("round %d ended: code %d%s", run.number, self.exit["code"], f", {left} killed" if left else "")
        if self.terminated:
            self.leaving = {0: 0, PREEMPTED: PREEMPTED}.get(self.exit["code"], TERMINATED)

    def _start_round(self, command: Dict[str, Any], number: int) -> None:
        if self.warm.starting:
            return  # the round begins as soon as torch is imported
        spec = round_spec(self.settings, command, self.kind, self.procs, REMOVED_FROM_WORKERS)
        self.port.release()
        self.standing = Standing(accepted=number, fence=self.standing.fence, dumped=self.standing.dumped)
        run = RoundRun(self.settings, spec, plain=isinstance(self.kind, Plain))
        self.round = run
        logger.info("round %d: %d of %d nodes, %d workers", number, spec["nodeRank"], spec["nodes"], len(run.ranks))
        run.cold = self.warm.zygote is None
        try:
            if self.warm.zygote is not None:
                self.warm.zygote.ask(run.spec_path)
            else:
                run.start_cold(self.kind.interpreter if isinstance(self.kind, Torchrun) else sys.executable, self.env)
        except OSError as error:
            logger.warning("round %d: %s", number, error)
            run.launcher = _NEVER_STARTED
            self.statuses[_NEVER_STARTED] = 127

    # Commands

    def _standing(self) -> Standing:
        run = self.round
        return Standing(
            accepted=self.standing.accepted,
            fence=self.standing.fence,
            running=run.number if run else None,
            ending=bool(run and (run.save_deadline is not None or run.kill_deadline is not None)),
            saving=bool(run and run.save_deadline is not None and run.kill_deadline is None),
            dumped=self.standing.dumped,
        )

    def _move(self, now: float) -> Optional[int]:
        """Make the next move; the exit code when it is to leave."""
        if self.sync.superseded and self.leaving is None:
            logger.warning("another instance of this pod is newer: leaving")
            self.leaving = TERMINATED
            if self.round is not None:
                self._stop_round(now)
        if self.leaving is not None or self.terminated:
            return self.leaving if self.round is None else None
        command = self.sync.command
        try:
            move = next_move(self._standing(), command)
            self._make(move, command, now)
        except ValueError as error:
            if self.sync.revision != self._bad_command:
                self._bad_command = self.sync.revision
                logger.warning("%s", error)
                self.notices.append(str(error))
        if self.leaving is None and self._orphaned(now):
            self.leaving = 0
        return self.leaving if self.round is None else None

    def _make(self, move: Move, command: Dict[str, Any], now: float) -> None:
        if move.verb == "start":
            self._start_round(command, move.round)
        elif move.verb == "stop":
            self._fence(command)
            self._stop_round(now)
        elif move.verb == "save" and self.round is not None:
            self._fence(command)
            self.round.ask_to_save(move.seconds, now)
        elif move.verb == "dump":
            self._dump(move.dump)
        elif move.verb == "exit":
            self.leaving = move.code

    def _fence(self, command: Dict[str, Any]) -> None:
        if command["verb"] in ("stop", "save-and-stop"):
            fence = max(self.standing.fence, int(command["round"]))
            self.standing = Standing(accepted=self.standing.accepted, fence=fence, dumped=self.standing.dumped)

    def _dump(self, number: int) -> None:
        text = dump.dump(self.settings.run_dir, self.round.workers() if self.round else {})
        (self.settings.log_dir / f"dump-{number}.txt").write_text(text, encoding="utf-8")
        self.dumped = {"id": number, "text": dump.shorten(text)}
        self.standing = Standing(accepted=self.standing.accepted, fence=self.standing.fence, dumped=number)

    def _orphaned(self, now: float) -> bool:
        done = self.round is None and self.exit is not None and self.exit["code"] == 0
        silent = now - max(self.sync.answered_at, self._ended_at()) > self.settings.orphan_seconds
        return done and silent

    def _ended_at(self) -> float:
        ended = (self.exit or {}).get("time", 0.0)
        return time.monotonic() - (time.time() - ended) if ended else 0.0

    # What is told

    def _document(self) -> Dict[str, Any]:
        reports = self.round.reports.all() if self.round else self.last_reports
        document = {
            "state": told.state(
                self._standing(), leaving=self.leaving is not None or self.terminated, starting=self.warm.starting
            ),
            "round": self.standing.accepted,
            "address": self.settings.address,
            "masterPort": self.port.number(),
            "procs": self.procs,
            "gpus": self.gpus.latest(),
            "reports": trimmed(reports),
            "notices": self._notices()[-8:],
        }
        if self.exit is not None:
            document["exit"] = self.exit
        if self.dumped is not None:
            document["dump"] = self.dumped
        return document

    def _notices(self) -> List[str]:
        said = (self.gpus.notice, self.warm.notice)
        return [*filter(None, said), *self.notices]

    def _publish(self) -> None:
        document = self._document()
        news = told.news(document)
        self.sync.publish(document, urgent=news != self._published)
        self._published = news

    def status(self) -> Dict[str, Any]:
        """The answer to `/status`; called from the HTTP thread."""
        reports = self.round.reports.all() if self.round else self.last_reports
        return {
            **self._document(),
            "instance": self.instance,
            "job": self.settings.job,
            "pod": self.settings.pod_name,
            "reports": reports,
            "workers": self.round.workers() if self.round else {},
            "warm": self.warm.ready,
            "operatorConnected": self.sync.trouble is None and self.sync.revision > 0,
        }

    def _progress(self, body: Any) -> None:
        """A progress call of rank 0, from the HTTP thread."""
        fields = from_kubeflow(body)
        run = self.round
        if run is not None:
            run.reports.add(0, fields)
