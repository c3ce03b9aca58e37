"""The shell of the test bed: run a program, say what goes on, stop with one sentence."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# What a test run turns into a skip: automake's and meson's convention for "cannot be tested here".
SKIP = 77


class Unavailable(Exception):  # noqa: N818 - it is a fact about this machine, not an error in it
    """This machine cannot carry a test bed; the text says why in one sentence."""


def say(text: str) -> None:
    """Print to stderr: stdout is for what other programs read."""
    print(f"kind: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str, *, usual: str = "") -> Iterator[None]:
    """Announce a step with the time it usually takes, and say how long it did take."""
    say(f"{text} ..." + (f" ({usual})" if usual else ""))
    start = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - start:.0f} s")


def run(
    *argv: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str | None = None
) -> str:
    """Run a program to its end and return what it wrote to stdout.

    Raises:
        RuntimeError: it failed; the message holds the command and the last of what it said.
    """
    done = subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        input=text,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise RuntimeError(f"{' '.join(str(word) for word in argv)}: exit code {done.returncode}\n{said}")
    return done.stdout


def succeeds(*argv: str | Path, env: Mapping[str, str] | None = None, timeout: float | None = None) -> bool:
    """Whether a program ends with 0, within `timeout` seconds if given."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env={**os.environ, **(env or {})},
            capture_output=True,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def pipe(source: list[str], sink: list[str]) -> None:
    """Run two programs, the output of the first being the input of the second.

    Raises:
        RuntimeError: one of them failed.
    """
    with subprocess.Popen(source, stdout=subprocess.PIPE) as first:
        done = subprocess.run(sink, stdin=first.stdout, capture_output=True, text=True, check=False)
    if first.returncode or done.returncode:
        raise RuntimeError(
            f"{' '.join(source)} | {' '.join(sink)}: {first.returncode}, {done.returncode}\n{done.stderr}"
        )


def install_debian(*packages: str) -> None:
    """Install Debian packages that are missing.

    Raises:
        Unavailable: this is no Debian, or we are not root.
    """
    missing = [name for name in packages if not _installed(name)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(f"needs {', '.join(packages)}, and can install them only as root on Debian")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    patient = ("-o", "DPkg::Lock::Timeout=300")  # a machine that has just started may be upgrading itself
    with step(f"installing {', '.join(missing)}", usual="under a minute"):
        run("apt-get", "update", "-q", env=quiet)
        run("apt-get", "install", *patient, "-q", "-y", "--no-install-recommends", *missing, env=quiet)


def _installed(package: str) -> bool:
    """Whether a Debian package is there; one that others only suggest is known to dpkg, too, and not installed."""
    if not shutil.which("dpkg-query"):
        return False
    argv = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout == "installed"
