"""How soon CartPole is solved with the parameters that a sweep finds, and with the defaults.

    python benchmarks/sweep_cartpole.py [TRIALS] [SEEDS]
    python benchmarks/sweep_cartpole.py --compare BEST.yaml [SEEDS]

Runs `examples/sweep-cartpole.yaml`, then the job of its best trial and the defaults with seeds that the sweep has not
seen, in turns; the second form takes the job that `torchyard sweep best cartpole -o yaml` printed. A run ends when 20
greedy episodes have a mean return of 475, which is looked at after each 8,192 environment steps. What is compared is
training from its first rollout to that moment: environment steps, processor time and wall time, without evaluations.
Starting is the same for both, and an evaluation takes longer than all of the training between two of them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from spent import spent

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "torchyard.cli.main"]
SOLVED = 475.0
EVERY = 8192
"""Environment steps between two evaluations; a rollout has as many or a part of it."""
DEFAULTS = {"environmentSteps": 500_000, "horizon": 64, "environments": 128}
"""Of `preset: tiny`, see docs/reference/vecrl.md."""
FIGURES = ("environmentSteps", "processor", "wall", "evaluations")


def main(trials: int, seeds: int) -> None:
    """Print what the sweep took, and how soon each job is solved."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHYARD_HOME"] = str(Path(folder) / "home")
        file = ROOT / "examples/sweep-cartpole.yaml"
        wall, processor = spent([*COMMAND, "run", str(file), "--set", f"maxTrials={trials}"])
        found = json.loads(output([*COMMAND, "sweep", "show", "cartpole", "-o", "json"]))["trials"]
        outcomes = [trial["outcome"] for trial in found]
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in ("complete", "stopped", "failed"))
        print(f"sweep: {len(found)} trials ({counts}), {wall:.0f} s, processor {processor:.0f} s", flush=True)
        best = yaml.safe_load(output([*COMMAND, "sweep", "best", "cartpole", "-o", "yaml"]))["spec"]
    print(f"best: {json.dumps(best['trainer']['params'])}", flush=True)
    compare(best["trainer"]["params"], seeds)


def compare(best: dict[str, Any], seeds: int) -> None:
    """Train with the best parameters and with the defaults, and print what each took."""
    taken: dict[str, list[dict[str, float]]] = {"best": [], "defaults": []}
    for seed in range(11, 11 + seeds):
        for name, params in (("best", best), ("defaults", {"environment": "cartpole"})):
            found = json.loads(output([sys.executable, __file__, "--until-solved", json.dumps(given(params, seed))]))
            print(f"{name}, seed {seed}: {found}", flush=True)
            if found["solved"]:
                taken[name].append(found)
    if not all(taken.values()):
        raise SystemExit("never solved")
    for figure in FIGURES:
        one, other = (statistics.median(each[figure] for each in taken[name]) for name in ("best", "defaults"))
        print(f"{figure}: best {one:,.2f}, defaults {other:,.2f}, ratio {one / other:.2f}")


def given(params: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return parameters with a seed, evaluated at equal distances, with as many steps as the defaults have."""
    full = DEFAULTS | params
    every = max(1, EVERY // (full["horizon"] * full["environments"]))
    steps = DEFAULTS["environmentSteps"]
    return params | {"seed": seed, "evalEvery": every, "evalEpisodes": 20, "environmentSteps": steps}


def train_until_solved(params: dict[str, Any]) -> None:
    """Train in this process until the job is solved, and print what that took."""
    import torch

    from torchyard_trainers.core.command import main as train
    from torchyard_trainers.vecrl.task import VecRL

    torch.set_num_threads(1)
    prepare, after_step, evaluate = VecRL.prepare, VecRL.after_step, VecRL.evaluate
    began: list[tuple[float, float]] = []
    apart = [0.0, 0.0]

    def prepared(work: VecRL, *arguments: Any) -> dict[str, float]:
        if not began:
            began.append((time.process_time(), time.perf_counter()))
            apart[:] = 0.0, 0.0
        return prepare(work, *arguments)

    def evaluated(work: VecRL, *arguments: Any) -> dict[str, float]:
        before = time.process_time(), time.perf_counter()
        found = evaluate(work, *arguments)
        apart[0] += time.process_time() - before[0]
        apart[1] += time.perf_counter() - before[1]
        return found

    def stepped(work: VecRL, session: Any, step: int, means: Any) -> dict[str, float]:
        found = after_step(work, session, step, means)
        solved = found.get("evalReturn", 0.0) >= SOLVED
        if solved or step == work.total_steps:
            settings = work.settings
            (processor, wall) = began[0]
            line = {
                "solved": solved,
                "environmentSteps": step // settings.steps_per_rollout * settings.horizon * settings.environments,
                "processor": round(time.process_time() - processor - apart[0], 2),
                "wall": round(time.perf_counter() - wall - apart[1], 2),
                "evaluations": round(apart[0], 2),
            }
            os.write(output_of_this, json.dumps(line).encode())
            os._exit(0)
        return found

    VecRL.prepare, VecRL.after_step, VecRL.evaluate = prepared, stepped, evaluated  # type: ignore[method-assign]
    output_of_this = os.dup(1)
    os.dup2(2, 1)
    trainer = {"name": "vecrl", "params": params}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({"trainer": trainer, "device": "cpu", "logging": {"tensorboard": False}}))
        raise SystemExit(train(["--config", str(file), "--checkpoint-dir", f"{folder}/run"]))


def output(argv: list[str]) -> str:
    """Return what a command prints."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = sys.argv[1:]
    if words[:1] == ["--until-solved"]:
        train_until_solved(json.loads(words[1]))
    elif words[:1] == ["--compare"]:
        job = yaml.safe_load(Path(words[1]).read_text())
        compare(job["spec"]["trainer"]["params"], int(words[2]) if len(words) > 2 else 3)
    else:
        main(int(words[0]) if words else 50, int(words[1]) if len(words) > 1 else 3)
