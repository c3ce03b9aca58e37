"""A worker that dies of SIGKILL at a chosen point of its program; imported by the warm parent's children."""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import little_lm

from torchyard_trainers.core.command import main


def train(sizes: dict[str, int] | None, victim: int, number: int, place_file: str) -> int:
    """Train what the config names, or the little model of `sizes`, but rank `victim` dies of its `number`th call.

    It is a call of a function of ours, on any thread. If the victim is no rank, nothing is counted.

    It writes to `place_file` where that was. With number 0 it lives, and leaves how many calls there were.
    """
    if sizes is not None:
        little_lm.use(sizes)
    if int(os.environ["RANK"]) != victim:
        return main([])
    calls = itertools.count(1)

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or "/torchyard_trainers/" not in code.co_filename:
            return
        if next(calls) == number:
            place = code.co_filename.rpartition("/torchyard_trainers/")[2]
            Path(place_file).write_text(f"{place}:{frame.f_lineno} {code.co_qualname}")
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(profile)
    sys.setprofile(profile)
    code = main([])
    sys.setprofile(None)
    Path(place_file).write_text(str(next(calls) - 1))
    return code
