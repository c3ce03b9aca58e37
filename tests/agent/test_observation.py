"""What an unmodified script is seen to do: its device, its process group, and GPUs that it cannot have."""

import sys

import pytest

pytestmark = pytest.mark.e2e

STEPS = """
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
def steps(count):
    for _ in range(count):
        weight.grad = torch.ones(1)
        optimizer.step()
"""
GROUP = "import torch.distributed\ntorch.distributed.init_process_group('gloo')\ntorch.distributed.barrier()\n"


@pytest.mark.parametrize(
    ("program", "procs", "alone"),
    [
        ("steps(3)", 2, True),
        ("steps(3)", 1, False),
        (GROUP + "steps(3)", 2, False),
        ("steps(3)\n" + GROUP + "steps(3)", 2, False),
        (GROUP + "steps(3)\ntorch.distributed.destroy_process_group()\nsteps(3)", 2, False),
        ("import sys, types\nsys.modules['horovod'] = types.ModuleType('horovod')\nsteps(3)", 2, False),
    ],
    ids=["no group", "one process", "group", "group later", "group destroyed", "another transport"],
)
def test_ranks_that_make_steps_without_a_process_group_are_reported(node, script, program, procs, alone):
    node.run(procs=procs, program=script(STEPS + program))
    assert node.ended()["code"] == 0
    reports = node.intake.state(node.name)["reports"]
    assert [report["device"] for report in reports] == ["cpu"] * procs
    assert ["aloneSeconds" in report for report in reports] == [alone] * procs


def test_a_program_that_only_reports_has_neither_device_nor_alone_seconds(node, script):
    node.run(procs=2, program=script("from torchyard_agent import report\nreport(step=3)"))
    assert node.ended()["code"] == 0
    for report in node.intake.state(node.name)["reports"]:
        assert not {"device", "aloneSeconds"} & set(report)


@pytest.mark.parametrize("command", [("torchrun",), (sys.executable,)], ids=["torchrun", "plain"])
def test_a_round_whose_gpus_cannot_be_used_ends_with_68_before_the_program_starts(pod, script, tmp_path, command):
    ran = tmp_path / "ran"
    program = script(f"open({str(ran)!r}, 'w')")
    one = pod(*command, program, TORCHYARD_GPUS="2", CUDA_VISIBLE_DEVICES="")
    one.ready()
    one.run()
    ended = one.ended()
    assert ended["code"] == 68
    assert ended["failure"]["message"].startswith("the job asks for 2 GPUs in each pod, but ")
    assert ended["failure"]["classified"]
    assert not ended["failure"]["secondary"]
    assert not ran.exists()
