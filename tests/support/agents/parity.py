"""Runs programs under plain torchrun and under our launchers, several at a time.

Cold; warm, as forks of a zygote that was executed; or templated, as forks of one that was forked from a template.
Imports torch once for each of the three.
"""

import asyncio
import contextlib
import difflib
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import DEADLINE, until

from torchyard.local.run import is_locked
from torchyard.local.template import Imports, PodProcesses, begun
from torchyard_agent.settings import read
from torchyard_agent.workers.environment import worker_environment, zygote_environment
from torchyard_agent.workers.hooks import SITECUSTOMIZE
from torchyard_agent.workers.ports import ReservedPort
from torchyard_agent.workers.zygote_client import LOCATION, Zygote

LEAVE_SECONDS = 60.0
AT_ONCE = 4
MODES = ("plain", "cold", "warm")
KEEPER = "import os, sys; os.waitpid(int(sys.argv[-1]), 0)"

# Each run is a fork of this process, which has torch imported: torchrun itself, or the launcher of a cold start.
DRIVER = """
import gc, json, os, sys, traceback
gc.disable()  # until all is imported
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torchyard_agent.workers import failure, launcher

def torchrun(args):
    config, entrypoint, arguments = torch.distributed.run.config_from_args(torch.distributed.run.parse_args(args))
    try:
        elastic_launch(config, entrypoint)(*arguments)
    except ChildFailedError as error:
        return failure.exit_code(min(error.failures.values(), key=lambda one: one.timestamp).exitcode)
    return 0

def start(run):
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        output = os.open(run["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 64)
        os.environ.update(run["env"])
        code = launcher.run(run["spec"]) if run["mode"] == "cold" else torchrun(run["args"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)

gc.freeze()  # a collection in a fork would write to, and so copy, every page that they share
gc.enable()
waiting, running, codes = json.load(sys.stdin), {}, {}
while waiting or running:
    while waiting and len(running) < int(sys.argv[1]):
        run = waiting.pop(0)
        running[start(run)] = run
    pid, status = os.wait()
    codes[running.pop(pid)["key"]] = os.waitstatus_to_exitcode(status)
print(json.dumps(codes))
"""
# Plain torchrun has no file for each rank: PYTHON_EXEC of its workers opens it, and notes the process id.
PYTHON = """#!/bin/sh
echo $$ >>"$LOGS/pids"
exec {python} "$@" >>"$LOGS/rank-$RANK.log" 2>&1
"""


@dataclass(frozen=True)
class Program:
    """Files of a program, and how torchrun is to run it in the folder above its own; `NAME` is that folder."""

    files: dict[str, str]
    args: tuple[str, ...] = ("NAME/train.py",)
    procs: int = 1
    env: dict[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = MODES


@dataclass(frozen=True)
class Behaviour:
    """What can be seen of a run from the outside: exit code of the first rank that failed, output, processes left."""

    code: int
    output: tuple[str, ...]
    left: tuple[int, ...]


def behaviours(
    programs: dict[str, Program], folder: Path, env: Mapping[str, str] | None = None
) -> dict[str, dict[str, Behaviour]]:
    """Run every program in every mode; by mode and name how each behaved. `env`: of launchers and zygote as well."""
    for name, program in programs.items():
        for path, text in program.files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    ports: list[ReservedPort] = []
    runs = _runs(programs, folder, ports)
    with ThreadPoolExecutor(1) as beside:
        driven = beside.submit(_driven, [run for run in runs if run["mode"] in {"plain", "cold"}], folder, env)
        codes = _warm([run for run in runs if run["mode"] == "warm"], folder, env)
        codes |= _templated([run for run in runs if run["mode"] == "templated"], folder, env) | driven.result()
    found: dict[str, dict[str, Behaviour]] = {mode: {} for mode in (*MODES, "templated")}
    for run in runs:
        output = tuple(_output(path) for path in sorted(Path(run["env"]["LOGS"]).glob("rank-*.log")))
        found[run["mode"]][run["name"]] = Behaviour(codes[run["key"]], output, _left(Path(run["env"]["LOGS"])))
    return found


def differences(plain: dict[str, Behaviour], ours: dict[str, Behaviour]) -> str:
    """Unified diffs of the programs that behaved otherwise than under plain torchrun."""
    parts = []
    for name, found in ours.items():
        expected = plain[name]
        if found != expected:
            diff = difflib.unified_diff(_lines(expected), _lines(found), "plain torchrun", "ours", lineterm="", n=1)
            parts.append("\n".join([f"{name}:", *diff]))
    return "\n\n".join(parts)


def _lines(behaviour):
    lines = [f"exit code {behaviour.code}, left: {behaviour.left}"]
    for rank, output in enumerate(behaviour.output):
        lines += [f"rank {rank}: {line}" for line in output.splitlines()]
    return lines


def _output(path):
    return re.sub(r"0x[0-9a-f]+", "0x", path.read_text(errors="replace"))


def _runs(programs, folder, ports):
    runs = []
    python = folder / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    for name, program in programs.items():
        for mode in program.modes:
            logs = folder / "logs" / name / mode
            logs.mkdir(parents=True)
            ports.append(ReservedPort())
            port = ports[-1].number()
            ports[-1].lend()
            args = [word.replace("NAME", name) for word in program.args]
            env = {**program.env, "LOGS": str(logs)}
            options = [f"--nproc-per-node={program.procs}", f"--master-port={port}"]
            runs.append(
                {
                    "key": f"{name}/{mode}",
                    "name": name,
                    "mode": mode,
                    "args": [*options, *args],
                    "env": {**env, "PYTHON_EXEC": str(python)} if mode == "plain" else env,
                    "output": str(logs / "launcher"),
                    "spec": _spec(args, program.procs, port, logs, env),
                }
            )
    return runs


def _spec(args, procs, port, logs, env):
    ours = {"TORCHYARD_ROUND": "1", "TORCHYARD_RUN_DIR": str(logs), "TORCHYARD_LOG_DIR": str(logs)}
    return {
        "round": 1,
        "nodes": 1,
        "nodeRank": 0,
        "masterPort": port,
        "job": "parity",
        "masterAddress": "127.0.0.1",
        "procs": procs,
        "gpus": 0,
        "address": "127.0.0.1",
        "args": args,
        "runDir": str(logs),
        "logDir": str(logs),
        "unset": [],
        "env": {**env, **ours, "PYTHONPATH": os.pathsep.join([str(_hooks(logs.parents[2])), LOCATION])},
    }


def _hooks(folder):
    hooks = folder / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return hooks


def _environment(more):
    names = ("TORCHYARD_", "PET_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**env, "OMP_NUM_THREADS": "1", "PYTHONPATH": LOCATION, "LOGLEVEL": "ERROR", **(more or {})}


def _driven(runs, folder, env):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(AT_ONCE)],
        input=json.dumps(runs),
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=_environment(env),
        timeout=DEADLINE,
        check=True,
    )
    return json.loads(done.stdout)


def _warm(runs, folder, env):
    """Run them as launchers of one zygote; exit codes by key."""
    with contextlib.chdir(folder):
        zygote = Zygote(sys.executable, _zygote_environment(folder, env), ())
    return _launched(runs, folder, zygote)


def _zygote_environment(folder, env):
    return {**_environment(env), "PYTHONPATH": os.pathsep.join([str(_hooks(folder)), LOCATION])}


def _templated(runs, folder, env):
    """Run them as launchers of a zygote that was forked from a template; its agent is `serve`."""
    if not runs:
        return {}
    names = ("JOB", "NAMESPACE", "JOB_UID", "POD_NAME", "TOKEN_FILE")
    env = {name: value for name, value in _environment(env).items() if name != "PYTHONPATH"} | {
        **{f"TORCHYARD_{name}": "x" for name in names},
        "TORCHYARD_POD_UID": "1" * 36,
        "TORCHYARD_POD_INDEX": "0",
        "TORCHYARD_PROCS": "1",
        "TORCHYARD_OPERATOR_URL": "unix:/none",
        "TORCHYARD_RUN_DIR": str(folder),
    }
    program, asked, codes = folder / "agent.py", folder / "asked.json", folder / "codes.json"
    program.write_text(
        f"import sys\nsys.path[0:0] = [{LOCATION!r}]\nfrom torchyard_agent.__main__ import main\nmain()\n"
    )
    asked.write_text(json.dumps(runs))
    code = f"import sys\nsys.path[0:0] = {sys.path!r}\nfrom {__name__} import serve\nserve()"
    pod = PodProcesses(
        keeper=[sys.executable, "-c", KEEPER], agent=[sys.executable, "-c", code], env=env, cwd=str(folder)
    )
    template = begun(Imports(program, ["torchrun"], env))
    try:
        assert asyncio.run(template.imported())
        with (folder / "lock").open("w") as lock, (folder / "log").open("w") as log:
            assert template.start(pod, [lock.fileno(), log.fileno()])
            fcntl.flock(lock, fcntl.LOCK_EX)  # the keeper's, too
        until(lambda: codes.exists() or not is_locked(folder / "lock"))
        assert codes.exists(), (folder / "log").read_text()
        return json.loads(codes.read_bytes())
    finally:
        template.close()


def serve():
    """Be the agent of `_templated`."""
    settings = read(["--", "torchrun"], os.environ)
    env = zygote_environment(worker_environment(os.environ, settings, "", Path("none"), 0), 1)
    descriptor, pid = settings.zygote
    zygote = Zygote.inherited((descriptor, pid), sys.executable, env, ())
    found = _launched(json.loads(Path("asked.json").read_bytes()), Path.cwd(), zygote)
    Path("codes.new").write_text(json.dumps(found))
    Path("codes.new").rename("codes.json")


def _launched(runs, folder, zygote):
    specs = folder / f"specs-{zygote.pid}"
    specs.mkdir()
    waiting, asked, running, codes = list(runs), [], {}, {}
    deadline = time.monotonic() + DEADLINE
    try:
        while len(codes) < len(runs):
            ready, _, _ = select.select([zygote.socket], [], [], deadline - time.monotonic())
            assert ready, f"still running: {running}"
            for message in zygote.receive():
                if "started" in message:
                    running[message["started"]] = asked.pop(0)
                elif "ended" in message:
                    codes[running.pop(message["ended"])] = message["status"]
            assert zygote.state != "failed", zygote.reason
            while zygote.state == "ready" and waiting and len(running) + len(asked) < AT_ONCE:
                run = waiting.pop(0)
                spec = specs / f"{len(waiting)}.json"
                spec.write_text(json.dumps(run["spec"]))
                asked.append(run["key"])
                zygote.ask(spec)
    finally:
        os.kill(zygote.pid, signal.SIGKILL)
        os.waitpid(zygote.pid, 0)
        zygote.close()
    return codes


def _left(logs):
    """Processes in the sessions of the workers after the end; they are ended then."""
    workers = {int(pid) for pid in (logs / "pids").read_text().split()} if (logs / "pids").exists() else set()
    if (logs / "workers.json").exists():
        workers |= set(json.loads((logs / "workers.json").read_text())["pids"].values())
    deadline = time.monotonic() + LEAVE_SECONDS
    while True:  # multiprocessing's trackers end when they see that their program has
        left = tuple(pid for pid in _processes() if _session(pid) in workers)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def _processes():
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _session(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
