"""The table of states: what the operator, `torchyard` and kstatus conclude from a state."""

import pytest

from torchyard.api.resource import read_status
from torchyard.api.status import Phase, State


@pytest.mark.parametrize(
    ("holds", "states"),
    [
        ("terminal", {"Succeeded", "Failed"}),
        ("active", {"", "Pending", "Queued", "Starting", "Running", "Recovering"}),
        ("ready", {"Running", "Suspended", "Succeeded"}),
        ("at_rest", {"Suspended", "Succeeded", "Failed"}),
    ],
)
def test_states_with_a_property(holds, states):
    assert {str(state) for state in State if getattr(state, holds)} == states


def test_a_status_without_a_state_is_of_a_new_job():
    assert read_status({}).state is State.NEW
    assert read_status({"state": "Running"}).state is State.RUNNING


def test_a_phase_of_a_program_is_not_one_of_the_table():
    assert Phase.of("save") is Phase.SAVE
    assert Phase.of("warming the cache") is None
