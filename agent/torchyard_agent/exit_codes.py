"""Exit codes with a meaning, as a shell reports them: 128 + n for signal n.

The operator has the same table with the reason of each (`torchyard.api.exit_codes`); a test compares them.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of workers and of the agent."""

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
