"""The operator's log names each decision about a job once, and never quotes what a program printed."""

import json
import logging
import os
import subprocess
import sys

import kopf
import pytest
from tests.support.kubernetes.api_server import kubeconfig
from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.api.reasons import Reason
from torchyard.app.log_format import formatter
from torchyard.reconcile.loop.executor import MAX_NAMES, decision
from torchyard.reconcile.plan import plan
from torchyard.reconcile.ports import Refused


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="torchyard.decisions")
    return lambda: [each for each in caplog.records if each.name == "torchyard.decisions"]


async def train_and_fail(world, exception):
    async with controlled(world) as (controller, _):
        await pass_time(world, 1)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        world.end_workers(world.at(0), 1, exception=exception)
        controller.enqueue(KEY)
        await pass_time(world, 10)


@virtual_time
async def test_each_decision_is_one_line_with_job_round_reason_and_action(lines):
    await train_and_fail(World(2), "")
    said = [line.getMessage() for line in lines()]
    assert said[0].startswith("default/job: Pending, WaitingForPods, round 0: created pods job-0-0, job-0-1")
    (opened,) = [text for text in said if "event RoundOpened" in text and "round 1" in text]
    assert "asked 2 agents to run" in opened
    assert any("WorkerFailed, round 1" in text for text in said)
    assert len(said) == len(set(said)) < 15


@virtual_time
async def test_what_a_program_printed_is_not_in_the_log(lines):
    await train_and_fail(World(1), "ValueError: token=hunter2")
    assert lines()
    assert not any("hunter2" in line.getMessage() + str(vars(line)) for line in lines())


@virtual_time
async def test_a_refusal_that_is_tried_again_and_again_is_logged_once(lines):
    world = World(1)
    ports = Ports(world)
    ports.failing["create_pod"] = [Refused(Reason.QUOTA_EXCEEDED, "team, pods 3/3") for _ in range(6)]
    async with controlled(world, ports):
        await pass_time(world, 60)
    assert [line.getMessage() for line in lines()].count("default/job: Pending, QuotaExceeded, round 0") <= 1
    assert sum("QuotaExceeded" in line.getMessage() for line in lines()) == 1


def test_figures_alone_are_no_decision():
    world = World(1).to_running()
    world.now += 30
    world.advance_training()
    decided = plan(world.view())
    assert decided.actions
    assert decision(world.job, decided) is None


def test_a_large_gang_is_not_listed_whole():
    world = World(64)
    made = decision(world.job, plan(world.view()))
    assert f"job-0-{MAX_NAMES - 1} and {64 - MAX_NAMES} more" in made.actions[0]


def test_json_has_the_fields_of_a_decision_and_one_line_a_record():
    record = logging.makeLogRecord(
        {"name": "torchyard.decisions", "levelname": "INFO", "msg": "a\n\x1b[2Jb", "job": "team/x", "round": 3}
    )
    line = formatter("json").format(record)
    assert not {"\n", "\x1b"} & set(line)
    known = json.loads(line)
    assert (known["job"], known["round"], known["level"], known["logger"]) == (
        "team/x",
        3,
        "INFO",
        "torchyard.decisions",
    )
    assert known["message"] == "a\n\x1b[2Jb"


def test_a_record_of_kopf_is_one_line_with_our_keys_only():
    """Such records carry settings, which cannot be written as JSON."""
    record = logging.makeLogRecord({"msg": "done", "settings": kopf.OperatorSettings(), "k8s_ref": {"name": "x"}})
    assert json.loads(formatter("json").format(record)).keys() == {"time", "level", "logger", "message"}


UNHANDLED = """
import logging, sys, threading, warnings
from torchyard.app.log_format import log_everything
from torchyard.app.main import run
from torchyard.app.options import Options

log_everything("json")
warnings.warn("careful")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()

class Broken:
    def __del__(self):
        raise RuntimeError("broken")

Broken()
run(Options(qps=0.5, log_format="json"))
"""


def test_whatever_ends_or_escapes_in_the_process_is_json(tmp_path):
    env = {**os.environ, "KUBECONFIG": str(kubeconfig(tmp_path, "http://127.0.0.1:9"))}
    done = subprocess.run([sys.executable, "-c", UNHANDLED], env=env, capture_output=True, text=True, check=False)
    warned, thread, ignored, *_, ended = map(json.loads, done.stderr.splitlines())
    assert "careful" in warned["message"]
    assert "ZeroDivisionError" in thread["exc_info"]
    assert "RuntimeError: broken" in ignored["exc_info"]
    assert (ended["level"], done.returncode) == ("CRITICAL", 64)
    assert "--qps 0.5" in ended["message"]
