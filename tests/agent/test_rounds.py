"""What a round does in a pod: start warm, end, fail, stop, give way to a newer one."""

import os
import sys

import pytest

pytestmark = pytest.mark.e2e

REDUCE = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
rank, turn = dist.get_rank(), int(os.environ["TORCHYARD_ROUND"])
print("sum", ones.item(), flush=True)
"""
# For interpreters that end by themselves, as cold ones do: with a group still open gloo's threads abort some (134).
TIDY = REDUCE + "import atexit\natexit.register(dist.destroy_process_group)\n"
FOREVER = REDUCE + "while True:\n    dist.all_reduce(ones)\n    time.sleep(0.02)\n"


def reduced(node, rank=0):
    return lambda: "sum 2.0" in node.log(rank)


def test_a_pod_becomes_ready_runs_its_round_and_reports_exit_0(node, script):
    state = node.ready()
    assert state["protocol"] == 1
    assert state["procs"] == 1
    assert state["masterPort"] > 0
    assert not any("GPU" in notice for notice in state["notices"]), "no GPU was asked for"
    node.run(procs=2, program=script(REDUCE))
    ended = node.ended()
    assert (ended["code"], ended["failure"], ended["asked"], ended["saved"]) == (0, None, False, False)
    assert node.log(0) == node.log(1) == "sum 2.0\n"
    assert node.ready()["masterPort"] != state["masterPort"]


def test_an_exit_code_is_kept(node, script):
    node.run(procs=2, program=script(REDUCE + "if rank == 1:\n    sys.exit(42)\ndist.all_reduce(ones)\n"))
    ended = node.ended()
    assert (ended["code"], ended["failure"]["rank"], ended["failure"]["code"]) == (42, 1, 42)


def test_a_failure_has_its_exception_and_the_relevant_parts_of_traceback_and_log(node, script):
    program = "class Odd(Exception):\n    pass\nif rank == 1:\n    raise Odd('step 7 is odd')\ndist.all_reduce(ones)\n"
    node.run(procs=2, program=script(REDUCE + program))
    ended = node.ended()
    failure = ended["failure"]
    assert (failure["rank"], failure["code"], failure["secondary"]) == (1, 1, False)
    assert (failure["exception"], failure["message"]) == ("__main__.Odd", "step 7 is odd")
    assert any("train.py" in line for line in ended["lines"])
    assert not any("torchyard_agent" in line for line in ended["lines"])
    assert any("step 7 is odd" in line for line in ended["lines"])


def test_kill_9_of_a_worker_is_137_of_that_worker_and_the_next_round_starts_in_place(node, script, until, alive):
    node.run(procs=2, program=script(FOREVER))
    workers = node.workers(2)
    until(reduced(node))
    os.kill(workers["0"], 9)
    ended = node.ended()
    assert (ended["code"], ended["failure"]["rank"], ended["failure"]["secondary"]) == (137, 0, False)
    assert not alive(workers["1"])
    node.run(procs=2, program=script(FOREVER))
    until(reduced(node))
    assert node.status()["warm"]


def test_stop_ends_workers_that_ignore_sigterm_and_their_child_processes(node, script, until, alive, tmp_path):
    child = tmp_path / "child"
    program = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "detached = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(child)!r}, 'w').write(str(detached.pid))\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    node.run(program=script(program))
    workers = node.workers(1)
    until(lambda: "started" in node.log())
    node.tell("stop", round=node.round)
    ended = node.ended()
    assert (ended["code"], ended["asked"], ended["failure"]) == (143, True, None)
    node.ready()
    assert not alive(workers["0"])
    assert not alive(int(child.read_text()))


def test_an_older_round_is_ignored_and_a_newer_one_replaces_the_running_one(node, script, until):
    def heard():
        return node.wait_for(lambda state: state["revision"] == node.intake.commands[node.name][0])

    program = script(FOREVER)
    node.run(procs=2, program=program)
    first = node.round
    until(reduced(node))
    before = node.workers(2)
    for stale in (first - 1, first):
        node.run(stale, procs=2, program=program)
        heard()
    assert node.workers(2) == before
    node.run(first + 1, procs=2, program=program)
    assert node.ended(first)["asked"]
    until(reduced(node))
    assert node.intake.state(node.name)["round"] == first + 1
    node.tell("stop", round=first + 2)
    node.ended(first + 1)
    node.run(first + 2, procs=2, program=program)
    heard()
    node.tell("wait")
    state = heard()
    assert (state["state"], state["round"]) == ("ready", first + 1)


def test_two_pods_are_two_nodes_of_one_world_and_the_survivors_failure_is_secondary(nodes, script, until):
    program = script(FOREVER)
    port = nodes[0].ready()["masterPort"]
    number = max(node.round for node in nodes) + 1
    for rank, one in enumerate(nodes):
        one.run(number, nodes=2, rank=rank, port=port, program=program)
    until(reduced(nodes[1], rank=1))
    os.kill(nodes[1].workers(1)["1"], 9)
    lost, survivor = nodes[1].ended(), nodes[0].ended()
    assert (lost["code"], lost["failure"]["rank"], lost["failure"]["secondary"]) == (137, 1, False)
    assert survivor["code"] == 1
    assert survivor["failure"]["secondary"]


def test_cold_start_runs_the_same_command_as_plain_torchrun_processes(pod, script):
    program = TIDY + "if rank == 1:\n    raise KeyError('cold')\ntime.sleep(600)\n"
    about_output = ("--log-dir", "logs", "--redirects", "3", "--tee", "3")
    one = pod("torchrun", "--max-restarts", "3", *about_output, script(program), TORCHYARD_WARM_START="0")
    assert one.ready()["state"] == "ready"
    one.run(procs=2)
    ended = one.ended()
    assert ended["code"] == 1
    assert (ended["failure"]["rank"], ended["failure"]["exception"]) == (1, "KeyError")
    assert one.log(0) == "sum 2.0\n"
    notice = "torchrun --log-dir, --redirects, --tee: no effect, the output of every rank is in its log"
    assert any(notice in each for each in one.intake.state(one.name)["notices"])


def test_a_preload_that_starts_threads_or_fails_leads_to_a_cold_start_with_a_notice(pod, script, tmp_path):
    (tmp_path / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    one = pod("torchrun", script("print(1)"), TORCHYARD_PRELOAD="threads", PYTHONPATH=str(tmp_path))
    state = one.ready()
    assert any("warm start is off: 2 threads" in notice for notice in state["notices"])
    one.run(procs=1)
    assert one.ended()["code"] == 0


# Hangs for the first who imports it, which is the zygote; everyone else gets what it stands before.
HANGS_ONCE = """
import os, pathlib, sys, time
if not os.path.exists("zygote"):
    pathlib.Path("zygote").write_text(str(os.getpid()))
    time.sleep(600)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["torch"]
import torch
"""


def test_an_import_that_hangs_is_given_up_in_time_and_the_round_starts_cold(pod, script, tmp_path, until, alive):
    script(HANGS_ONCE, "torch.py")
    one = pod("torchrun", script("print(1)"), PYTHONPATH=str(tmp_path), TORCHYARD_WARM_SECONDS="2")
    one.wait_for(lambda state: state["state"])
    one.run(procs=1)
    assert one.ended()["code"] == 0
    said = "warm start is off: importing torch took longer than 2 s"
    notices = one.intake.state(one.name)["notices"]
    assert any(said in notice for notice in notices), notices
    until(lambda: not alive(int((tmp_path / "zygote").read_text())))


# As `pip install --editable` of a package that does not lie in a folder `src`.
EDITABLE = """
import importlib.abc, importlib.util, sys
class Editable(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_file_location(name, FILE) if name == "things" else None
sys.meta_path.append(Editable())
"""


def test_a_module_is_run_as_python_m_does_with_its_own_main_arguments_and_pickles(pod, tmp_path):
    elsewhere, site = tmp_path / "elsewhere", tmp_path / "site"
    elsewhere.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(EDITABLE.replace("FILE", repr(str(elsewhere / "things.py"))))
    (elsewhere / "things.py").write_text(
        "import atexit, multiprocessing, pickle, sys\n"
        "from torch.utils.data import DataLoader\n"
        "class Data:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return index\n"
        "if __name__ == '__main__':\n"
        "    atexit.register(print, 'bye')\n"
        "    assert pickle.loads(pickle.dumps(Data())) is not None\n"
        "    for method in ('fork', 'spawn'):\n"
        "        loader = DataLoader(Data(), num_workers=1, multiprocessing_context=method)\n"
        "        print(method, sum(int(batch) for batch in loader))\n"
        "    print(sys.argv[1:], __spec__.name, multiprocessing.current_process().name)\n"
        "    sys.exit('said at the end')\n"
    )
    command = (sys.executable, "-m", "torch.distributed.run", "-m", "things", "--epochs", "3")
    one = pod(*command, PYTHONPATH=str(site))
    one.ready()
    one.run()
    assert one.ended()["code"] == 1
    lines = one.log().splitlines()
    assert lines == ["fork 6", "spawn 6", "['--epochs', '3'] things MainProcess", "said at the end", "bye"]


@pytest.mark.parametrize(
    ("warm", "words", "missing"), [("1", ["-m", "no_such.thing"], "no_such"), ("0", ["nowhere.py"], "nowhere.py")]
)
def test_a_missing_script_or_module_is_127_and_named(pod, warm, words, missing):
    one = pod("torchrun", *words, TORCHYARD_WARM_START=warm)
    one.ready()
    one.run()
    ended = one.ended()
    assert ended["code"] == ended["failure"]["code"] == 127
    assert missing in ended["failure"]["message"]


def test_wrong_torchrun_options_end_with_64_and_the_message_of_torchruns_parser(pod, script):
    train = script("print(1)")
    for warm, words, said in (
        ("1", ["--bogus", train], "unrecognized arguments: --bogus"),
        ("0", ["--help"], "`--help` starts no training script"),
        ("0", ["--local-ranks-filter", "first", train], "local_ranks_filter"),
    ):
        one = pod("torchrun", *words, name=f"pod-{words[0]}", TORCHYARD_WARM_START=warm)
        one.ready()
        one.run()
        ended = one.ended()
        assert ended["code"] == ended["failure"]["code"] == 64
        assert said in ended["failure"]["message"]
