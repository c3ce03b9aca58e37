"""A sweep on this machine: killed and run again, it makes the trials of an undisturbed one; then its results."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tests.support.waiting import DEADLINE, until

from torchyard.cli.interrupts import SAME_PRESS_SECONDS
from torchyard.local.process import carrying
from torchyard.local.record import POD_MARK
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.sampling import suggest

pytestmark = pytest.mark.e2e
pytest.importorskip("optuna", reason="optuna is not installed: pip install torchyard[sweep]")

SWEEP = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingSweep",
    "metadata": {"name": "tune"},
    "spec": {
        "objective": {"metric": "evalReturn", "goal": "maximize"},
        "algorithm": {"name": "random", "seed": 5},
        "earlyStopping": {"name": "asha"},
        "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.0001, "max": 0.1, "log": True}}],
        "maxTrials": 3,
        "parallelTrials": 2,
        "jobTemplate": {
            "spec": {
                "trainer": {
                    "name": "vecrl",
                    "params": {
                        "environment": "bandit",
                        "environmentSteps": 4096,
                        "environments": 16,
                        "horizon": 16,
                        "evalEvery": 1,
                        "evalEpisodes": 8,
                    },
                }
            }
        },
    },
}
# A program that knows nothing of TorchYard. A bad value waits behind its first rung until it is asked to save; nothing
# else ends it.
SCRIPT = """
import os, pathlib, signal, sys
value, state = float(sys.argv[1]), pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"], "saved")
signal.signal(signal.SIGTERM, lambda *_: (state.touch(), os._exit(0)))
print("resumed" if state.exists() else "began", flush=True)
for step in range(1, 11):
    print(f"step {step}/10 loss={value / step}", flush=True)
    if value > 1 and step == 3 and not state.exists():
        signal.pause()
"""
PLAIN = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "algorithm": {"name": "grid"},
    "earlyStopping": {"name": "asha"},
    "parameters": [{"path": "args[1]", "choice": [1, 2]}],
    "jobTemplate": {
        "spec": {
            "command": [sys.executable],
            "args": ["program.py", "1"],
            "metrics": {"patterns": [r"step (?P<step>\d+)/(?P<total_steps>\d+) loss=(?P<loss>\S+)"]},
            "launcher": {"warmStart": False},
        }
    },
}
COMMAND = [sys.executable, "-m", "torchyard.cli.main"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    yield tmp_path / "home"
    for run in (tmp_path / "home" / "runs").glob("*"):
        for process in carrying("TORCHYARD_CHECKPOINT_DIR", str(run / "checkpoints")):
            process.kill(signal.SIGKILL)


def torchyard(tmp_path, *words):
    return subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def alive_beside_pods(home):
    """Return the processes of runs in `home` that belong to no pod."""
    pods = [json.loads(path.read_bytes())["uid"] for path in home.glob("runs/*/pods/*/pod.json")]
    of_pods = {process.pid for uid in pods for process in carrying(POD_MARK, uid)}
    alive = [each for each in carrying("TORCHYARD_HOME", str(home)) if each.alive()]
    return [each for each in alive if each.pid not in of_pods]


def test_a_killed_sweep_continues_and_has_its_results(home, tmp_path):
    first = subprocess.Popen([*COMMAND, "run", "sweep.yaml"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    status = home / "runs/tune-0/status.json"
    until(lambda: json.loads(status.read_bytes())["status"]["state"] == "Running")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    until(lambda: not alive_beside_pods(home))  # its sampler ends too
    done = torchyard(tmp_path, "run", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    assert "sweep tune: 3 trials" in done.stderr
    again = torchyard(tmp_path, "run", "sweep.yaml")
    assert "3 of 3 trials" in again.stderr, "one that is over is shown as it ended"

    shown = json.loads(torchyard(tmp_path, "sweep", "show", "tune", "-o", "json").stdout)
    spec = read_sweep(SWEEP).spec
    for number, trial in enumerate(shown["trials"]):
        assert trial["parameters"] == suggest(spec, number, 0, [], []), "random parameters follow from the seed alone"
        assert trial["outcome"] in {"complete", "stopped"}
        assert trial["value"] is not None
    milestones = json.loads(status.read_bytes())["status"]["metrics"]
    assert {"evalReturn@10%", "evalReturn@30%", "evalReturn@90%"} <= milestones.keys()

    best = max((each for each in shown["trials"] if each["outcome"] == "complete"), key=lambda each: each["value"])
    job = yaml.safe_load(torchyard(tmp_path, "sweep", "best", "tune", "-o", "yaml").stdout)
    assert job["spec"]["trainer"]["params"]["lr"] == best["parameters"]["trainer.params.lr"]
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(job))
    assert torchyard(tmp_path, "validate", "best.yaml").returncode == 0

    assert torchyard(tmp_path, "sweep", "report", "tune", "--folder", "out").returncode == 0
    rows = list(csv.DictReader((tmp_path / "out/results.csv").open()))
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<circle") == 3
    assert "http" not in page

    refused = torchyard(tmp_path, "run", "sweep.yaml", "--set", "objective.goal=minimize")
    assert refused.returncode == 64
    assert "differs in `spec.objective`" in refused.stderr
    assert torchyard(tmp_path, "sweep", "rm", "tune").returncode == 0
    assert not list((home / "runs").glob("tune-*"))


def test_a_plain_script_is_saved_and_stopped_at_a_rung(home, tmp_path):
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "spec": PLAIN}))
    done = torchyard(tmp_path, "run", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    good, bad = json.loads(torchyard(tmp_path, "sweep", "show", "tune", "-o", "json").stdout)["trials"]
    assert (good["outcome"], good["value"]) == ("complete", 0.1)
    assert (bad["outcome"], bad["percent"], bad["value"]) == ("stopped", 10, 2.0), "the loss after step 1 of 10"
    assert (home / "runs/tune-1/checkpoints/saved").exists(), "SIGTERM asks it to save"
    explained = torchyard(tmp_path, "explain", "tune-1").stdout
    assert "tune-1 on this machine is Suspended.\nIt is trial 1 of sweep tune, which stopped it early" in explained
    assert explained.rstrip().endswith("next: torchyard sweep show tune")
    assert "it is a sweep: `torchyard sweep show tune`" in torchyard(tmp_path, "status", "tune").stderr


ENDLESS_SAVE = """
import signal
signal.signal(signal.SIGTERM, lambda *_: None)
print("step 1/10 loss=1", flush=True)
while True:
    signal.pause()
"""


def test_a_second_ctrl_c_ends_programs_that_still_save(home, tmp_path):
    (tmp_path / "program.py").write_text(ENDLESS_SAVE)
    template = {"spec": {**PLAIN["jobTemplate"]["spec"], "gracePeriod": "1h"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "spec": {**PLAIN, "jobTemplate": template}}))
    sweep = subprocess.Popen([*COMMAND, "run", "sweep.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    status = home / "runs/tune-0/status.json"
    until(lambda: "loss" in json.loads(status.read_bytes())["status"].get("metrics", {}))
    os.kill(sweep.pid, signal.SIGINT)
    assert "press Ctrl-C again to stop now (it takes at most 1h)" in sweep.stderr.readline()

    pressed = time.monotonic()
    until(lambda: time.monotonic() - pressed > SAME_PRESS_SECONDS)
    os.kill(sweep.pid, signal.SIGINT)
    sweep.wait(timeout=DEADLINE)
    assert sweep.returncode == 130
    assert (
        "sweep tune is stopped, without a last save; `torchyard run` with its file continues it" in sweep.stderr.read()
    )
    assert json.loads(status.read_bytes())["status"]["state"] == "Suspended"


def test_a_closed_terminal_saves_and_stops_the_trials(home, tmp_path):
    (tmp_path / "program.py").write_text(SCRIPT)
    parameters = [{"path": "args[1]", "choice": [2]}]
    plain = {**PLAIN, "parameters": parameters, "earlyStopping": None}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "spec": plain}))
    ours, terminal = os.openpty()
    sweep = subprocess.Popen(
        [*COMMAND, "run", "sweep.yaml"], cwd=tmp_path, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    os.set_blocking(ours, False)
    status = home / "runs/tune-0/status.json"

    def trains():
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)  # or what is drawn would wait for a reader
        return "loss" in json.loads(status.read_bytes())["status"].get("metrics", {})

    until(trains)
    os.close(ours)  # what is drawn from now on fails
    os.kill(sweep.pid, signal.SIGHUP)
    assert sweep.wait(timeout=DEADLINE) == 75
    assert json.loads(status.read_bytes())["status"]["state"] == "Suspended"
    assert torchyard(tmp_path, "run", "sweep.yaml").returncode == 0, "the same command continues it"
