"""A folder of runs as a user of the page has it: one trains, one failed, two are alike, one is a sweep."""

import json
import math
import random
import time
from pathlib import Path

from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob, read_job
from torchyard.api.status import (
    Attempt,
    Cause,
    CheckpointStatus,
    Goodput,
    Gpus,
    Progress,
    Restarts,
    State,
    Throughput,
    TrainingJobStatus,
)
from torchyard.api.values import Time
from torchyard.local.run import Event, RunFolder, append_events, run_folder, take_lock, write_status_file
from torchyard.local.runs import create_run
from torchyard.local.sweeps import create_sweep, create_trial
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.resource import TrialRecord, Unit

GIB = 2**30
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 71, in <module>
    loss = step(model, batch)
  File "train.py", line 38, in step
    return model(batch.images).loss
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.1 GiB"""
PAGE = """<!doctype html><html lang="en"><title>tours</title><style>body{font:16px system-ui;margin:24px}</style>
<h1>Exported policy</h1><p id="said">loading</p><script src="play.js"></script></html>"""
PLAY = """fetch("weights.json").then((answer) => answer.json()).then(({ layers }) => {
  let outside = "the cookie cannot be read";
  try { outside = document.cookie === "" ? "no cookie" : "A COOKIE"; } catch {}
  document.getElementById("said").textContent = `${layers} layers are loaded; ${outside}`;
});"""


def example(home: Path, now: float) -> None:
    """Write all of it; `now`: unix seconds. What trains seems to be controlled until this process ends."""
    noise = random.Random(3)
    sweep(home, now)
    _pair(home, now, noise)
    _failed(home, now)
    _training(home, now, noise)


def written(folder: RunFolder, job: TrainingJob, status: TrainingJobStatus) -> None:
    """Write the status of a run, whose checkpoint folder exists from then on."""
    write_status_file(folder, replace(job, status=status))
    folder.checkpoints.mkdir(exist_ok=True)


def run(home: Path, name: str, spec: dict, status: TrainingJobStatus) -> RunFolder:
    """Create a run with a status."""
    folder = run_folder(name, home)
    job = create_run(folder, read_job({"metadata": {"name": name}, "spec": spec}), home)
    written(folder, job, status)
    return folder


def log(folder: RunFolder, rank: int, lines: list[str]) -> None:
    """Append to the output of a rank."""
    path = folder.pods / f"{folder.name}-0" / "logs" / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def _rows(folder: RunFolder, rows: list[dict]) -> None:
    with (folder.checkpoints / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _training(home: Path, now: float, noise: random.Random) -> None:
    first, second = now - 5400, now - 2650
    status = TrainingJobStatus(
        state=State.RUNNING, message="4 ranks train.", start_time=Time.of(now - 5460), round=2,
        progress=Progress(step=6400, total_steps=10_000, percent=64.0, eta_seconds=1620, phase="train", epoch=3.2),
        throughput=Throughput(steps_per_second=2.21), restarts=Restarts(total=1),
        checkpoint=CheckpointStatus(step=6300, time=Time.of(now - 44), bytes=3 * GIB, save_seconds=2.4,
                                    steps_at_risk=100),
        gpus=Gpus(count=4, utilization=91.0, memory_used_bytes=201 * GIB, memory_total_bytes=316 * GIB,
                  temperature_c=67, power_w=1610),
        devices={"cuda:0 NVIDIA H100": "0", "cuda:1 NVIDIA H100": "1", "cuda:2 NVIDIA H100": "2",
                 "cuda:3 NVIDIA H100": "3"},
        metrics={"loss": 2.1, "evalLoss": 2.2},
        goodput=Goodput(percent=88.4, seconds={"productive": 4826, "queue": 60, "start": 71, "restore": 38, "save": 122,
                                               "lost": 210, "recover": 41, "stalled": 92}),
        attempts=[
            Attempt(round=1, start_time=Time.of(first), end_time=Time.of(second - 41), reason=Reason.NODE_LOST,
                    start_step=0, end_step=3310, steps_gained=3000,
                    cause=Cause(rank=3, pod="lm-pretrain-1", node="node-b", class_=Reason.NODE_LOST)),
            Attempt(round=2, start_time=Time.of(second), start_step=3000, end_step=6400),
        ],
    )  # fmt: skip
    spec = {"script": "pretrain.py", "nodes": 2, "procsPerNode": 2, "metrics": {"interval": "5s"}}
    folder = run(home, "lm-pretrain", spec, status)
    take_lock(folder.lock_file)
    rows = [
        {"step": step, "loss": 2 + 6 * math.exp(-step / 1400) + noise.gauss(0, 0.08) + (2.4 if step == 4200 else 0),
         "gradNorm": 0.6 + 2 * math.exp(-step / 900) + abs(noise.gauss(0, 0.1)) if step != 2500 else "NaN",
         "lr": 3e-4 * min(1, step / 500) * (0.55 + 0.45 * math.cos(step / 10_000 * math.pi)),
         **({"evalLoss": 2.1 + 6 * math.exp(-step / 1400)} if step % 200 == 0 else {})}
        for step in [*range(0, 3310, 5), *range(3000, 6401, 5)]
    ]  # fmt: skip
    _rows(folder, rows)
    for rank in range(2):
        log(folder, rank, [f"step {row['step']}  loss {row['loss']:.4f}" for row in rows[-60:]])
    append_events(folder, [
        Event(time=_iso(first), type="Normal", reason="RoundStarted", message="Round 1 started with 4 ranks."),
        Event(time=_iso(second - 41), type="Warning", reason="NodeLost", message="Node node-b was lost in round 1."),
        Event(time=_iso(second), type="Normal", reason="RoundStarted", message="Round 2 resumed from step 3000."),
    ])  # fmt: skip


def _failed(home: Path, now: float) -> None:
    cause = Cause(rank=1, pod="vit-finetune-0", node="node-a", exit_code=1, class_=Reason.GPU_OUT_OF_MEMORY,
                  exception=TRACEBACK.splitlines()[-1], lines=TRACEBACK.splitlines())  # fmt: skip
    status = TrainingJobStatus(
        state=State.FAILED, reason=Reason.GPU_OUT_OF_MEMORY, start_time=Time.of(now - 9000),
        completion_time=Time.of(now - 8100), progress=Progress(step=412, total_steps=5000, percent=8.2),
        message="Rank 1 ran out of GPU memory at step 412. Lower trainer.params.batch or add GPUs.",
        attempts=[Attempt(round=1, start_time=Time.of(now - 8990), end_time=Time.of(now - 8100), end_step=412,
                          reason=Reason.GPU_OUT_OF_MEMORY, cause=cause)],
        goodput=Goodput(percent=0, seconds={"lost": 830, "start": 60, "queue": 10}),
    )  # fmt: skip
    folder = run(home, "vit-finetune", {"script": "train.py", "procsPerNode": 2}, status)
    _rows(folder, [{"step": step, "loss": 7 * math.exp(-step / 300)} for step in range(0, 412, 4)])
    log(folder, 0, [f"step {step}" for step in range(400, 412)])
    log(folder, 1, TRACEBACK.splitlines())


def _pair(home: Path, now: float, noise: random.Random) -> None:
    for name, lr, floor in (("cvrp-base", 1e-4, 8.1), ("cvrp-wide", 3e-4, 7.83)):
        start = now - (86_400 if name == "cvrp-base" else 80_000)
        status = TrainingJobStatus(
            state=State.SUCCEEDED, start_time=Time.of(start), completion_time=Time.of(start + 4000),
            progress=Progress(step=2000, total_steps=2000, percent=100.0), metrics={"cost": floor},
            throughput=Throughput(steps_per_second=0.5), goodput=Goodput(percent=96.0, seconds={"productive": 3840}),
            attempts=[Attempt(round=1, start_time=Time.of(start), end_time=Time.of(start + 4000), end_step=2000)],
        )  # fmt: skip
        params = {"lr": lr, "embedding": 128 if name == "cvrp-base" else 256}
        folder = run(home, name, {"trainer": {"name": "cvrp", "params": params}}, status)
        costs = {step: floor + 3 * math.exp(-step * lr * 25) for step in range(0, 2000, 4)}
        rows = [{"step": step, "cost": cost + noise.gauss(0, 0.03), "evalCost": cost} for step, cost in costs.items()]
        _rows(folder, rows)
        web = folder.checkpoints / "export" / "web"
        web.mkdir(parents=True)
        for file, text in (("index.html", PAGE), ("play.js", PLAY), ("weights.json", '{"layers": 3}')):
            (web / file).write_text(text)
        (folder.checkpoints / "final").mkdir()
        (folder.checkpoints / "final" / "curve.svg").write_text(_picture())
        (folder.checkpoints / "final" / "evaluation.json").write_text('{"cost": 8.1}\n')


def _picture() -> str:
    points = " ".join(f"{x},{100 - 80 * math.exp(-x / 60):.1f}" for x in range(0, 200, 4))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 110"><polyline fill="none" stroke="#2b6cb0" '
        f'stroke-width="2" points="{points}"/></svg>'
    )


def sweep(home: Path, now: float, *, trials: int = 22, choices: tuple = (32, 64, 128), name: str = "tune") -> None:
    """Write a sweep with its trials."""
    made = create_sweep(read_sweep({
        "metadata": {"name": name},
        "spec": {
            "objective": {"metric": "evalReturn", "goal": "maximize"},
            "algorithm": {"name": "tpe", "seed": 3}, "earlyStopping": {"name": "asha"},
            "parameters": [
                {"path": "trainer.params.lr", "float": {"min": 0.0003, "max": 0.03, "log": True}},
                {"path": "trainer.params.epochs", "int": {"min": 2, "max": 8}},
                {"path": "trainer.params.width", "choice": list(choices)},
            ],
            "maxTrials": 24,
            "jobTemplate": {"spec": {"trainer": {"name": "vecrl", "params": {"environment": "cartpole"}}}},
        },
    }), home)  # fmt: skip
    take_lock(home / "sweeps" / name / "lock")
    noise = random.Random(5)
    for number in range(trials):
        lr, epochs, width = 0.0003 * 100 ** noise.random(), noise.randint(2, 8), noise.choice(choices)
        value = 480 - 90 * abs(math.log10(lr / 0.004)) * 3 - 6 * abs(epochs - 5) + noise.gauss(0, 9)
        record = TrialRecord(
            number=number, units=[Unit(number=number)],
            parameters={"trainer.params.lr": lr, "trainer.params.epochs": epochs, "trainer.params.width": width},
        )  # fmt: skip
        job = create_trial(made, record)
        state = State.FAILED if number == 9 else State.RUNNING if number >= trials - 2 else State.SUCCEEDED
        start = now - 4000 + 170 * number
        if state is State.RUNNING:
            take_lock(run_folder(job.metadata.name, home).lock_file)
        cause = Cause(rank=0, class_=Reason.WORKER_FAILED, exception="RuntimeError: the environment diverged")
        written(run_folder(job.metadata.name, home), job, TrainingJobStatus(
            state=state, start_time=Time.of(start), metrics={"evalReturn": value},
            completion_time=Time.of(start + 160) if state.terminal else None,
            progress=Progress(step=40, total_steps=100, percent=100.0 if state is State.SUCCEEDED else 40.0),
            attempts=[Attempt(round=1, cause=cause)] if state is State.FAILED else [],
        ))  # fmt: skip


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
