"""The agent: one loop that receives signals, ends of children and commands, and makes one step at a time.

Threads only transfer data: the sync client, the local HTTP server, NVML and forwarded output. All decisions
are made here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from torchyard_agent import termination
from torchyard_agent.control import local_http, ownership, status_report
from torchyard_agent.control.content import Content
from torchyard_agent.control.event_loop import EventLoop
from torchyard_agent.control.rounds import Move, RoundState, next_move
from torchyard_agent.control.sync import Sync
from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import write_json
from torchyard_agent.inputs.preparation import Preparation
from torchyard_agent.requirements.preparation import Requirements
from torchyard_agent.settings import Settings
from torchyard_agent.telemetry.gpus import Gpus
from torchyard_agent.telemetry.output import LITTLE_SPACE, free_space, full_disk_notice
from torchyard_agent.telemetry.reports import from_kubeflow, trimmed
from torchyard_agent.workers import code
from torchyard_agent.workers.command import classify, interpreter_of, torchrun_interpreter
from torchyard_agent.workers.environment import with_variables, worker_environment, write_hooks, zygote_environment
from torchyard_agent.workers.process import become_subreaper
from torchyard_agent.workers.recipients import handlers
from torchyard_agent.workers.recording import Recording
from torchyard_agent.workers.round_run import notices
from torchyard_agent.workers.workers import Workers
from torchyard_agent.workers.zygote_client import WarmStart

_TICK_RUNNING, _TICK_IDLE = 0.25, 1.0
_SAVE_RESERVE_SECONDS = 5.0
_KEEP_SECONDS = 20.0
"""How long a pod that leaves waits until its failed rounds are written beside the checkpoints."""
_FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

logger = logging.getLogger(__name__)


class Agent:
    """PID 1 of one training container."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(16)
        self.rounds = RoundState()
        self.leaving: Optional[int] = None  # exit code, once no worker is left
        self.terminated = False
        self.notices: List[str] = []
        self.gpus = Gpus()
        self.recording = Recording(settings.record_folder)
        self.content = Content(settings.job_uid, settings.content_folders, settings.variable_folders)
        self.inputs = Preparation(settings.code_source, settings.inputs, settings.run_dir)
        places = {"root": settings.code_root, "mount": settings.code_mount}
        self.requirements = Requirements(
            settings.requirements, {name: None if path is None else str(path) for name, path in places.items()}
        )
        self.obeyed = 0  # revision of the newest command that was read
        self._published: Any = None
        self._bad_command = 0

    def run(self) -> int:
        """Serve until the operator asks to exit; return the exit code of the pod."""
        self._open()
        while True:
            self._wait()
            self.workers.reap()
            self._hear_signals()
            self._receive_preparations()
            now = time.monotonic()
            self._tend(now)
            code = self._move(now)
            self._publish()
            if code is not None:
                return self._close(code)

    # Opening and closing

    def _open(self) -> None:
        settings = self.settings
        for folder in (settings.run_dir, settings.log_dir):
            folder.mkdir(parents=True, exist_ok=True)
        # With a handler in the agent, workers would not inherit that a signal is ignored. SIGHUP they never inherit.
        own = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        self.wakeup = EventLoop({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *own})
        if os.getpid() != 1 and not become_subreaper():
            self.notices.append("prctl is not available: processes that leave their session are not cleaned up")
        token = secrets.token_hex(16)
        token_file = settings.run_dir / "progress.token"
        os.close(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        token_file.write_text(token, encoding="utf-8")
        server = local_http.serve(settings.listen, token, self.status, self._progress)
        host, port = str(server.server_address[0]), int(server.server_address[1])
        write_hooks(settings)
        write_json(
            settings.run_dir / "agent.json",
            {"pid": os.getpid(), "port": port, "instance": self.instance, "startTime": time.time()},
        )
        expected = settings.gpus if settings.procs else 0
        if not expected:
            self.gpus.start()
        gpus = expected or self.gpus.count()
        procs = settings.procs or gpus or 1
        progress_url = f"http://{host}:{port}{local_http.PROGRESS_PATH}"
        env = worker_environment(os.environ, settings, progress_url, token_file, gpus)
        interpreter = torchrun_interpreter(settings.command[0])
        kind = classify(settings.command, interpreter)
        warm_env = zygote_environment(env, procs)
        self.warm = WarmStart(kind, warm_env, settings.preload, wanted=settings.warm_start, inherited=settings.zygote)
        # Torch is imported from here on, beside what a driver or a file server may take seconds for.
        if expected:
            self.gpus.start()
        if settings.owned_folder is not None and settings.pod_index == 0:
            said = ownership.take(settings.owned_folder, settings.job_uid, go_on=settings.goes_on)
            self.notices += [said] if said is not None else []
        self.workers = Workers(
            settings,
            kind,
            env,
            procs,
            self.warm,
            recording=self.recording,
            gpus=self.gpus.health,
            environment_with=lambda variables: worker_environment(
                with_variables(os.environ, variables), settings, progress_url, token_file, gpus
            ),
        )
        self.sync = Sync(settings.operator_url, settings.token_file, settings.ca_file, self.instance, self.wakeup.wake)
        self.inputs.start(os.environ)
        self.requirements.start(interpreter_of(kind))
        self._publish()
        self.sync.start()

    def _close(self, code: int) -> int:
        if not self.sync.superseded:
            self.sync.flush(2.0)
        self.sync.close()
        self.gpus.stop()
        if not self.workers.disk.finish(_KEEP_SECONDS):
            logger.warning("the output of a failed round could not be written within %.0f s", _KEEP_SECONDS)
        self.workers.close()
        if self.settings.termination_log is not None:
            message = self.inputs.message or self.requirements.message
            refused = {"failure": {"code": code, "message": message}} if message else None
            termination.write(self.settings.termination_log, code, refused or self.workers.exit)
        logger.info("exit %d", code)
        return code

    # Events

    def _wait(self) -> None:
        zygote = self.warm.zygote
        watched = [*([] if zygote is None else [zygote.socket]), *self.inputs.watched, *self.requirements.watched]
        readable = self.wakeup.wait(watched, _TICK_RUNNING if self.workers.round else _TICK_IDLE)
        if zygote is not None and zygote.socket in readable:  # a read of another one would wait for ever
            self.workers.hear_zygote()
        self.warm.give_up_after(self.settings.warm_seconds)

    def _hear_signals(self) -> None:
        for number in self.wakeup.signals():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._terminate()
            else:
                for pid in handlers(number, self.workers.pids().values(), self.settings.run_dir):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)

    def _receive_preparations(self) -> None:
        for each in (self.inputs, self.requirements):
            each.receive()
            if each.code and self.leaving is None:
                self.leaving = each.code

    def _terminate(self) -> None:
        """SIGTERM: save within the grace period and leave; the second one: leave now."""
        now = time.monotonic()
        again, self.terminated = self.terminated, True
        run = self.workers.round
        if run is None:
            self.leaving = ExitCode.PREEMPTED if (self.workers.exit or {}).get("saved") else ExitCode.TERMINATED
        elif again or run.kill_deadline is not None:
            self.workers.stop(now)
        elif run.save_deadline is None:
            run.ask_to_save(max(0.0, self.settings.grace_seconds - _SAVE_RESERVE_SECONDS), now)

    def _tend(self, now: float) -> None:
        full = full_disk_notice(str(self.settings.log_dir))
        if full not in self.notices and free_space(self.settings.log_dir) < LITTLE_SPACE:
            self.notices.append(full)
        over = self.workers.tend(now)
        if over:
            self.workers.keep_failed(terminated=self.terminated)
        if over and self.terminated:
            assert self.workers.exit is not None
            self.leaving = {0: 0, ExitCode.PREEMPTED: ExitCode.PREEMPTED}.get(
                self.workers.exit["code"], ExitCode.TERMINATED
            )

    # Commands

    def _round_state(self) -> RoundState:
        run = self.workers.round
        return RoundState(
            accepted=self.rounds.accepted,
            fence=self.rounds.fence,
            running=run.number if run else None,
            ending=bool(run and (run.save_deadline is not None or run.kill_deadline is not None)),
            saving=bool(run and run.save_deadline is not None and run.kill_deadline is None),
        )

    def _move(self, now: float) -> Optional[int]:
        """Make the next move; the exit code when it is to leave."""
        command, self.obeyed = self.sync.pending_command()
        if self.sync.superseded and self.leaving is None:
            logger.warning("a newer agent of this pod has connected; exiting")
            self.leaving = ExitCode.TERMINATED
            if self.workers.round is not None:
                self.workers.stop(now)
        if self.leaving is not None or self.terminated:
            return self.leaving if self.workers.round is None else None
        try:
            move = next_move(self._round_state(), command)
            self._make(move, command, now)
        except ValueError as error:
            if self.obeyed != self._bad_command:
                self._bad_command = self.obeyed
                logger.warning("%s", error)
                self.notices.append(str(error))
        if self.leaving is None and self._orphaned(now):
            self.leaving = 0
        return self.leaving if self.workers.round is None else None

    def _make(self, move: Move, command: Dict[str, Any], now: float) -> None:
        if move.verb == "start":
            if self.inputs.running or not self.requirements.ready(command.get("code")):
                return
            packages = self.requirements.folder
            if self.workers.start(command, move.round, packages):
                self.rounds = RoundState(accepted=move.round, fence=self.rounds.fence)
                if int(command["nodeRank"]) == 0:
                    folder = self._code_folder(command)
                    self.recording.start(interpreter_of(self.workers.kind), move.round, folder, packages)
        elif move.verb == "stop":
            self._fence(command)
            self.workers.stop(now)
        elif move.verb == "save" and self.workers.round is not None:
            self._fence(command)
            self.workers.round.ask_to_save(move.seconds, now)
        elif move.verb == "exit":
            self.leaving = move.code

    def _code_folder(self, command: Dict[str, Any]) -> Optional[Path]:
        root, bundle = self.settings.code_root, command.get("code")
        return root / str(bundle["digest"]) if root is not None and bundle else None

    def _fence(self, command: Dict[str, Any]) -> None:
        if command["verb"] in ("stop", "save-and-stop"):
            fence = max(self.rounds.fence, int(command["round"]))
            self.rounds = RoundState(accepted=self.rounds.accepted, fence=fence)

    def _orphaned(self, now: float) -> bool:
        ended = self.workers.exit
        done = self.workers.round is None and ended is not None and ended["code"] == 0
        silent = now - max(self.sync.answered_at, self._ended_at()) > self.settings.orphan_seconds
        return done and silent

    def _ended_at(self) -> float:
        ended = (self.workers.exit or {}).get("time", 0.0)
        return time.monotonic() - (time.time() - ended) if ended else 0.0

    # Reports

    def _document(self) -> Dict[str, Any]:
        document = {
            "state": status_report.state(
                self._round_state(),
                leaving=self.leaving is not None or self.terminated,
                starting=self.warm.starting or self.inputs.running or self.requirements.running,
            ),
            "round": self.rounds.accepted,
            "address": self.settings.address,
            "masterPort": self.workers.port.number(),
            "procs": self.workers.procs,
            "content": self.content.latest(idle=self.workers.round is None),
            "environment": self.recording.digest,
            "gpus": self.gpus.latest(),
            "reports": trimmed(self.workers.reports()),
            "notices": self._notices()[-8:],
        }
        if self.inputs.states:
            document["inputs"] = self.inputs.states
        if self.settings.code_root is not None and self.settings.requirements is None:
            # Edited code may need other packages, which are installed when a pod starts.
            document["codes"] = code.pushed(self.settings.code_root)
        if self.requirements.state:
            document["requirements"] = self.requirements.state
        if self.workers.exit is not None:
            document["exit"] = self.workers.exit
        return document

    def _notices(self) -> List[str]:
        gpus = self.gpus.notice if self.settings.gpus else None
        broken = self.gpus.health.notices() if self.settings.gpus else []
        return [*filter(None, (gpus, self.warm.notice)), *broken, *notices(self.settings.run_dir), *self.notices]

    def _publish(self) -> None:
        document = self._document()
        news = status_report.news(document)
        self.sync.publish(document, obeyed=self.obeyed, urgent=news != self._published)
        self._published = news

    def status(self) -> Dict[str, Any]:
        """Return the answer to `/status`; called from the HTTP thread."""
        return {
            **self._document(),
            "instance": self.instance,
            "job": self.settings.job,
            "pod": self.settings.pod_name,
            "reports": self.workers.reports(),
            "workers": self.workers.pids(),
            "warm": self.warm.ready,
            "operatorConnected": self.sync.trouble is None and self.sync.revision > 0,
        }

    def _progress(self, body: Any) -> None:
        """Take a progress call of rank 0, from the HTTP thread."""
        fields = from_kubeflow(body)
        run = self.workers.round
        if run is not None:
            run.reports.add(0, fields)
