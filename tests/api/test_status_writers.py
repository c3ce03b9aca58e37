"""Every field, state and account that the status documents is set somewhere: what is never set is not documented."""

import ast
import re
from pathlib import Path

import msgspec
import pytest

from torchyard.api import status
from torchyard.api.status import Goodput, Phase, State, StatusModel

OPERATOR = Path(status.__file__).resolve().parents[1]
WRITERS = [path for path in OPERATOR.rglob("*.py") if path.name != "status.py" or path.parent.name != "api"]
MODELS = [each for each in vars(status).values() if isinstance(each, type) and issubclass(each, StatusModel)]


@pytest.fixture(scope="module")
def nodes():
    """All nodes of the operator's syntax trees, but for the command line."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in WRITERS if "cli" not in path.parts]
    return [node for tree in trees for node in ast.walk(tree)]


@pytest.fixture(scope="module")
def fields(nodes):
    return {keyword.arg for node in nodes if isinstance(node, ast.Call) for keyword in node.keywords}


@pytest.fixture(scope="module")
def states(nodes):
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "State"
    }


@pytest.mark.parametrize(
    ("model", "field"), [(each.__name__, name) for each in MODELS for name in each.__struct_fields__]
)
def test_a_field_has_a_writer(model, field, fields):
    assert field in fields


@pytest.mark.parametrize("state", [state for state in State if state is not State.NEW])
def test_a_state_is_taken(state, states):
    assert state.name in states


def test_every_account_of_time_is_kept(nodes):
    (doc,) = (
        each.type.__metadata__[0].description for each in msgspec.structs.fields(Goodput) if each.name == "seconds"
    )
    kinds = set(re.findall(r"\b[a-z]+\b", doc.partition(":")[0]))
    assert kinds >= {"productive", "pull", "stalled"}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert kinds <= texts | {entry.activity for kind in (State, Phase) for entry in kind}
