"""One round of a plain command: started once, as given, in its own session, by a small guarded launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import is_whole, try_write_json
from torchyard_agent.workers import evidence, failure, gpu_check, guard, hooks
from torchyard_agent.workers.launcher import code_fault, exec_arguments
from torchyard_agent.workers.process import die_with_parent, stand_before_others
from torchyard_agent.workers.relay import Relay


def main() -> None:
    """Run the round described in the file given as the first argument; the second is the agent's process id."""
    die_with_parent(signal.SIGKILL, int(sys.argv[2]))
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


def run(spec: Dict[str, Any]) -> int:
    """Run the round `spec` to its end; return the exit code of the command, or 128 + signal."""
    os.environ.update(spec["env"])
    run_dir, rank = Path(spec["runDir"]), int(spec["nodeRank"])
    pids: List[int] = []

    def refuse(code: int, message: str) -> int:
        print(message, file=sys.stderr, flush=True)
        found = {"code": code, "message": message, "secondary": False}
        write(code, [failure.record(rank=rank, local_rank=0, pid=0, code=code, time=time.time(), found=found)])
        return code

    def write(code: int, failures: List[Dict[str, Any]]) -> None:
        cause = failure.first_cause(failures)
        document = {"round": spec["round"], "code": code, "failure": cause, "failures": failures}
        try_write_json(run_dir / "failure.json", document)

    lacking = gpu_check.check(spec["gpus"], torch_is_there=False)
    if lacking:
        return refuse(ExitCode.HARDWARE, lacking)
    stand_before_others(0.5)
    output = Relay(Path(spec["logDir"]) / f"rank-{rank}.log", run_dir)

    def stopped() -> None:
        output.finish()
        write(ExitCode.TERMINATED, [])

    guard.watch(lambda: pids, stopped)
    fault = code_fault(spec)
    if fault is not None:
        output.finish()
        return refuse(*fault)
    ages = evidence.Ages(run_dir)
    ages.start()
    process = subprocess.Popen(
        [sys.executable, *exec_arguments(spec, spec["args"], log="")],
        stdout=output.writing,
        stderr=output.writing,
        start_new_session=True,
    )
    output.started()
    pids.append(process.pid)
    try_write_json(run_dir / "workers.json", {"round": spec["round"], "pids": {rank: process.pid}})
    code = failure.exit_code(process.wait())
    output.finish()
    guard.give_way()
    failures = []
    if code:
        now = time.time()
        found = evidence.found(ages, rank, process.pid, code=code, alone=True)
        cause = found["rank"] if found is not None and is_whole(found.get("rank")) else rank
        watched = hooks.is_watched(run_dir, process.pid)
        known: Dict[str, Any] = {"local_rank": 0, "pid": process.pid, "code": code, "time": now, "watched": watched}
        failures.append(failure.record(rank=cause, found=found, **known))
    write(code, failures)
    return code
