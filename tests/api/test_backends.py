"""A file works on laptop and cluster; what one of them has no use for is named."""

from torchyard.api.backends import ONLY, ignored, on_this_machine
from torchyard.api.resource import read_job
from torchyard.api.schema import spec_schema


def spec(**fields):
    return read_job({"metadata": {"name": "x"}, "spec": {"script": "1", **fields}}).spec


def test_a_plain_job_means_the_same_everywhere():
    plain = spec(nodes=2, resources={}, checkpoint={"keepLast": 1}, gpu={}, gpusPerNode=1, volumes=[])
    assert ignored(plain, "local") == ignored(plain, "cluster") == ()


def test_what_only_a_cluster_has_is_named_on_this_machine_and_the_other_way_round():
    full = spec(
        image="a",
        launcher={"kind": "none"},
        gpusPerNode=1,
        gpu={"products": ["A"], "ids": ["GPU-1"]},
        resources={"cpu": 4},
        checkpoint={"volume": {"claim": "runs"}},
        scheduling={"priorityClass": "high"},
    )
    assert ignored(full, "local") == (
        "image",
        "launcher.kind",
        "gpu.products",
        "resources",
        "checkpoint.volume",
        "scheduling",
    )
    assert ignored(full, "cluster") == ("gpu.ids",)


def test_on_this_machine_every_gang_has_an_agent():
    plain = read_job(
        {"metadata": {"name": "x"}, "spec": {"script": "1", "launcher": {"kind": "none", "warmStart": False}}}
    )
    launcher = on_this_machine(plain).spec.launcher
    assert (launcher.kind, launcher.warm_start) == ("agent", False)


def test_the_fields_exist():
    for field in ONLY:
        node = spec_schema()
        for name in field.split("."):
            node = node["properties"][name]
