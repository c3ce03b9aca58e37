"""Signals reach the very process that is meant, on every kernel."""

import errno
import os
import signal
import sys

import pytest

from torchyard.local.process import ProcessId, identify


def test_a_recycled_pid_is_never_hit(until):
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {})
    true = identify(child)
    ProcessId(child, true.start + 1).kill(signal.SIGKILL)
    assert true.alive()
    true.kill(signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOSYS])
def test_a_kernel_that_refuses_pidfds_spares_no_process(monkeypatch, refusal):
    def refuse(_pid):
        raise OSError(refusal, os.strerror(refusal))

    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {})
    process = identify(child)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    process.kill(signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
