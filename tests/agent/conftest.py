"""The conformance suite drives agents as black boxes: a small intake that speaks the protocol, and real processes."""

import sys

import pytest
from tests.support.agents.agent_pod import Pod
from tests.support.agents.small_intake import Intake
from tests.support.waiting import alive, until

from torchyard_agent.build import build


@pytest.fixture(name="until")
def _until():
    return until


@pytest.fixture(name="alive")
def _alive():
    return alive


@pytest.fixture(scope="session")
def agent_pyz(tmp_path_factory):
    target = tmp_path_factory.mktemp("agent") / "torchyard-agent.pyz"
    build(target)
    return target


@pytest.fixture
def new_intake():
    made = []

    def make(at=0):
        made.append(Intake(at))
        return made[-1]

    yield make
    for intake in made:
        if not intake.closing:
            intake.close()


@pytest.fixture(params=["tcp", "unix"])
def listen(request, tmp_path, new_intake):
    """Open an intake, at the same place each time; a socket's path is longer than an address may be."""
    place = 0
    if request.param == "unix":
        folder = tmp_path / ("long" * 30)
        folder.mkdir()
        place = folder / "intake.sock"

    def again():
        nonlocal place
        intake = new_intake(place)
        place = intake.at
        return intake

    return again


@pytest.fixture
def intake(new_intake):
    return new_intake()


@pytest.fixture
def pod(tmp_path, intake, agent_pyz):
    """Start an agent: `pod(*command, name=..., python=..., **env)`."""
    made = []

    def start(*command, name="pod-0", python=sys.executable, intake=intake, **env):
        made.append(
            Pod(
                name, intake, tmp_path, agent=agent_pyz, command=[str(word) for word in command], python=python, env=env
            )
        )
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def warm_nodes(tmp_path_factory, agent_pyz):
    """Two warm agents kept for the whole suite; each round runs the program that its `env` names."""
    folder = tmp_path_factory.mktemp("warm")
    stage = folder / "stage.py"
    stage.write_text("import os\nexec(compile(open(os.environ['PROGRAM']).read(), os.environ['PROGRAM'], 'exec'))\n")
    intake = Intake()
    nodes = []
    for name, address in (("node-0", "127.0.0.1"), ("node-1", "127.0.0.2")):
        env = {"TORCHYARD_POD_ADDRESS": address}
        nodes.append(
            Pod(name, intake, folder, agent=agent_pyz, command=["torchrun", str(stage)], python=sys.executable, env=env)
        )
    yield nodes
    for node in nodes:
        node.close()
    intake.close()


@pytest.fixture
def nodes(warm_nodes):
    """Two warm pods, ready, with nothing running."""
    for node in warm_nodes:
        node.ready()
    yield warm_nodes
    for node in warm_nodes:
        node.tell("stop", round=max(node.round, 1))
        node.ready()


@pytest.fixture
def node(nodes):
    """A warm pod, ready, with nothing running."""
    return nodes[0]


@pytest.fixture
def script(tmp_path):
    """Write a Python program; its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
