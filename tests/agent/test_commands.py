"""Commands and signals: save and stop, SIGTERM, exit, stacks, an operator that goes away, an agent that is killed."""

import json
import os
import signal
from pathlib import Path

import pytest

from torchyard_agent.workers.stacks import listed

pytestmark = pytest.mark.e2e

SAVING = """
import json, os, sys, time
run_dir, rank = os.environ["TORCHYARD_RUN_DIR"], os.environ["RANK"]
report = {"round": int(os.environ["TORCHYARD_ROUND"]), "rank": int(rank), "step": 7, "saves": True}
open(os.path.join(run_dir, f"report.{rank}.new"), "w").write(json.dumps(report))
os.replace(os.path.join(run_dir, f"report.{rank}.new"), os.path.join(run_dir, f"report.{rank}.json"))
print("waiting", flush=True)
while not os.path.exists(os.path.join(run_dir, "preempt")):
    time.sleep(0.02)
time.sleep(float(rank))
open(os.path.join(run_dir, "saved." + rank), "w").write("7")
sys.exit(75)
"""
# Longer than the five seconds that the others get where one fails.
TRAPPING_ON_EACH_RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def save(*_):
    time.sleep(7 * rank)
    open(os.path.join(os.environ["TORCHYARD_RUN_DIR"], f"own-save-{rank}"), "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
time.sleep(600)
"""
DEAF = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"
TRAPPING = """
import os, signal, sys, time
def save(*_):
    time.sleep(1)
    open(os.path.join(os.environ["TORCHYARD_RUN_DIR"], "own-save"), "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
time.sleep(600)
"""


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def waiting(node, rank=0):
    return lambda: "waiting" in node.log(rank)


def test_save_and_stop_ends_75_when_every_rank_has_saved(node, script, until):
    node.run(procs=2, program=script(SAVING))
    until(lambda: waiting(node, 0)() and waiting(node, 1)())
    node.tell("save-and-stop", round=node.round, graceSeconds=600)
    ended = node.ended()
    assert (ended["code"], ended["saved"], ended["asked"], ended["failure"]) == (75, True, True, None)
    assert node.ready()["state"] == "ready"
    assert (node.run_dir / "saved.1").read_text() == "7"


def test_save_and_stop_wastes_no_grace_on_a_program_that_cannot_save(node, script, until):
    node.run(program=script(DEAF))
    until(waiting(node))
    node.tell("save-and-stop", round=node.round, graceSeconds=600)
    ended = node.ended()
    assert (ended["code"], ended["saved"], ended["asked"]) == (143, False, True)


def test_save_and_stop_lets_a_program_that_traps_sigterm_save_its_own_way(node, script, until):
    node.run(program=script(TRAPPING))
    until(waiting(node))
    node.tell("save-and-stop", round=node.round, graceSeconds=600)
    ended = node.ended()
    assert (node.run_dir / "own-save").exists()
    assert (ended["code"], ended["saved"], ended["asked"]) == (143, False, True), (
        "0 here does not mean the work is done"
    )


def test_a_rank_that_has_ended_on_request_takes_no_time_from_one_that_still_saves(node, script, until):
    node.run(procs=2, program=script(TRAPPING_ON_EACH_RANK))
    until(lambda: waiting(node, 0)() and waiting(node, 1)())
    node.tell("save-and-stop", round=node.round, graceSeconds=600)
    ended = node.ended()
    assert (ended["code"], ended["asked"], ended["answer"], ended["answerCode"]) == (143, True, "ended", 3)
    assert (node.run_dir / "own-save-1").exists()


@pytest.mark.parametrize("case", [(SAVING, "600", 75), (DEAF, "600", 143)], ids=["saves", "deaf"])
def test_sigterm_saves_and_exits_75_or_143(pod, script, until, case):
    program, grace, code = case
    one = pod(
        "python3", script("import os\nos.environ.setdefault('RANK', '0')\n" + program), TORCHYARD_GRACE_SECONDS=grace
    )
    one.ready()
    one.run()
    until(waiting(one))
    one.process.send_signal(signal.SIGTERM)
    assert one.exited() == code
    last = one.intake.state(one.name)
    assert (last["state"], last["exit"]["code"], last["exit"]["saved"]) == ("exiting", code, code == 75)
    assert json.loads(one.termination_log.read_text())["code"] == code


def test_sigterm_without_workers_exits_143_at_once(pod):
    one = pod("true", TORCHYARD_GRACE_SECONDS="600")
    one.ready()
    one.process.send_signal(signal.SIGTERM)
    assert one.exited() == 143


def test_dump_shows_the_stack_of_every_worker_while_they_hang_in_c(node, script, until):
    program = (
        "import ctypes, os, threading\n"
        "def park(): threading.Event().wait()\n"
        "def stuck(): ctypes.PyDLL(None).sleep(600)  # keeps the interpreter lock\n"
        "threading.Thread(target=park, daemon=True).start()\n"
        "print('waiting', flush=True)\n"
        "stuck() if os.environ['RANK'] == '0' else park()\n"
    )
    node.run(procs=2, program=script(program))
    until(lambda: waiting(node, 0)() and waiting(node, 1)())
    before = node.workers(2)
    found = listed(node.run_dir)
    assert [each["rank"] for each in found] == [0, 1]
    text = "".join(each["stacks"] for each in found)
    assert "in stuck" in found[0]["stacks"]
    assert text.count("in park") >= 2
    assert "torchyard_agent" not in text
    assert node.workers(2) == before


def test_training_continues_while_the_operator_is_down(pod, script, until, tmp_path, listen):
    go = tmp_path / "go"
    program = (
        f"import os, time\nprint('waiting', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "print('done', flush=True)\n"
    )
    first = listen()
    one = pod("python3", script(program), intake=first)
    one.ready()
    one.run()
    until(waiting(one))
    first.close()
    go.touch()
    until(lambda: "done" in one.log())
    until(lambda: one.status()["exit"])
    one.intake = second = listen()
    ended = one.ended(1)
    assert ended["code"] == 0
    assert second.state(one.name)["sequence"] > first.state(one.name)["sequence"]


def test_a_finished_pod_without_an_operator_exits_0_by_itself(pod, intake):
    one = pod("true", TORCHYARD_ORPHAN_SECONDS="1")
    one.ready()
    one.run()
    one.ended()
    intake.close()
    assert one.exited() == 0


def test_a_rejected_token_is_logged_once_and_the_new_one_is_tried(pod, listen, until):
    intake = listen()
    intake.refuse["pod-0"] = (401, {"error": "unauthorized"})
    one = pod("true", intake=intake)
    until(lambda: len(intake.requests.get("pod-0", ())) >= 3)
    (one.run_dir / "token").write_text("pod-0-rotated")
    intake.wait_for("pod-0-rotated", lambda state: state["state"] == "ready")
    assert (one.run_dir / "output").read_text().count("was rejected") == 1


def test_a_newer_instance_of_the_pod_makes_this_one_leave_with_its_workers(pod, script, intake, until, alive):
    one = pod("python3", script(DEAF))
    one.ready()
    one.run()
    until(waiting(one))
    worker = one.workers(1)["0"]
    intake.refuse[one.name] = (409, {"error": "superseded"})
    assert one.exited() == 143
    assert not alive(worker)


def test_kill_9_of_the_agent_ends_its_workers_and_their_child_processes(pod, script, until, alive, tmp_path):
    program = script(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print('waiting', child.pid, flush=True)\ntime.sleep(600)\n"
    )
    for number, command in enumerate((("torchrun", program), ("sh", "-c", f"python3 {program}; true"))):
        one = pod(*command, name=f"pod-{number}")
        one.ready()
        one.run()
        until(waiting(one))
        family = [one.workers(1)["0"], int(one.log().split()[1])]
        assert all(map(alive, family))
        os.kill(one.process.pid, signal.SIGKILL)
        until(lambda family=family: not any(map(alive, family)))


def test_kill_9_of_the_whole_process_group_leaves_nothing(node, pod, script, until, alive):
    one = pod("python3", script(DEAF))
    one.ready()
    one.run()
    until(waiting(one))
    worker = one.workers(1)["0"]
    os.killpg(one.process.pid, signal.SIGKILL)
    until(lambda: not alive(worker))


def test_orphans_are_reaped(pod, script, until):
    program = "sh -c 'sleep 0.2 & echo orphan $!' ; echo waiting; sleep 600"
    one = pod("sh", "-c", program)
    one.ready()
    one.run()
    until(waiting(one))
    orphan = int(one.log().split()[1])
    until(lambda: not Path(f"/proc/{orphan}").exists())


def test_a_killed_zygote_ends_the_round_and_is_replaced(node, script, until):
    node.run(program=script(DEAF))
    until(waiting(node))
    worker = node.workers(1)["0"]
    launcher = parent_of(worker)
    zygote = parent_of(launcher)
    assert zygote != node.process.pid
    os.kill(zygote, signal.SIGKILL)
    assert node.ended()["code"] == 137
    until(lambda: node.status()["warm"])
