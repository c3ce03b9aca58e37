"""How much work a call does, counted so that it is the same in every run."""

import itertools
import sys


def calls_of(work):
    """Calls and returns that `work` makes, of Python and of C. 130,000 take 6 ms on a fast core."""
    counted = itertools.count()
    sys.setprofile(lambda *_: next(counted))
    try:
        work()
    finally:
        sys.setprofile(None)
    return next(counted)
