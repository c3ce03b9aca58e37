"""How an operator looks for garbage: what it caches stays, and looking through it again and again finds nothing."""

import gc


def leave_caches_alone() -> None:
    """Call it once the caches are full: what there is now is not looked through again, what comes later only seldom."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
