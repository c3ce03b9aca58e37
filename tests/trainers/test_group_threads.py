"""The threads that gloo starts wait their turn; the thread that trains is scheduled as before."""

import os

import pytest


@pytest.mark.e2e
@pytest.mark.parametrize("given", ["SCHED_OTHER", "SCHED_IDLE"])
def test_only_threads_of_gloo_wait_their_turn(yard, given):
    gang = yard.start({}, 2, function=("group_threads:check", [getattr(os, given)]))
    assert gang.wait() == [0, 0], gang.output()
