"""Exit codes of a trainer, and the exceptions that carry them.

The operator decides by these numbers alone what happens next, so a cause must never be reported with another cause's
code.
"""

import errno
import re
from collections.abc import Iterator
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of a worker; `docs/checkpoints.md` describes the operator's reaction to each."""

    DONE = 0
    USER_ERROR = 1
    CONFIG = 64
    DATA = 65
    DIVERGED = 66
    CHECKPOINT = 67
    HARDWARE = 68
    GPU_MEMORY = 69
    HUNG = 70
    STORAGE = 74
    PREEMPTED = 75
    PEER_LOST = 76


class TrainerError(Exception):
    """An error with an exit code; its message is for the user and names the field, the value and the fix."""

    code = Exit.USER_ERROR


class ConfigError(TrainerError, ValueError):
    """The configuration is not valid."""

    code = Exit.CONFIG


class DataMismatchError(TrainerError):
    """The checkpoint belongs to other data, another seed or another model than the configuration."""

    code = Exit.DATA


class DataError(TrainerError):
    """A record of the data, or a whole batch, cannot be used."""

    code = Exit.DATA


class DivergedError(TrainerError):
    """Loss or gradient norm is not finite."""

    code = Exit.DIVERGED


class CheckpointError(TrainerError):
    """A required checkpoint cannot be read."""

    code = Exit.CHECKPOINT


class HardwareError(TrainerError):
    """The accelerator does not work."""

    code = Exit.HARDWARE


class GpuMemoryError(TrainerError):
    """The GPU is too small for the micro-batch; a smaller one computes the same step."""

    code = Exit.GPU_MEMORY

    def __init__(self, message: str, next_micro_batch: int) -> None:
        super().__init__(message)
        self.next_micro_batch = next_micro_batch


class HungError(TrainerError):
    """The main thread hangs at `stack`; `secondary`: it waits for other ranks."""

    code = Exit.HUNG

    def __init__(self, message: str, *, phase: str, step: int, stack: str, secondary: bool) -> None:
        super().__init__(message)
        self.phase, self.step, self.stack, self.secondary = phase, step, stack, secondary


class StorageError(TrainerError):
    """The checkpoint volume keeps failing after retries."""

    code = Exit.STORAGE


class PreemptedError(TrainerError):
    """The run was asked to stop and has saved everything."""

    code = Exit.PREEMPTED


class PeerError(TrainerError):
    """Another rank is at fault; its own error names the cause."""

    code = Exit.PEER_LOST


class SupersededError(TrainerError):
    """A newer round owns the checkpoint folder: this gang is a leftover and must not write."""

    code = Exit.PEER_LOST


STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS, errno.EDQUOT})

# Backends raise plain RuntimeError for everything; only their messages distinguish causes. The first match counts: NCCL
# quotes the CUDA error behind its own.
_TEXTS = (
    (
        Exit.USER_ERROR,
        re.compile(r"illegal memory access|device-side assert|unspecified launch failure|failed to listen on"),
    ),
    # Not raised by torch's allocator: NCCL, cuBLAS and the driver allocate memory, too.
    (
        Exit.GPU_MEMORY,
        re.compile(r"CUDA error: out of memory|Cuda failure (\d+ )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED"),
    ),
    (Exit.HARDWARE, re.compile(r"uncorrectable ECC|uncorrectable NVLink|unhandled cuda error|ncclUnhandledCudaError")),
    (Exit.CONFIG, re.compile(r"ncclInvalidUsage|Duplicate GPU|invalid usage")),
    (
        Exit.PEER_LOST,
        re.compile(
            r"gloo/|Connection (closed|reset) by peer|Connection refused|Broken pipe|Socket Timeout|wait timeout after"
            r"|remote process exited|failed to recv|Timed out waiting|collective operation timeout"
            r"|NCCL communicator was aborted|ncclRemoteError|ncclSystemError|unhandled system error"
        ),
    ),
)
_OF_A_GROUP = frozenset({"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"})


def exit_code(error: BaseException) -> Exit:
    """Classify an exception by what the operator should do about it."""
    for cause in causes(error):
        if isinstance(cause, TrainerError):
            return cause.code
        if isinstance(cause, OSError) and cause.errno in STORAGE_ERRNOS:
            return Exit.STORAGE
        if _is_out_of_gpu_memory(cause):
            return Exit.GPU_MEMORY
        if (code := _code_of_backend(cause)) is not None:
            return code
    return Exit.USER_ERROR


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and what it wraps: DCP collects the errors of all ranks in one, Python chains others."""
    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = getattr(current, "failures", {}).values()
        queue.extend(inner[0] if isinstance(inner, tuple) else inner for inner in wrapped)
        if current.__cause__ is not None:
            queue.append(current.__cause__)


def storage_error(error: BaseException) -> OSError | None:
    """Return the storage error behind an exception, or None; writing again may help."""
    found = (cause for cause in causes(error) if isinstance(cause, OSError) and cause.errno in STORAGE_ERRNOS)
    return next(found, None)


def _is_out_of_gpu_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def _code_of_backend(error: BaseException) -> Exit | None:
    of_a_group = any(base.__name__ in _OF_A_GROUP for base in type(error).__mro__)
    if of_a_group or isinstance(error, RuntimeError | ConnectionError):
        for code, text in _TEXTS:
            if text.search(str(error)):
                return code
    return Exit.PEER_LOST if of_a_group else None
