"""Options of a torchrun command: those of the size of a pod are honoured before the script."""

import pytest

from torchyard.api.launch import local_procs, options, requested_procs
from torchyard.api.resource import read_job


def spec(**fields):
    return read_job({"metadata": {"name": "x"}, "spec": fields}).spec


@pytest.mark.parametrize(
    ("fields", "procs"),
    [
        ({"command": ["torchrun", "--nproc-per-node=2", "a.py"]}, 2),
        ({"command": ["torchrun", "--nproc_per_node", "3", "-m", "package"]}, 3),
        ({"command": ["/opt/venv/bin/torchrun", "--nproc", "4"], "args": ["a.py", "--nproc-per-node=9"]}, 4),
        ({"command": ["python3.11", "-u", "-m", "torch.distributed.run", "--nproc-per-node=5", "a.py"]}, 5),
        ({"command": ["torchrun", "--standalone", "--role", "x", "--nproc-per-node=2", "a.py"], "gpusPerNode": 8}, 2),
        ({"command": ["torchrun", "--nproc-per-node=gpu", "a.py"], "gpusPerNode": 8}, 8),
        ({"command": ["torchrun", "--nproc-per-node=2", "a.py"], "procsPerNode": 2}, 2),
        ({"command": ["torchrun", "a.py", "--nproc-per-node=2"]}, 1),
        ({"command": ["torchrun", "--", "--nproc-per-node=2"]}, 1),
        ({"command": ["python", "-m", "train", "--nproc-per-node=2"]}, 1),
        ({"command": ["bash", "-c", "torchrun --nproc-per-node=2 a.py"]}, 1),
        ({"command": ["torchrun", "--nproc-per-node=2", "a.py"], "launcher": {"kind": "none"}}, 1),
        ({"script": "1", "args": ["--nproc-per-node=2"], "gpusPerNode": 4}, 4),
    ],
)
def test_a_pod_has_as_many_workers_as_its_torchrun_asks_for(fields, procs):
    assert local_procs(spec(**fields)) == procs


def test_what_is_not_said_stays_automatic():
    assert requested_procs(spec(command=["torchrun", "a.py"])) == "auto"


def test_an_option_that_this_version_does_not_know_ends_the_reading():
    command = ["torchrun", "--of-the-future", "--nproc-per-node=2", "a.py"]
    assert options(spec(command=command)) == {}
    assert options(spec(command=["torchrun", "--rdzv", "a.py"])) == {}, "an ambiguous prefix, which torchrun refuses"
