"""Start a process again when it was killed: what a service manager does, for a user who may install nothing.

Run by path, standard library only: `python -I -S supervisor.py LOCK COMMAND [ARG ...]`. It returns when the command
ends by itself, whatever its exit code, and does nothing while another one holds the lock.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time

FIRST_SECONDS, LONGEST_SECONDS, HEALTHY_SECONDS = 1.0, 30.0, 300.0


def main(lock: str, command: list[str]) -> int:
    """Run the command until it ends by itself; return its exit code."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    pause = FIRST_SECONDS
    while True:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        previous = signal.signal(signal.SIGTERM, lambda *_, process=process: process.send_signal(signal.SIGTERM))
        code = process.wait()
        signal.signal(signal.SIGTERM, previous)
        if code >= 0:
            return code
        with contextlib.suppress(OSError):
            os.write(2, f"{time.strftime('%FT%T')} killed by signal {-code}; it is started again\n".encode())
        pause = FIRST_SECONDS if time.monotonic() - begun > HEALTHY_SECONDS else min(2 * pause, LONGEST_SECONDS)
        time.sleep(pause)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
