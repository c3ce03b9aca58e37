"""GPUs of this machine go to one pod at a time, to whole gangs only, and come back however a pod ends."""

import os

import pytest

from torchyard.api.resource import read_job
from torchyard.client.start import unused_gpus
from torchyard.local import gpus
from torchyard.reconcile.actions import CreatePod

pytestmark = pytest.mark.e2e


async def test_gpus_that_are_not_there_keep_the_pod_pending_with_the_figures(bench, until):
    bench.create(gpusPerNode=2, nodes=2)
    async with bench.controller() as cluster:
        cluster._pods.gpus = gpus.Inventory(("GPU-1",))
        await cluster.create_pod(bench.job, CreatePod(name="demo-0-0", index=0, incarnation=0))
        await until(lambda: bench.pods[0].reason == "InsufficientGPU")
        assert bench.pods[0].phase == "Pending"
        assert "needs 4 GPUs" in bench.pods[0].message
        assert "has 1" in bench.pods[0].message
        pod = cluster._pods.by_name["demo-0-0"]
        await bench.delete(pod)


async def test_gpus_go_to_one_pod_at_a_time_and_come_back(bench, until):
    bench.create(gpusPerNode=1, nodes=1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = gpus.Inventory(("GPU-1",))
        pod = await bench.start()
        assert pod.record.gpus == ["GPU-1"]
        folder = bench.folder.home / "gpus"
        assert gpus.take(folder, ("GPU-1",), 1) is None
        await bench.delete(pod)
        taken = gpus.take(folder, ("GPU-1",), 1)
        assert taken is not None
        os.close(taken["GPU-1"])


async def test_a_gang_takes_all_its_gpus_or_none_and_starts_once_they_are_free(bench, until, monkeypatch):
    monkeypatch.setattr("torchyard.local.pods.RETRY_SECONDS", 0.05)
    bench.create(gpusPerNode=1, nodes=2)
    folder = bench.folder.home / "gpus"
    other = gpus.take(folder, ("GPU-2",), 1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = gpus.Inventory(("GPU-1", "GPU-2"))
        for index in (0, 1):
            name = f"demo-0-{index}"
            await cluster.create_pod(bench.job, CreatePod(name=name, index=index, incarnation=0))
        await until(lambda: {pod.reason for pod in bench.pods} == {"InsufficientGPU"})
        half = gpus.take(folder, ("GPU-1",), 1)
        assert half is not None, "nothing is held while half of it is missing"
        for descriptor in (*half.values(), *other.values()):
            os.close(descriptor)
        await until(lambda: {pod.phase for pod in bench.pods} == {"Running"})
        assert sorted(pod.record.gpus for pod in cluster._pods.by_name.values()) == [["GPU-1"], ["GPU-2"]]
        assert gpus.take(folder, ("GPU-1", "GPU-2"), 1) is None, "the pods hold them"
        await cluster.kill_pods()


async def test_a_pod_whose_folder_cannot_be_made_has_failed_and_holds_no_gpu(bench):
    bench.create(gpusPerNode=1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = gpus.Inventory(("GPU-1",))
        (bench.folder.pods / "demo-0-0").write_text("in the way")
        await bench.start()
        (view,) = bench.pods
        assert (view.phase, view.exit_code, view.reason) == ("Failed", 137, "PodFailed")
        assert "demo-0-0" in view.message
        taken = gpus.take(bench.folder.home / "gpus", ("GPU-1",), 1)
        assert taken is not None
        os.close(taken["GPU-1"])


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(None, ("A-1", "B-2")), ("1", ("B-2",)), ("B", ("B-2",)), ("", ()), ("7,A-1", ("A-1",))]
)
def test_cuda_visible_devices_of_the_user_is_respected(wanted, chosen):
    assert gpus.visible(("A-1", "B-2"), wanted) == chosen


@pytest.mark.parametrize(
    ("spec", "visible", "said"),
    [
        ({}, ("A-1", "B-2"), "this run sees none of the machine's 2 GPUs; --gpus-per-node 1 gives it one"),
        ({}, (), None),
        ({"gpusPerNode": 1}, ("A-1", "B-2"), None),
        ({"device": "cpu"}, ("A-1", "B-2"), None),
    ],
    ids=["asks for none", "CUDA_VISIBLE_DEVICES hides all", "asks for one", "is for the CPU"],
)
def test_a_run_that_sees_no_gpu_of_the_machine_says_so(monkeypatch, spec, visible, said):
    monkeypatch.setattr(gpus, "has_driver", lambda: True)
    monkeypatch.setattr(gpus, "inventory", lambda: gpus.Inventory(visible))
    job = read_job({"metadata": {"name": "train"}, "spec": {"script": "pass", **spec}})
    assert unused_gpus(job) == said
