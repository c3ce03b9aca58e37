"""The faults of the soak: how each is made, and what the status must report."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from soak_run import DEADLINE_SECONDS, STOPPED, Pod, Run, Worker, alive, parent, until

KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
FULL_SECONDS = 2.0
MIB = 1 << 20


class Expected(NamedTuple):
    """What one fault leads to. No reason: no round ends. `ranks`: may be named; `exception`: a part of it."""

    reason: str = ""
    ranks: tuple[int, ...] = ()
    code: int | None = None
    exception: str = ""
    new_pods: int = 0
    counted: bool = True  # in `restarts.total`
    warning: str = ""
    chaos: bool = False  # nobody can tell what exactly it leads to, but that it heals


class Scene(NamedTuple):
    """The run in the middle of training, as the injector finds it."""

    run: Run
    draw: random.Random
    status: dict[str, Any]
    workers: list[Worker]
    pods: list[Pod]

    def any_worker(self) -> Worker:
        return self.draw.choice(self.workers)

    def ranks_of(self, pod: Pod) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.workers if worker.pod == pod.name)


def _killed(*workers: Worker) -> Expected:
    return Expected("Killed", tuple(worker.rank for worker in workers), KILLED, "killed by SIGKILL")


def kill_worker(scene: Scene) -> Expected:
    worker = scene.any_worker()
    os.kill(worker.pid, signal.SIGKILL)
    return _killed(worker)


def kill_two_workers(scene: Scene) -> Expected:
    workers = scene.draw.sample(scene.workers, 2)
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    return _killed(*workers)


def terminate_worker(scene: Scene) -> Expected:
    worker = scene.any_worker()
    os.kill(worker.pid, signal.SIGTERM)
    return Expected("Terminated", (worker.rank,), TERMINATED, "killed by SIGTERM")


def kill_while_saving(scene: Scene) -> Expected:
    worker, root = scene.any_worker(), scene.run.checkpoints
    until(lambda: [*root.glob(".step-*")], "a save begins")
    os.kill(worker.pid, signal.SIGKILL)
    return _killed(worker)


def spoil_newest_checkpoint(scene: Scene) -> Expected:
    """While all ranks stand still, so that none writes a newer one before the kill; an older one must be left."""
    until(lambda: len(scene.run.saved()) > 1, "there are two checkpoints")
    for worker in scene.workers:
        os.kill(worker.pid, signal.SIGSTOP)
    newest = scene.run.checkpoints / f"step-{scene.run.saved()[-1]:08d}"
    victim = scene.draw.choice(sorted(path for path in newest.rglob("*") if path.is_file() and path.name != "COMMIT"))
    data = bytearray(victim.read_bytes())
    if scene.draw.random() < 0.5:
        data = data[: scene.draw.randrange(len(data))]
    else:
        data[scene.draw.randrange(len(data))] ^= 1 << scene.draw.randrange(8)
    victim.write_bytes(data)
    worker = scene.any_worker()
    os.kill(worker.pid, signal.SIGKILL)
    for other in scene.workers:
        if other != worker and alive(other.pid):
            os.kill(other.pid, signal.SIGCONT)
    return _killed(worker)._replace(warning=f"checkpoint passed over: {newest.name}")


def kill_launcher(scene: Scene) -> Expected:
    worker = scene.any_worker()
    first = min(each.rank for each in scene.workers if each.pod == worker.pod)
    os.kill(parent(worker.pid), signal.SIGKILL)
    return Expected("Killed", (first,), KILLED, "the launcher ended before the workers did: killed by SIGKILL")


def kill_agent(scene: Scene) -> Expected:
    pod = scene.draw.choice(scene.pods)
    os.kill(pod.agent, signal.SIGKILL)
    return Expected("PodFailed", scene.ranks_of(pod)[:1], KILLED, "its agent was killed by SIGKILL", new_pods=1)


def kill_keeper(scene: Scene) -> Expected:
    pod = scene.draw.choice(scene.pods)
    os.kill(pod.keeper, signal.SIGKILL)
    return Expected("PodLost", scene.ranks_of(pod)[:1], KILLED, "processes vanished", new_pods=1)


def kill_operator(scene: Scene) -> Expected:
    scene.run.end_controller(signal.SIGKILL)
    scene.run.run()
    return Expected()


def kill_operator_and_worker(scene: Scene) -> Expected:
    worker = scene.any_worker()
    scene.run.end_controller(signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    scene.run.run()
    return _killed(worker)


def kill_operator_and_agent(scene: Scene) -> Expected:
    pod = scene.draw.choice(scene.pods)
    scene.run.end_controller(signal.SIGKILL)
    os.kill(pod.agent, signal.SIGKILL)
    scene.run.run()
    return Expected("PodFailed", scene.ranks_of(pod)[:1], KILLED, "its agent was killed by SIGKILL", new_pods=1)


def kill_any_two(scene: Scene) -> Expected:
    """Two of all processes of the run, moments apart: most often the second one dies in the middle of a recovery."""
    assert scene.run.controller is not None
    for pause in (scene.draw.uniform(0.0, 2.0), 0.0):
        pids = [int(line.split()[0]) for line in scene.run.left()]
        with contextlib.suppress(ProcessLookupError):
            os.kill(scene.draw.choice(pids), signal.SIGKILL)
        time.sleep(pause)
    with contextlib.suppress(subprocess.TimeoutExpired):
        scene.run.controller.wait(0.5)
        scene.run.run()
    return Expected(chaos=True)


def freeze(scene: Scene) -> Expected:
    """A worker, an agent or the operator stands still for a moment."""
    assert scene.run.controller is not None
    pids = [scene.run.controller.pid, *(each.pid for each in scene.workers), *(each.agent for each in scene.pods)]
    victim = scene.draw.choice(pids)
    os.kill(victim, signal.SIGSTOP)
    time.sleep(scene.draw.uniform(0.2, 3.0))
    os.kill(victim, signal.SIGCONT)
    return Expected()


def _suspended(run: Run) -> Expected:
    assert run.controller is not None
    code = run.controller.wait(DEADLINE_SECONDS)
    assert code == STOPPED, f"the controlling process ended with {code}"
    return Expected("Suspended", counted=False, new_pods=1)


def stop_and_resume(scene: Scene) -> Expected:
    done = scene.run.say("stop", scene.run.folder.name)
    assert done.returncode == STOPPED, f"`torchyard stop` ended with {done.returncode}: {done.stderr}"
    expected = _suspended(scene.run)
    scene.run.control("resume", scene.run.folder.name)
    return expected


def kill_operator_and_stop(scene: Scene) -> Expected:
    """No process controls the run when it is stopped: `torchyard stop` does so itself."""
    scene.run.end_controller(signal.SIGKILL)
    done = scene.run.say("stop", scene.run.folder.name)
    assert done.returncode == STOPPED, f"`torchyard stop` ended with {done.returncode}: {done.stderr}"
    scene.run.run()
    return Expected("Suspended", counted=False, new_pods=1)


def interrupt_and_kill(scene: Scene) -> Expected:
    """It is stopping when it is killed, or has stopped already."""
    assert scene.run.controller is not None
    scene.run.controller.send_signal(signal.SIGINT)
    time.sleep(scene.draw.uniform(0.0, 1.0))
    scene.run.end_controller(signal.SIGKILL)
    scene.run.run()
    return Expected(chaos=True)


def interrupt_and_run(scene: Scene) -> Expected:
    assert scene.run.controller is not None
    scene.run.controller.send_signal(scene.draw.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
    expected = _suspended(scene.run)
    scene.run.run()
    return expected


def suspend_by_edit(scene: Scene) -> Expected:
    scene.run.edit(lambda spec: spec.update(suspend=True))
    expected = _suspended(scene.run)
    scene.run.run()
    return expected


def run_twice(scene: Scene) -> Expected:
    done = scene.run.say("run", str(scene.run.file))
    assert done.returncode == 64, f"a second `run` ended with {done.returncode}: {done.stderr}"
    assert "is controlled by process" in done.stderr, done.stderr
    return Expected()


def edit_grace_period(scene: Scene) -> Expected:
    run, seconds = scene.run, f"{scene.draw.randint(30, 3000)}s"
    run.edit(lambda spec: spec.update(gracePeriod=seconds))
    run.document["spec"]["gracePeriod"] = seconds
    run.write_file()
    seen = scene.status["observedGeneration"]
    until(lambda: run.status().get("observedGeneration", 0) > seen, "the edit is observed")
    return Expected()


def fill_disk(scene: Scene) -> Expected:
    """Nothing can be written below the run's home for a moment; needs one of its own, see `--disk`."""
    ballast = scene.run.home / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(MIB))
            except OSError:
                pass  # full
        time.sleep(FULL_SECONDS)
    finally:
        ballast.unlink()
    return Expected()


Injector = Callable[[Scene], Expected]
# How often each is drawn; those that start new processes take longest.
FAULTS: dict[str, tuple[Injector, int]] = {
    "kill -9 of a worker": (kill_worker, 24),
    "kill -9 of two workers at once": (kill_two_workers, 10),
    "SIGTERM of a worker": (terminate_worker, 8),
    "kill -9 of a worker in a save": (kill_while_saving, 12),
    "newest checkpoint spoilt, and kill -9 of a worker": (spoil_newest_checkpoint, 8),
    "kill -9 of a launcher": (kill_launcher, 6),
    "kill -9 of an agent": (kill_agent, 4),
    "kill -9 of a keeper": (kill_keeper, 3),
    "kill -9 of `torchyard run`, run again": (kill_operator, 6),
    "kill -9 of it and of a worker": (kill_operator_and_worker, 6),
    "kill -9 of it and of an agent": (kill_operator_and_agent, 3),
    "kill -9 of any two processes, moments apart": (kill_any_two, 8),
    "SIGSTOP of a process for a moment": (freeze, 6),
    "`torchyard stop`, `resume`": (stop_and_resume, 3),
    "SIGINT, SIGTERM or SIGHUP, run again": (interrupt_and_run, 3),
    "kill -9 of it, `torchyard stop`, run again": (kill_operator_and_stop, 2),
    "SIGINT, then kill -9 of it, run again": (interrupt_and_kill, 3),
    "suspended by an edit, run again": (suspend_by_edit, 2),
    "a second `torchyard run`": (run_twice, 4),
    "an edit of gracePeriod": (edit_grace_period, 4),
    "disk full for a moment": (fill_disk, 4),
}


def has_own_disk(home: Path) -> bool:
    return os.path.ismount(home)
