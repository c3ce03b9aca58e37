"""A pod on this machine keeps the promises of a container: one end for all it started, an exit code that is kept."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from torchyard.agents.registry import AgentRegistry
from torchyard.api.status import State, TrainingJobStatus
from torchyard.local import record
from torchyard.local.pod import LocalPod
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod
from torchyard.reconcile.ports import Unavailable

pytestmark = pytest.mark.e2e


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
    assert not bench.marked(pod)


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
        await until(lambda: len(bench.marked(pod)) >= 4, what="worker and its child in another session run")
        await bench.delete(pod)
        assert not bench.marked(pod)
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
        assert not bench.marked(pod)


@pytest.mark.parametrize("victim", ["agent", "group", "keeper"])
async def test_a_killed_pod_is_failed_with_137_and_leaves_nothing(bench, until, victim):
    bench.create(command=[sys.executable, "-c", SLEEPER])
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
        bench.run_round()
        await until(lambda: len(bench.marked(pod)) >= 4)
        if victim == "group":
            for process in bench.marked(pod):
                process.kill(signal.SIGKILL)
        else:
            getattr(pod.running, victim).kill(signal.SIGKILL)
        await until(lambda: bench.pods[0].phase == "Failed")
        assert bench.pods[0].exit_code == 137
        if victim != "group":  # where both die, the keeper may have had the time to say so
            words = {"agent": "its agent was killed by SIGKILL", "keeper": "killed from outside"}
            assert words[victim] in bench.pods[0].message
        assert not bench.marked(pod)


@pytest.mark.parametrize(
    ("code", "log", "said"),
    [
        (143, "2026-11-23 14:15:54,167 INFO torchyard_agent.agent: exit 143\n", ""),
        (1, "ValueError: no\n\n2026-11-23 14:15:54,167 INFO torchyard_agent.agent: x\n", "ValueError: no"),
        (64, "torchyard-agent: no command\n", "torchyard-agent: no command"),
        (139, "ValueError: long ago\n", "its agent was killed by SIGSEGV"),
    ],
)
async def test_the_message_of_a_pod_that_ended_is_not_an_info_line_of_its_agent(tmp_path, code, log, said):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "pod.log").write_text(log)
    record.write(tmp_path / "exit.json", record.Exit(code=code, time=1.0))
    written = record.PodRecord(
        uid="u", job_uid="j", name="demo-0-0", index=0, incarnation=0, address="127.0.0.1", created=1.0, url="unix:/x"
    )
    pod = LocalPod(tmp_path, written)
    await pod.adopt()
    assert (pod.view().exit_code, pod.view().message) == (code, said)


async def test_a_pod_outlives_its_controller_and_the_next_one_adopts_it(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    assert bench.marked(pod), "nothing was asked to end"
    bench.registry = AgentRegistry(time.time, interval=1.0, on_news=lambda _uid: None)
    async with bench.controller():
        (view,) = bench.pods
        assert (view.uid, view.phase) == (pod.record.uid, "Running")
        await bench.ready()
        bench.registry.command(CommandAgent(pod_uid=view.uid, verb="exit", code=75))
        await until(lambda: bench.pods[0].phase == "Failed")
        assert bench.pods[0].exit_code == 75, "the exit code of a process that was never our child"


async def test_the_exit_code_is_kept_while_no_process_watches(bench, until):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    pod.running.agent.kill(signal.SIGTERM)
    await until(lambda: not bench.marked(pod))
    async with bench.controller():
        await until(lambda: bench.pods[0].phase == "Failed")  # its keeper may still have been recording the end
        assert bench.pods[0].exit_code == 143


async def test_a_pod_that_cannot_be_adopted_is_ended_before_anything_new_starts(bench):
    bench.create()
    async with bench.controller():
        pod = await bench.start()
        await bench.ready()
    elsewhere = msgspec.structs.replace(pod.record, url="http://127.0.0.1:1")
    record.write(pod.folder / "pod.json", elsewhere)
    async with bench.controller():
        assert (bench.pods[0].phase, bench.pods[0].reason) == ("Failed", "PodLost")
        assert not bench.marked(pod)


async def test_a_requested_deletion_is_carried_out_by_the_next_controller(bench, until):
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
        assert not bench.marked(pod)


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


async def test_a_missing_working_folder_is_an_error(bench, until):
    bench.create(workingDir="nowhere")
    async with bench.controller():
        await bench.start()
        (view,) = bench.pods
        assert (view.phase, view.exit_code) == ("Failed", 64)
        assert "spec.workingDir" in view.message


async def test_two_requests_to_start_a_pod_start_it_once(bench, until):
    bench.create()
    async with bench.controller() as cluster:
        await cluster.create_pod(bench.job, CreatePod(name="demo-0-0", index=0, incarnation=0))
        await asyncio.gather(cluster._pods.start_waiting(), cluster._pods.start_waiting())
        await bench.ready()
        assert bench.pods[0].phase == "Running"
        await cluster.kill_pods()


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
            await cluster.write_status(bench.job, TrainingJobStatus(state=State("Running")))
        assert bench.job.status == before
        bench.folder.status_file.rmdir()
        await cluster.write_status(bench.job, TrainingJobStatus(state=State("Running")))
        assert bench.job.status.state == "Running"


async def test_only_the_pods_own_token_is_let_in(bench):
    bench.create()
    async with bench.controller() as cluster:
        pod = await bench.start()
        assert await cluster.authenticate((pod.folder / "token").read_text()) == pod.record.uid
        assert await cluster.authenticate("guess") is None
        await cluster.kill_pods()
