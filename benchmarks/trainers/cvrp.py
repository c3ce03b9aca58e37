"""CVRP instances a second: our attention model against rl4co's, turn by turn in one run, same sizes, same work.

    python benchmarks/trainers/cvrp.py [--rounds 5] [--steps 3] [--batch 512] [--customers 20] [--routes 1]
                                       [--device cuda] [--precision bf16] [--compile]

Each has one thread, model `am` (128 wide, 8 heads, 3 layers, feed-forward 512) and REINFORCE with a greedy rollout
baseline: make instances, sample one route each, roll the baseline out, go backward, clip, Adam. With `--routes 16`,
so many routes of each instance are sampled, and their mean is the baseline. rl4co and its torch are installed into an
environment of their own (build/benchmarks/rl4co, the first time) and never meet ours.

Seconds are those of the processor, so that other programs on the machine count less; wall time is beside them, and
is what counts on a GPU.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sides import Side, say

ROOT = Path(__file__).parents[2]
PEER = ROOT / "build" / "benchmarks" / "rl4co"
REQUIREMENTS = ("rl4co==0.7.0", "torch==2.8.0")
CAPACITY = {10: 20, 20: 30, 50: 40, 100: 50}
WORKS = ("train", "greedy")


class Sizes(NamedTuple):
    """What both sides do."""

    batch: int
    customers: int
    routes: int
    device: str
    precision: str


def ours(given: Sizes, *, compiled: bool) -> dict[str, Callable[[], Any]]:
    """Our work, as the training loop does it."""
    import torch

    from torchyard_trainers.cvrp.evaluation import make

    work, model, session, train = trained_of_ours(given, compiled=compiled)

    @torch.no_grad()
    def greedy() -> None:
        with session.precision.forward():
            model(make(work.settings, "benchmark", torch.arange(given.batch, device=given.device)))

    return {"train": train, "greedy": greedy}


def trained_of_ours(given: Sizes, *, compiled: bool = False) -> tuple[Any, Any, Any, Callable[[], None]]:
    """Return workload, policy and session of ours, and what makes an optimizer step."""
    import torch

    from torchyard_trainers.core.config import Parallelism
    from torchyard_trainers.core.parallel import Parallel, compile_blocks
    from torchyard_trainers.core.precision import Precision
    from torchyard_trainers.core.report import Reporter
    from torchyard_trainers.core.step import optimize
    from torchyard_trainers.core.workload import Session
    from torchyard_trainers.core.world import World
    from torchyard_trainers.cvrp import params
    from torchyard_trainers.cvrp.task import Cvrp

    batch, customers, routes, device, precision = given
    wanted = {"preset": "cvrp20", "model": "am", "batch": batch, "customers": customers, "samples": routes}
    wanted |= {"capacity": CAPACITY[customers], "baseline": "rollout" if routes == 1 else "shared"}
    wanted |= {"baselineInstances": 64, "baselineEvery": 1} if routes == 1 else {}
    work = Cvrp(params.resolve_params(wanted, Parallelism(compile=compiled)))
    world = World(0, 1, 0, torch.device(device), grouped=False)
    model = work.build().to(device)
    if compiled:
        compile_blocks(work.blocks(model))
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(
        Parallel("single", model, model), Precision(precision, world.device, sharded=False), world, reporter, None
    )
    optimizer = work.optimizer(model)
    work.baseline.begin(session)
    work.baseline.after_step(
        session, 1, {"trainCost": 10.0, "advantage": 0.0}
    )  # from here on the frozen copy is rolled out, not the moving average
    step = iter(range(1, 10**9))

    def train() -> None:
        optimize(work, session, optimizer, next(step), {})

    return work, model, session, train


def rl4co(given: Sizes) -> dict[str, Callable[[], Any]]:
    """The same work of rl4co: its environment, its attention model policy, its defaults; bf16 as Lightning mixes it."""
    import torch

    env, _, frozen, train = trained_of_rl4co(given)

    @torch.no_grad()
    def greedy() -> None:
        with torch.autocast(torch.device(given.device).type, torch.bfloat16, enabled=given.precision == "bf16"):
            frozen(env.reset(batch_size=[given.batch]), env, phase="test", decode_type="greedy")

    return {"train": train, "greedy": greedy}


def trained_of_rl4co(given: Sizes) -> tuple[Any, Any, Any, Callable[[], None]]:
    """Return environment, policy and frozen copy of rl4co, and what makes an optimizer step."""
    import copy

    import torch
    from rl4co.envs import CVRPEnv
    from rl4co.models import AttentionModelPolicy
    from rl4co.utils.ops import unbatchify

    batch, customers, routes, device, precision = given
    env = CVRPEnv(generator_params={"num_loc": customers}, device=device)
    policy = AttentionModelPolicy(env_name="cvrp", embed_dim=128, num_heads=8, num_encoder_layers=3).to(device)
    frozen = copy.deepcopy(policy).requires_grad_(requires_grad=False).eval()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)

    def mixed() -> torch.autocast:
        return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16")

    def rolled_out() -> torch.Tensor:
        instances = env.generator(batch_size=[batch]).to(device)
        out = policy(env.reset(instances.clone()), env, phase="train")
        with torch.no_grad():
            baseline = frozen(env.reset(instances.clone()), env, phase="test", decode_type="greedy")["reward"]
        return -((out["reward"] - baseline) * out["log_likelihood"]).mean()

    def shared() -> torch.Tensor:
        out = policy(env.reset(batch_size=[batch]), env, phase="train", num_samples=routes)
        rewards, likelihoods = (unbatchify(out[name], routes) for name in ("reward", "log_likelihood"))
        return -((rewards - rewards.mean(1, keepdim=True)) * likelihoods).mean()

    def train() -> None:
        with mixed():
            loss = rolled_out() if routes == 1 else shared()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

    return env, policy, frozen, train


def serve(side: str, given: Sizes, *, compiled: bool) -> None:
    """Do a piece of work for each line that comes in and answer with its seconds."""
    import torch

    torch.set_num_threads(1)
    make = functools.partial(ours, compiled=compiled) if side == "ours" else rl4co
    works = make(given)
    for work in works.values():
        work()
    finish = torch.cuda.synchronize if given.device == "cuda" else lambda: None
    finish()
    say({"torch": torch.__version__})
    for line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        works[line.strip()]()
        finish()
        say({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall})


def peer_python(given: Path | None) -> Path:
    """Return the peer's interpreter; install the peer if it is not there."""
    if given is not None:
        return given
    python = PEER / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "--python", sys.executable, PEER], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *REQUIREMENTS], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of each side in a round")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--customers", type=int, default=20, choices=CAPACITY)
    parser.add_argument("--routes", type=int, default=1, help="of each instance; from 2 their mean is the baseline")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="ours only; rl4co has no such option")
    parser.add_argument("--peer", type=Path, help="python of an environment that has rl4co")
    parser.add_argument("--serve", choices=("ours", "rl4co"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = Sizes(options.batch, options.customers, options.routes, options.device, options.precision)
    if options.serve:
        serve(options.serve, sizes, compiled=options.compile)
        return
    words = [text for name, value in sizes._asdict().items() for text in (f"--{name}", str(value))]
    words += ["--compile"] * options.compile
    sides = {
        name: Side([python, __file__, *words, "--serve", name])
        for name, python in (("ours", sys.executable), ("rl4co", peer_python(options.peer)))
    }
    took: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            for work in WORKS:
                for _ in range(options.steps):
                    for clock, seconds in side.ask(work).items():
                        took.setdefault((name, work, clock), []).append(seconds)
    for name, side in sides.items():
        print(f"{name}: torch {side.ready['torch']}")
        side.close()
    count = options.rounds * options.steps
    print(
        f"CVRP{options.customers}, batch {options.batch} x {options.routes}, {options.precision} on {options.device}: "
        f"instances a second, {count} steps of each\n"
    )
    print("| | ours | rl4co | ratio | ratio by round | ours, wall | rl4co, wall |\n|---|---|---|---|---|---|---|")
    for work in WORKS:
        mine, peers = (options.batch / statistics.median(took[side, work, "cpu"]) for side in sides)
        walls = [options.batch / statistics.median(took[side, work, "wall"]) for side in sides]
        ratios = by_round(took, work, options.steps)
        print(
            f"| {work} | {mine:.0f} | {peers:.0f} | {mine / peers:.2f} | {min(ratios):.2f} to {max(ratios):.2f} "
            f"| {walls[0]:.0f} | {walls[1]:.0f} |"
        )


def by_round(took: dict[tuple[str, str, str], list[float]], work: str, steps: int) -> list[float]:
    """Return rl4co's median time over ours for each round: what the machine does to both at once cancels out."""
    mine, peers = took["ours", work, "cpu"], took["rl4co", work, "cpu"]
    parts = [slice(at, at + steps) for at in range(0, len(mine), steps)]
    return [statistics.median(peers[part]) / statistics.median(mine[part]) for part in parts]


if __name__ == "__main__":
    main()
