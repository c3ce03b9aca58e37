"""A pod on this machine keeps the promises of a container: one end for all it started, an exit code that is kept."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from torchyard.api.codec import read_job
from torchyard.api.status import TrainingJobStatus
from torchyard.cluster.local import gpus, record
from torchyard.cluster.local.cluster import LocalCluster
from torchyard.cluster.local.process import ProcessId, carrying, identify
from torchyard.cluster.local.runs import create_run
from torchyard.engine.actions import CommandAgent, CreatePod, DeletePod
from torchyard.engine.ports import Unavailable
from torchyard.intake.book import Book
from torchyard.intake.server import application
from torchyard.intake.unix import unix_intake

pytestmark = pytest.mark.e2e


class Bench:
    """A local cluster and an intake, and a test in the place of the engine."""

    def __init__(self, folder, until):
        self.folder = folder
        self.until = until
        self.book = Book(time.time, interval=1.0, on_news=lambda _uid: None)

    def create(self, **spec):
        spec = {"command": [sys.executable, "-c", "pass"], "gracePeriod": "10s"} | spec
        job = read_job({"metadata": {"name": self.folder.name}, "spec": spec})
        return create_run(self.folder, job, self.folder.home)

    @contextlib.asynccontextmanager
    async def controller(self):
        cluster = LocalCluster(self.folder, gone=self.book.forget)
        cluster.read_tokens()
        async with unix_intake(application(self.book, cluster.authenticate), self.folder.socket_file) as url:
            await cluster.open(url)
            self.cluster = cluster
            try:
                yield cluster
            finally:
                await cluster.close()

    @property
    def pods(self):
        return self.cluster.pods(self.job.metadata.uid)

    @property
    def job(self):
        return self.cluster.job(("default", self.folder.name))

    @property
    def agent(self):
        return self.book.of([self.pods[0].uid]).get(self.pods[0].uid)

    async def start(self, index=0):
        name = f"demo-0-{index}"
        await self.cluster.create_pod(self.job, CreatePod(name=name, index=index, incarnation=0))
        pod = self.cluster._pods.by_name[name]
        await self.until(lambda: pod.running or pod.over)
        return pod

    async def ready(self):
        await self.until(lambda: self.agent and self.agent.state == "ready", what="the agent is ready")

    def run_round(self, round_=1):
        uid = self.pods[0].uid
        command = CommandAgent(
            pod_uid=uid, verb="run", round=round_, nodes=1, master_address="127.0.0.1", master_port=29999, procs=1
        )
        self.book.command(command)

    async def delete(self, pod, grace=10.0):
        view = pod.view()
        await self.cluster.delete_pod(
            self.job, DeletePod(uid=view.uid, name=view.name, grace_seconds=grace, why="test")
        )
        await self.until(lambda: view.name not in self.cluster._pods.by_name)


@pytest.fixture
def bench(folder, until):
    return Bench(folder, until)


def marked(pod):
    return [process for process in carrying("TORCHYARD_POD_UID", pod.record.uid) if process.alive()]


SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


async def test_a_pod_runs_the_real_agent_with_the_contract_environment(bench, home, until, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("PET_NNODES", "9")
    show = "import os, json; json.dump(dict(os.environ) | {'cwd': os.getcwd()}, open(os.environ['OUT'], 'w'))"
    out = home / "out.json"
    (home / "project").mkdir()
    bench.create(
        command=[sys.executable, "-c", show], workingDir="project", env=[{"name": "OUT", "value": str(out)}], nodes=2
    )
    async with bench.controller() as cluster:
        pod = await bench.start()
        await bench.ready()
        assert bench.agent.address == pod.record.address
        assert (pod.folder / "token").stat().st_mode & 0o777 == 0o600
        bench.run_round()
        await until(lambda: bench.agent.exit)
        assert bench.agent.exit.code == 0, bench.agent.exit
        seen = json.loads(out.read_text())
        await cluster.kill_pods()
    assert seen["cwd"] == str(home / "project")
    assert seen["TORCHYARD_CHECKPOINT_DIR"] == str(bench.folder.checkpoints)
    assert json.loads((pod.folder / "config.json").read_bytes())["job"]["name"] == "demo"
    assert seen["PET_NNODES"] == "1"
    assert "TORCHYARD_TOKEN_FILE" not in seen
    assert seen["PATH"].startswith(str(Path(sys.executable).parent))
    assert not marked(pod)


async def test_two_pods_have_two_addresses(bench):
    bench.create(nodes=2)
    async with bench.controller() as cluster:
        first, second = await bench.start(0), await bench.start(1)
        assert first.record.address != second.record.address
        await cluster.kill_pods()


async def test_creating_a_pod_twice_is_creating_it_once(bench):
    bench.create()
    async with bench.controller() as cluster:
        pod = await bench.start()
        await bench.start()
        assert [each.uid for each in bench.pods] == [pod.record.uid]
        await cluster.kill_pods()


async def test_deleting_a_pod_ends_all_it_started_and_keeps_its_logs(bench, until):
    bench.create(command=[sys.executable, "-c", SLEEPER])
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        bench.run_round()
        await until(lambda: len(marked(pod)) >= 4, what="worker and its child in another session run")
        await bench.delete(pod)
        assert not marked(pod)
        assert bench.pods == ()
        assert (pod.folder / "logs" / "agent.log").exists()
        assert not (pod.folder / "token").exists()


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        pod.running.agent.kill(signal.SIGSTOP)
        await bench.delete(pod, grace=0.2)
        assert not marked(pod)


@pytest.mark.parametrize("victim", ["agent", "group", "keeper"])
async def test_a_killed_pod_is_failed_with_137_and_leaves_nothing(bench, until, victim):
    bench.create(command=[sys.executable, "-c", SLEEPER])
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        bench.run_round()
        await until(lambda: len(marked(pod)) >= 4)
        if victim == "group":
            for process in marked(pod):
                process.kill(signal.SIGKILL)
        else:
            getattr(pod.running, victim).kill(signal.SIGKILL)
        await until(lambda: bench.pods[0].phase == "Failed")
        assert bench.pods[0].exit_code == 137
        assert not marked(pod)


async def test_a_pod_outlives_its_controller_and_the_next_one_adopts_it(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    assert marked(pod), "nothing was asked to end"
    bench.book = Book(time.time, interval=1.0, on_news=lambda _uid: None)
    async with bench.controller():
        (view,) = bench.pods
        assert (view.uid, view.phase) == (pod.record.uid, "Running")
        await bench.ready()
        bench.book.command(CommandAgent(pod_uid=view.uid, verb="exit", code=75))
        await until(lambda: bench.pods[0].phase == "Failed")
        assert bench.pods[0].exit_code == 75, "the exit code of a process that was never our child"


async def test_the_exit_code_is_kept_while_nobody_watches(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    pod.running.agent.kill(signal.SIGTERM)
    await until(lambda: not marked(pod))
    async with bench.controller():
        assert (bench.pods[0].phase, bench.pods[0].exit_code) == ("Failed", 143)


async def test_a_pod_that_cannot_be_adopted_is_ended_before_anything_new_starts(bench):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    elsewhere = msgspec.structs.replace(pod.record, url="http://127.0.0.1:1")
    record.write(pod.folder / "pod.json", elsewhere)
    async with bench.controller():
        assert (bench.pods[0].phase, bench.pods[0].reason) == ("Failed", "PodLost")
        assert not marked(pod)


async def test_a_deletion_that_was_asked_for_is_carried_out_by_the_next_controller(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        pod.running.agent.kill(signal.SIGSTOP)
        view = pod.view()
        await bench.cluster.delete_pod(
            bench.job, DeletePod(uid=view.uid, name=view.name, grace_seconds=1.0, why="test")
        )
        await until(lambda: record.read(pod.folder / "pod.json", record.PodRecord).deletion)
    async with bench.controller():
        await until(lambda: bench.pods == ())
        assert not marked(pod)


async def test_a_controller_that_dies_while_it_starts_a_pod_leaves_it_to_the_next(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        await bench.delete(pod)
        unborn = record.PodRecord(
            uid="u", job_uid=bench.job.metadata.uid, name="demo-0-0", index=0, incarnation=0, address="127.0.0.1",
            created=1.0, url="http://127.0.0.1:1",
        )  # fmt: skip
        record.write(pod.folder / "pod.json", unborn)
        (pod.folder / "lock").unlink()
    async with bench.controller() as cluster:
        assert [view.uid for view in bench.pods] == ["u"]
        await bench.ready()
        await cluster.kill_pods()


async def test_a_missing_working_folder_is_said_so(bench, until):
    bench.create(workingDir="nowhere")
    async with bench.controller():
        await bench.start()
        (view,) = bench.pods
        assert (view.phase, view.exit_code) == ("Failed", 64)
        assert "spec.workingDir" in view.message


async def test_gpus_that_are_not_there_keep_the_pod_pending_with_the_figures(bench, until):
    bench.create(gpusPerNode=2, nodes=2)
    async with bench.controller() as cluster:
        cluster._pods.gpus = ("GPU-1",)
        await cluster.create_pod(bench.job, CreatePod(name="demo-0-0", index=0, incarnation=0))
        await until(lambda: bench.pods[0].reason == "InsufficientGPU")
        assert bench.pods[0].phase == "Pending"
        assert "need 4" in bench.pods[0].message
        assert "has 1" in bench.pods[0].message
        pod = cluster._pods.by_name["demo-0-0"]
        await bench.delete(pod)


async def test_gpus_go_to_one_pod_at_a_time_and_come_back(bench, until):
    bench.create(gpusPerNode=1, nodes=1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = ("GPU-1",)
        pod = await bench.start()
        assert pod.record.gpus == ["GPU-1"]
        folder = bench.folder.home / "gpus"
        assert gpus.take(folder, ("GPU-1",), 1) is None
        await bench.delete(pod)
        taken = gpus.take(folder, ("GPU-1",), 1)
        assert taken is not None
        os.close(taken["GPU-1"])


async def test_a_gang_takes_all_its_gpus_or_none_and_starts_once_they_are_free(bench, until, monkeypatch):
    monkeypatch.setattr("torchyard.cluster.local.pods.RETRY_SECONDS", 0.05)
    bench.create(gpusPerNode=1, nodes=2)
    folder = bench.folder.home / "gpus"
    other = gpus.take(folder, ("GPU-2",), 1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = ("GPU-1", "GPU-2")
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


async def test_a_pod_that_is_asked_to_start_twice_starts_once(bench, until):
    bench.create()
    async with bench.controller() as cluster:
        await cluster.create_pod(bench.job, CreatePod(name="demo-0-0", index=0, incarnation=0))
        await asyncio.gather(cluster._pods.start_waiting(), cluster._pods.start_waiting())
        await bench.ready()
        assert bench.pods[0].phase == "Running"
        await cluster.kill_pods()


async def test_a_pod_whose_folder_cannot_be_made_has_failed_and_holds_no_gpu(bench):
    bench.create(gpusPerNode=1)
    async with bench.controller() as cluster:
        cluster._pods.gpus = ("GPU-1",)
        (bench.folder.pods / "demo-0-0").write_text("in the way")
        await bench.start()
        (view,) = bench.pods
        assert (view.phase, view.exit_code, view.reason) == ("Failed", 137, "PodFailed")
        assert "demo-0-0" in view.message
        taken = gpus.take(bench.folder.home / "gpus", ("GPU-1",), 1)
        assert taken is not None
        os.close(taken["GPU-1"])


async def test_what_no_process_can_be_given_is_said_so(bench):
    bench.create(env=[{"name": "A", "value": "a"}])
    async with bench.controller() as cluster:
        env = [msgspec.structs.replace(bench.job.spec.env[0], value="a\0b")]  # job files with it are refused
        cluster.replace_job(msgspec.structs.replace(bench.job, spec=msgspec.structs.replace(bench.job.spec, env=env)))
        await bench.start()
        (view,) = bench.pods
        assert (view.phase, view.exit_code, view.reason) == ("Failed", 64, "ConfigurationInvalid")
        assert "null byte" in view.message


async def test_a_status_that_is_not_on_disk_does_not_count(bench):
    bench.create()
    async with bench.controller() as cluster:
        before = bench.job.status
        bench.folder.status_file.mkdir()
        with pytest.raises(Unavailable, match=r"status\.json"):
            await cluster.write_status(bench.job, TrainingJobStatus(state="Running"))
        assert bench.job.status == before
        bench.folder.status_file.rmdir()
        await cluster.write_status(bench.job, TrainingJobStatus(state="Running"))
        assert bench.job.status.state == "Running"


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(None, ("A-1", "B-2")), ("1", ("B-2",)), ("B", ("B-2",)), ("", ()), ("7,A-1", ("A-1",))]
)
def test_cuda_visible_devices_of_the_user_is_respected(wanted, chosen):
    assert gpus.visible(("A-1", "B-2"), wanted) == chosen


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


async def test_only_the_pods_own_token_is_let_in(bench):
    bench.create()
    async with bench.controller() as cluster:
        pod = await bench.start()
        assert await cluster.authenticate((pod.folder / "token").read_text()) == pod.record.uid
        assert await cluster.authenticate("guess") is None
        await cluster.kill_pods()
