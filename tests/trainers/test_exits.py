"""A cause is never reported under another one's code."""

import errno

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from torchyard_trainers.core.exits import (
    CheckpointError,
    ConfigError,
    DataMismatchError,
    DivergedError,
    Exit,
    GpuMemoryError,
    HardwareError,
    PreemptedError,
    StorageError,
    SupersededError,
    exit_code,
)
from torchyard_trainers.core.world import retried


def chained(outer, inner):
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("mine"), 1),
        (FileNotFoundError(errno.ENOENT, "no such file"), 1),
        (ConfigError("x"), 64),
        (DataMismatchError("x"), 65),
        (DivergedError("x"), 66),
        (CheckpointError("x"), 67),
        (HardwareError("x"), 68),
        (GpuMemoryError("x", 4), 69),
        (torch.OutOfMemoryError("CUDA out of memory"), 69),
        (StorageError("x"), 74),
        (OSError(errno.ENOSPC, "No space left on device"), 74),
        (OSError(errno.ESTALE, "Stale file handle"), 74),
        (CheckpointException("save", {1: (OSError(errno.EIO, "I/O error"), None)}), 74),
        (chained(RuntimeError("while saving"), OSError(errno.EROFS, "Read-only file system")), 74),
        (PreemptedError("x"), 75),
        (SupersededError("x"), 76),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"), 76),
        (torch.distributed.DistNetworkError("recv failed"), 76),
        (torch.distributed.DistNetworkError("The server socket has failed to listen on any local network address"), 1),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4321"), 76),
        (RuntimeError("NCCL error: ncclRemoteError: A call failed possibly due to a network error"), 76),
        (torch.distributed.DistBackendError("NCCL error: ncclInvalidUsage ... Duplicate GPU detected : rank 0"), 64),
        (RuntimeError("NCCL error in: NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details)"), 64),
        (torch.distributed.DistBackendError("NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.27"), 68),
        (
            torch.distributed.DistBackendError(
                "NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.27\nncclUnhandledCudaError: Call to CUDA "
                "function failed.\nLast error:\nCuda failure 2 'out of memory'"
            ),
            69,
        ),
        (torch.AcceleratorError("CUDA error: out of memory"), 69),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 69),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), 68),
        (torch.distributed.DistBackendError("unhandled cuda error: an illegal memory access was encountered"), 1),
        (RuntimeError("CUDA error: device-side assert triggered"), 1),
        (RuntimeError("Distributed package doesn't have NCCL built in"), 1),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 1),
    ],
)
def test_every_ending_has_its_code(error, code):
    assert exit_code(error) == Exit(code)


def test_storage_errors_are_retried_together_and_then_end_with_74():
    pauses = []

    def full_disk():
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"checkpoint of step 3: .*No space left on device; free space"):
        retried(full_disk, attempts=3, pause=pauses.append, what="checkpoint of step 3")
    assert pauses == [1, 2]


def test_a_storage_error_that_passes_is_forgotten():
    answers = iter([OSError(errno.ESTALE, "Stale file handle"), "saved"])

    def once_stale():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retried(once_stale, attempts=3, pause=lambda _attempt: None, what="x") == "saved"


def test_other_errors_are_not_retried():
    calls = []

    def broken():
        calls.append(1)
        raise KeyError("model")

    with pytest.raises(KeyError):
        retried(broken, attempts=3, pause=lambda _attempt: None, what="x")
    assert len(calls) == 1
