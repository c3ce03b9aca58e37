"""CartPole end to end, environment and learning: vecrl beside CleanRL's PPO and Stable-Baselines3's, on one core.

    python benchmarks/trainers/vecrl.py [TURNS] [--device cuda]
    python benchmarks/trainers/vecrl.py [TURNS] --continuous Pendulum-v1 [--steps 200000]

All train two networks of 2 x 64 units for 4 epochs of 4 minibatches a rollout. The peers run with their own default
number of environments and with as many as vecrl; they live in `build/peers/vecrl`, which is made the first time, on the
same torch. Programs take turns, so that a busy machine is busy for all; figures are medians over turns, without
start-up. Each is one thread, and its processor time does not count what its neighbours do: the ratio is of steps a
second of processor time, on a GPU of wall time.

`--continuous` compares with CleanRL's ppo_continuous_action.py on a gymnasium environment, with the same settings and a
seed for each turn: speed, and the mean return of the episodes in the last tenth of training.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers" / "vecrl"
PACKAGES = ("stable-baselines3==2.7.1", "gymnasium==1.2.3", "cloudpickle", "farama-notifications")
# What Stable-Baselines3 imports to plot and to log; nothing that torch or numpy would come with a second time.
PLOTTING = (
    *("matplotlib", "pandas", "contourpy", "cycler", "fonttools", "kiwisolver", "packaging", "pillow", "pyparsing"),
    *("python-dateutil", "pytz", "six"),
)
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
OURS = """
import json, sys, time
import torch
from torchyard_trainers.core.command import main
from torchyard_trainers.vecrl.task import VecRL
marks = []
after_step = VecRL.after_step
def marked(work, session, step, means):
    found = after_step(work, session, step, means)
    if found:
        marks.append((step, time.perf_counter(), time.process_time()))
    return found
VecRL.after_step = marked
code = main(["--config", sys.argv[1], "--checkpoint-dir", sys.argv[2]])
assert code == 0, code
(first, began, worked), (last, ended, done) = marks[0], marks[-1]
settings = json.load(open(sys.argv[1]))["trainer"]["params"]
each = settings.get("epochs", 4) * settings.get("minibatches", 4)
steps = (last - first) // each * settings["environments"] * settings["horizon"]
facts = {"steps": steps, "seconds": ended - began, "cpuSeconds": done - worked}
lines = map(json.loads, open(sys.argv[2] + "/metrics.jsonl"))
late = [row for row in lines if row["step"] > 0.9 * last and row.get("rolloutEpisodes")]
if episodes := sum(row["rolloutEpisodes"] for row in late):
    facts["return"] = sum(row["rolloutEpisodes"] * row["episodeReturn"] for row in late) / episodes
print(json.dumps(facts))
"""
# Those of preset tiny for Pendulum-v1 and of CleanRL's file: environments, horizon, minibatches, gamma, rate.
SAME = {"Pendulum-v1": (16, 128, 8, 0.9, 1e-3)}
CLEANRL = (1, 2048, 32, 0.99, 3e-4)


def install_peers() -> None:
    if (PEERS / "stable_baselines3").is_dir() and (PEERS / "six.py").exists():
        return
    command = ["uv", "pip", "install", "--system-certs", "--quiet", "--python", sys.executable, "--no-deps"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([*command, "--target", PEERS, *PACKAGES, *PLOTTING], check=True, env=os.environ | {"PATH": path})


def ours(device: str, copies: int, horizon: int, steps: int, *, compiled: bool = False) -> dict[str, float]:
    given = {"environment": "cartpole", "environments": copies, "horizon": horizon, "environmentSteps": steps}
    return trained(given | {"logEvery": 10_000}, device, compiled=compiled)


def trained(params: dict[str, object], device: str, *, compiled: bool = False) -> dict[str, float]:
    config = {
        "trainer": {"name": "vecrl", "params": params | {"evalEvery": 10_000}},
        "device": device,
        "parallelism": {"compile": compiled},
        "logging": {"tensorboard": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        return last_line([sys.executable, "-c", OURS, str(file), f"{folder}/run"], ONE_THREAD)


def peer(device: str, name: str, copies: int, horizon: int, steps: int) -> dict[str, float]:
    script = Path(__file__).with_name("vecrl_peers.py")
    command = [sys.executable, str(script), name, str(copies), str(horizon), str(steps), device]
    return last_line(command, ONE_THREAD | {"PYTHONPATH": str(PEERS)})


def continuous(name: str, steps: int, turns: int) -> None:
    """Train both in turns, one seed each; print a table of medians."""
    copies, horizon, parts, gamma, rate = SAME.get(name, CLEANRL)
    more = {"environment": name, "environments": copies, "horizon": horizon, "environmentSteps": steps, "gamma": gamma}
    more |= {"minibatches": parts, "epochs": 10, "lr": rate, "valueClip": 0.2, "logEvery": 10 * parts}
    script = Path(__file__).with_name("vecrl_peers.py")
    command = [sys.executable, str(script), "continuous", str(copies), str(horizon), str(steps), "cpu", name]
    command += [str(parts), str(gamma), str(rate)]
    rows: dict[str, list[dict[str, float]]] = {"vecrl": [], "CleanRL's PPO": []}
    for seed in range(1, turns + 1):
        rows["vecrl"].append(trained(more | {"preset": "continuous", "seed": seed}, "cpu"))
        rows["CleanRL's PPO"].append(last_line([*command, str(seed)], ONE_THREAD))
    print(f"{name}, {copies} environments, {steps:,} steps, {turns} seeds")
    print("| | steps/s of processor time | return, by seed | mean return |\n|---|---|---|---|")
    for side, found in rows.items():
        rate = statistics.median(each["steps"] / each["cpuSeconds"] for each in found)
        returns = [each["return"] for each in found]
        by_seed = ", ".join(f"{each:.0f}" for each in returns)
        print(f"| {side} | {rate:,.0f} | {by_seed} | {statistics.mean(returns):.0f} |")


def last_line(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def turns_of(device: str) -> dict[str, Callable[[], dict[str, float]]]:
    """Yield each row's name and one turn of it; steps are chosen for several seconds each."""
    return {
        "vecrl, 128 environments": lambda: ours(device, 128, 64, 400_000),
        "vecrl, 128 environments, compiled": lambda: ours(device, 128, 64, 400_000, compiled=True),
        "vecrl, 4096 environments": lambda: ours(device, 4096, 32, 1_600_000),
        "CleanRL's PPO, 4 environments (its default)": lambda: peer(device, "cleanrl", 4, 128, 12_288),
        "CleanRL's PPO, 128 environments": lambda: peer(device, "cleanrl", 128, 64, 32_768),
        "Stable-Baselines3, 8 environments (RL Zoo's)": lambda: peer(device, "sb3", 8, 32, 12_288),
        "Stable-Baselines3, 128 environments": lambda: peer(device, "sb3", 128, 64, 32_768),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turns", type=int, nargs="?", default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--continuous", metavar="ID", help="an environment of gymnasium with continuous actions")
    parser.add_argument("--steps", type=int, default=200_000, help="of --continuous")
    options = parser.parse_args()
    if options.continuous:
        continuous(options.continuous, options.steps, options.turns)
        return
    install_peers()
    rows = turns_of(options.device)
    clocks = ("cpuSeconds", "seconds")
    rates: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in clocks} for name in rows}
    for _ in range(options.turns):
        for name, turn in rows.items():
            found = turn()
            for clock in clocks:
                rates[name][clock].append(found["steps"] / found[clock])
            print(f"{name}: {found['steps'] / found['cpuSeconds']:,.0f}", file=sys.stderr)
    medians = {name: {clock: statistics.median(rates[name][clock]) for clock in clocks} for name in rows}
    decides = "seconds" if options.device == "cuda" else "cpuSeconds"
    first = medians[next(iter(rows))][decides]
    print("| | steps/s of processor time | steps/s of wall time | vecrl, 128 / this |")
    print("|---|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median['cpuSeconds']:,.0f} | {median['seconds']:,.0f} | {first / median[decides]:.1f} |")


if __name__ == "__main__":
    main()
