"""What an exit code of a worker means to the operator.

Programs use the numbers of `CLASSES` for purposes of their own, and shells use 126 and 127: such a code means what the
table says only where a built-in trainer ended with it, or the agent or a failure file vouches for it (`classified`).
"""

from msgspec import Struct


class ExitMeaning(Struct, frozen=True, kw_only=True):
    """What to do about an exit code.

    `reason` is a code of the catalogue. `permanent`: trying again cannot help, the job fails now. `counted`: without
    progress it is charged to the restart budget.
    """

    reason: str
    permanent: bool
    counted: bool
    sentence: str


def meaning(code: int, *, classified: bool) -> ExitMeaning:
    """Return the meaning of an exit code; total: unknown codes are a worker's own failure, 128 + n a signal.

    Args:
        code: as a shell reports it.
        classified: whether the program speaks this language.
    """
    if code in EXITS and (classified or code not in CLASSES):
        return EXITS[code]
    if 128 < code <= 128 + 64:
        return _retry("KilledBySignal", f"a worker was killed by signal {code - 128}")
    return _retry("WorkerFailed", f"a worker ended with exit code {code}")


def _retry(reason: str, sentence: str, *, counted: bool = True) -> ExitMeaning:
    return ExitMeaning(reason=reason, permanent=False, counted=counted, sentence=sentence)


def _fail(reason: str, sentence: str) -> ExitMeaning:
    return ExitMeaning(reason=reason, permanent=True, counted=True, sentence=sentence)


EXITS: dict[int, ExitMeaning] = {
    0: _retry("Completed", "the workers are done", counted=False),
    1: _retry("WorkerFailed", "a worker raised an exception"),
    64: _fail("ConfigurationInvalid", "the workload refused its configuration"),
    65: _fail("DataMismatch", "the checkpoint belongs to other data, another seed or another model"),
    66: _fail("NumericDivergence", "the loss or a gradient stopped being a finite number"),
    67: _fail("CheckpointUnreadable", "a checkpoint that is needed cannot be read"),
    68: _retry("HardwareSuspected", "the hardware that a worker needs is missing or broken"),
    69: _retry("GpuOutOfMemory", "a GPU ran out of memory"),
    70: _retry("WorkerHung", "a worker stood still"),
    74: _retry("StorageFailed", "the checkpoint volume refused to work"),
    75: _retry("Preempted", "the workers of a pod were asked to stop", counted=False),
    76: _retry("PeerLost", "a worker lost the connection to another one"),
    126: _fail("CommandNotExecutable", "the command cannot be executed"),
    127: _fail("CommandNotFound", "the command or script does not exist"),
    130: _retry("Interrupted", "a worker was interrupted (SIGINT)"),
    134: _retry("Aborted", "a worker aborted (SIGABRT)"),
    137: _retry("Killed", "a worker was killed (SIGKILL), often by the kernel for lack of memory"),
    139: _retry("SegmentationFault", "a worker crashed (SIGSEGV)"),
    143: _retry("Terminated", "a worker was terminated (SIGTERM) before it could save"),
}

CLASSES = frozenset({*range(64, 77), 126, 127})
