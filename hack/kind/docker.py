"""A Docker daemon: the one that is there, or one of our own, which is ended by its pid and touches no other."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from cache import HERE, ROOT
from shell import Unavailable, install_debian, run, say, step, succeeds

STATE = ROOT / "docker"
SOCKET = STATE / "docker.sock"
PID_FILE = STATE / "docker.pid"
CAP_SYS_RESOURCE = 24
WRAPPED = "runc-without-sys-resource"


def connect() -> None:
    """Make `docker` work for this process and its children: sets DOCKER_HOST where our own daemon has to serve.

    Raises:
        Unavailable: nothing answers, and no daemon can be started here.
    """
    if answers():
        return
    if "DOCKER_HOST" in os.environ and os.environ["DOCKER_HOST"] != host():
        raise Unavailable(f"no Docker daemon answers at DOCKER_HOST={os.environ['DOCKER_HOST']}")
    if os.geteuid() != 0:
        raise Unavailable("no Docker daemon answers, and only root can start one")
    install_debian("docker.io", "iptables")
    if succeeds("docker", "version", timeout=20):
        return
    os.environ["DOCKER_HOST"] = host()
    if not running():
        start()


def answers() -> bool:
    """Whether a daemon is there, ours or another; starts none."""
    if running():
        os.environ["DOCKER_HOST"] = host()
    return bool(shutil.which("docker")) and succeeds("docker", "version", timeout=20)


def cgroup_version() -> str:
    """Return the version of control groups that containers get: "1" or "2"."""
    return run("docker", "info", "--format", "{{.CgroupVersion}}").strip()


def host() -> str:
    """DOCKER_HOST of our own daemon."""
    return f"unix://{SOCKET}"


def running() -> int | None:
    """The pid of our own daemon, if it lives; a pid that another program got since does not count."""
    try:
        pid = int(PID_FILE.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ValueError):
        return None
    return pid if str(STATE / "data").encode() in words else None


def start() -> None:
    """Start our own daemon, apart from any other: data root, socket, pid file and default network are its own.

    Raises:
        Unavailable: it does not come up.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    PID_FILE.unlink(missing_ok=True)
    (STATE / "daemon.json").write_text(json.dumps(configuration()))
    argv = ["dockerd", "--host", host(), "--config-file", STATE / "daemon.json", "--pidfile", PID_FILE]
    argv += ["--data-root", STATE / "data", "--exec-root", STATE / "exec", "--oom-score-adjust", "0"]
    with step("starting a Docker daemon of our own", usual="a few seconds"), (STATE / "log").open("w") as log:
        daemon = subprocess.Popen([str(word) for word in argv], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while not succeeds("docker", "version", timeout=20):
            if daemon.poll() is not None or time.monotonic() > deadline:
                last = (STATE / "log").read_text().strip().splitlines()[-1:]
                raise Unavailable(f"dockerd does not come up, see {STATE / 'log'}: {' '.join(last)}")
            time.sleep(0.2)


def configuration() -> dict[str, object]:
    """The daemon's configuration; the runtime wrapper only where root lacks CAP_SYS_RESOURCE."""
    plain: dict[str, object] = {"storage-driver": "overlay2", "bridge": "none", "log-level": "warn"}
    if has_sys_resource():
        return plain
    wrapper = {"path": sys.executable, "runtimeArgs": ["-I", str(HERE / "oci_runtime.py")]}
    return {**plain, "runtimes": {WRAPPED: wrapper}, "default-runtime": WRAPPED}


def has_sys_resource() -> bool:
    """Whether root here may raise limits and lower OOM scores; some sandboxes leave only this one out."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def stop() -> None:
    """End our own daemon by its pid, and leave nothing of it mounted. Images stay in its data root."""
    if pid := running():
        with step("stopping our Docker daemon"):
            # The network that kind makes: without it no bridge stays behind.
            succeeds("docker", "network", "rm", "kind", env={"DOCKER_HOST": host()}, timeout=20)
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 60
            while Path(f"/proc/{pid}").exists() and not reaped(pid):
                if time.monotonic() > deadline:
                    say(f"dockerd (pid {pid}) does not end within 60 s: killing it")
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.2)
    for mount in sorted(ours(), reverse=True):
        run("umount", mount)


def reaped(pid: int) -> bool:
    """Whether a process is over although its parent has not asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ours() -> list[str]:
    """Mount points under our daemon's folder."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(STATE)]
