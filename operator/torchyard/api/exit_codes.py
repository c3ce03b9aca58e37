"""Exit codes of a worker, and the reason for each.

Programs use the numbers of `CLASSES` for other purposes, and shells use 126 and 127: such a code means what the
table says only where a built-in trainer ended with it, or the agent or a failure file vouches for it (`classified`).
"""

from enum import IntEnum

from torchyard.api.reasons import Reason


class ExitCode(IntEnum):
    """Exit codes with a meaning, as a shell reports them: 128 + n for signal n."""

    DONE = 0
    USER_ERROR = 1
    CONFIG = 64
    DATA = 65
    DIVERGED = 66
    CHECKPOINT = 67
    HARDWARE = 68
    GPU_MEMORY = 69
    HUNG = 70
    CODE_MISMATCH = 71
    TORCH_MISSING = 72
    INPUT_REJECTED = 73
    STORAGE = 74
    PREEMPTED = 75
    PEER_LOST = 76
    INPUT_NOT_FETCHED = 77
    REQUIREMENTS_FAILED = 78
    REQUIREMENTS_NOT_INSTALLED = 79
    CODE_NOT_FETCHED = 80
    CODE_REJECTED = 81
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    ABORTED = 134
    KILLED = 137
    SEGMENTATION_FAULT = 139
    TERMINATED = 143


EXIT_REASONS: dict[int, Reason] = {
    ExitCode.DONE: Reason.COMPLETED,
    ExitCode.USER_ERROR: Reason.WORKER_FAILED,
    ExitCode.CONFIG: Reason.CONFIGURATION_INVALID,
    ExitCode.DATA: Reason.DATA_MISMATCH,
    ExitCode.DIVERGED: Reason.NUMERIC_DIVERGENCE,
    ExitCode.CHECKPOINT: Reason.CHECKPOINT_UNREADABLE,
    ExitCode.HARDWARE: Reason.HARDWARE_SUSPECTED,
    ExitCode.GPU_MEMORY: Reason.GPU_OUT_OF_MEMORY,
    ExitCode.HUNG: Reason.WORKER_HUNG,
    ExitCode.CODE_MISMATCH: Reason.CODE_MISMATCH,
    ExitCode.INPUT_NOT_FETCHED: Reason.INPUT_NOT_FETCHED,
    ExitCode.CODE_NOT_FETCHED: Reason.CODE_NOT_FETCHED,
    ExitCode.CODE_REJECTED: Reason.CODE_REJECTED,
    ExitCode.TORCH_MISSING: Reason.TORCH_MISSING,
    ExitCode.INPUT_REJECTED: Reason.INPUT_REJECTED,
    ExitCode.REQUIREMENTS_FAILED: Reason.REQUIREMENTS_FAILED,
    ExitCode.REQUIREMENTS_NOT_INSTALLED: Reason.REQUIREMENTS_NOT_INSTALLED,
    ExitCode.STORAGE: Reason.STORAGE_FAILED,
    ExitCode.PREEMPTED: Reason.PREEMPTED,
    ExitCode.PEER_LOST: Reason.PEER_LOST,
    ExitCode.NOT_EXECUTABLE: Reason.COMMAND_NOT_EXECUTABLE,
    ExitCode.NOT_FOUND: Reason.COMMAND_NOT_FOUND,
    ExitCode.INTERRUPTED: Reason.INTERRUPTED,
    ExitCode.ABORTED: Reason.ABORTED,
    ExitCode.KILLED: Reason.KILLED,
    ExitCode.SEGMENTATION_FAULT: Reason.SEGMENTATION_FAULT,
    ExitCode.TERMINATED: Reason.TERMINATED,
}

# With which a shell reports that a command cannot be executed or was not found.
SHELL_CODES = frozenset({ExitCode.NOT_EXECUTABLE, ExitCode.NOT_FOUND})
CLASSES = frozenset({*range(64, 82), *SHELL_CODES})


def exit_code_of(reason: Reason) -> int:
    """Return the exit code of a job that failed for `reason`: its own if trying again cannot help, else 1."""
    if reason == Reason.INVALID_SPEC:
        return ExitCode.CONFIG
    codes = (int(code) for code, known in EXIT_REASONS.items() if known.permanent and known == reason)
    return next(codes, int(ExitCode.USER_ERROR))


def reason_of_exit(code: int, *, classified: bool) -> Reason:
    """Return the reason of an exit code; total: an unknown code is a worker's own failure, 128 + n a signal.

    Args:
        code: as a shell reports it.
        classified: whether the program ends with the codes of `CLASSES` as the table means them.
    """
    if code in EXIT_REASONS and (classified or code not in CLASSES):
        return EXIT_REASONS[code]
    return Reason.KILLED_BY_SIGNAL if 128 < code <= 128 + 64 else Reason.WORKER_FAILED
