"""Become the worker: `python -I -S -c THIS PARENT LOG FAILURE ARGV...`, between fork and exec of a cold start.

Runs alone, without the package: ties the process to its parent, makes it the first that the kernel kills if memory runs
out, sends its output to the log unless that is empty, then execs. A command that cannot be started exits with 127 (not
found) or 126 (not executable), and the failure file says so.
"""

import contextlib
import json
import os
import signal
import sys
import time

parent, log, failure, *argv = sys.argv[1:]
rank = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"
with contextlib.suppress(ImportError, OSError, AttributeError):  # less guarded, still trains
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - see below
    file.write("1000")  # if memory runs out, the kernel kills the worker, not the process that would restart it
if os.getppid() != int(parent):
    os._exit(137)
if log:
    output = os.open(log.replace("{rank}", rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
# An exec passes on what is ignored: the first two by Python itself, the others, which torchrun handles, below `nohup`.
for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
try:
    os.execvp(argv[0], argv)  # noqa: S606 - an argument vector, no shell
except OSError as error:
    code = 127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126
    message = f"{argv[0]}: cannot start: {error.strerror}"
    os.write(2, (message + "\n").encode())
    document = {"rank": int(rank), "code": code, "exception": None, "message": message, "time": time.time()}
    with open(failure.replace("{rank}", rank), "w") as file:  # noqa: PTH123 - pathlib would double the start-up
        json.dump(document, file)
    os._exit(code)
