"""A warm parent of test workers: imports torch once, then forks each gang; what torchrun does, without the import time.

Reads one JSON request a line on stdin and answers each with one JSON line on stdout.
    {"start": [{"env": {...}, "log": PATH, "arguments": [...]}, ...]}   -> {"pids": [...]}
        a worker of the command line; or, with "function": "MODULE:NAME", a call of that function with the arguments,
        whose result, if any, is the exit code
    {"wait": [pid, ...], "seconds": 60}                                 -> {"codes": [0, -9, null, ...]}
"""

import gc
import importlib
import json
import os
import select
import sys
import time
from pathlib import Path

import faults  # noqa: F401 - imported for the children
import folder_lm  # noqa: F401 - imported for the children
import forecasts  # noqa: F401 - imported for the children
import little_lm  # noqa: F401 - imported for the children
import saves  # noqa: F401 - imported for the children
import torch
from compiled_code import share_compiled_code
from hold_points import hold_at

from torchyard_trainers.core.command import main
from torchyard_trainers.preload import import_compiler, import_transformers

codes: dict[int, int] = {}
gc.disable()  # until all is imported
import_transformers()
import_compiler()
share_compiled_code()
gc.freeze()  # a collection in a child would otherwise write to, and so copy, every shared page
gc.enable()


def start(worker: dict) -> int:
    pid = os.fork()
    if pid:
        codes.pop(pid, None)  # of an earlier process: a busy machine uses a number again within minutes
        return pid
    log = os.open(worker["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(worker["env"])
    torch.set_num_threads(1)
    if moment := worker["env"].get("HOLD_AT"):
        hold_at(moment, Path(worker["env"]["HELD"]))
    code = 1
    try:
        if "function" in worker:
            module, _, name = worker["function"].partition(":")
            code = getattr(importlib.import_module(module), name)(*worker["arguments"]) or 0
        else:
            code = main(worker["arguments"])
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(pids: list[int], seconds: float) -> list[int | None]:
    deadline = time.monotonic() + seconds
    for pid in pids:
        if pid in codes:
            continue
        ended = os.pidfd_open(pid)
        if select.select([ended], [], [], max(0.0, deadline - time.monotonic()))[0]:
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(ended)
    return [codes.get(pid) for pid in pids]


for line in sys.stdin:
    request = json.loads(line)
    if "start" in request:
        answer = {"pids": [start(worker) for worker in request["start"]]}
    else:
        answer = {"codes": wait(request["wait"], request["seconds"])}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
os._exit(0)
