"""CVRP tours of our attention model and of rl4co's after the same processor time, both judged by rl4co.

    python benchmarks/trainers/cvrp_quality.py [--customers 20] [--seconds 60] [--instances 200] [--batch 64]
                                               [--routes 16] [--peer PYTHON]

Each side trains its attention model for as many seconds of a processor, one thread each, in turns, as `cvrp.py` says.
Then rl4co makes the instances. Its own policy is measured by its own evaluation (`rl4co.tasks.eval.evaluate_policy`:
greedy, and the best of eight symmetric pictures); our tours of the same instances are checked and measured by its
environment (`check_solution_validity`, `get_reward`). The lengths that we claim must be the ones that it finds.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cvrp import CAPACITY, Sizes, peer_python, trained_of_ours, trained_of_rl4co
from sides import Side, say

METHODS = {"greedy": "greedy", "augmented": "augment_dihedral_8"}  # ours, rl4co's
TURN = 10.0  # seconds of a processor


def trained_for(seconds: float, train: Callable[[], None]) -> dict[str, float]:
    """Train for so many seconds of a processor; return steps and seconds."""
    began, steps = time.process_time(), 0
    while time.process_time() - began < seconds:
        train()
        steps += 1
    return {"steps": steps, "seconds": time.process_time() - began}


def requests(train: Callable[[], None]) -> Iterator[list[str]]:
    """Yield the words of each line of standard input but `train SECONDS`, which is answered here."""
    say({"ready": True})
    for line in sys.stdin:
        words = line.split()
        if words[0] == "train":
            say(trained_for(float(words[1]), train))
        else:
            yield words


def serve_ours(given: Sizes) -> None:
    """Answer lines: `train SECONDS`, and `solve FILE FILE`, which writes tours of the instances of the first file."""
    import torch

    from torchyard_trainers.cvrp import decoding
    from torchyard_trainers.cvrp.instances import Instances

    torch.set_num_threads(1)
    _, model, _, train = trained_of_ours(given)
    for words in requests(train):
        shown = torch.load(words[1], weights_only=True)
        demand = (shown["demand"] * CAPACITY[given.customers]).round()
        depot = torch.zeros(len(demand), 1)
        instances = Instances(
            torch.cat([shown["depot"][:, None], shown["locs"]], 1),
            torch.cat([depot, demand], 1),
            torch.tensor(float(CAPACITY[given.customers])),
        )
        tours, answer = {}, {}
        for how in METHODS:
            began = time.process_time()
            with torch.no_grad():
                found = decoding.seek(model, instances, how, 1, torch.arange(len(demand)))
            answer[f"{how}Seconds"] = time.process_time() - began
            tours[how], answer[how] = found.moves[:, 0], float(found.cost.mean())
        torch.save(tours, words[2])
        say(answer)


def serve_rl4co(given: Sizes) -> None:
    """Answer lines: `train SECONDS`, `make COUNT FILE`, `evaluate FILE`, and `judge FILE FILE` of tours."""
    import torch
    from rl4co.tasks.eval import evaluate_policy
    from tensordict import TensorDict

    torch.set_num_threads(1)
    env, policy, _, train = trained_of_rl4co(given)
    for words in requests(train):
        if words[0] == "make":
            torch.manual_seed(4321)
            torch.save(dict(env.generator([int(words[1])])), words[2])
            say({"made": int(words[1])})
            continue
        shown = torch.load(words[1], weights_only=True)
        instances = TensorDict(shown, batch_size=[len(shown["locs"])])
        answer: dict[str, float] = {}
        if words[0] == "evaluate":
            policy.eval()
            for how, method in METHODS.items():
                began = time.process_time()
                given_batch = {"auto_batch_size": False, "batch_size": len(instances)}
                found = evaluate_policy(env, policy, env.dataset_cls(instances.clone()), method=method, **given_batch)
                answer |= {how: -float(found["avg_reward"]), f"{how}Seconds": time.process_time() - began}
            policy.train()
        else:
            for how, moves in torch.load(words[2], weights_only=True).items():
                state = env.reset(instances.clone())
                env.check_solution_validity(state, moves)
                answer[how] = -float(env.get_reward(state, moves).mean())
        say(answer)


def main() -> None:
    """Train both, and print what each reaches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--customers", type=int, default=20, choices=CAPACITY)
    parser.add_argument("--seconds", type=float, default=60, help="of a processor that each side trains for")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--routes", type=int, default=16, help="of each instance; from 2 their mean is the baseline")
    parser.add_argument("--peer", type=Path, help="python of an environment that has rl4co")
    parser.add_argument("--serve", choices=("ours", "rl4co"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = Sizes(options.batch, options.customers, options.routes, "cpu", "fp32")
    if options.serve:
        {"ours": serve_ours, "rl4co": serve_rl4co}[options.serve](sizes)
        return
    words = [text for name in ("batch", "customers", "routes") for text in (f"--{name}", str(getattr(sizes, name)))]
    sides = {
        name: Side([python, __file__, *words, "--serve", name])
        for name, python in (("ours", sys.executable), ("rl4co", peer_python(options.peer)))
    }
    steps = dict.fromkeys(sides, 0.0)
    spent = dict.fromkeys(sides, 0.0)
    while min(spent.values()) < options.seconds:  # in turns, so that a busy machine slows both
        for name, side in sides.items():
            done = side.ask(f"train {min(TURN, options.seconds)}")
            steps[name] += done["steps"]
            spent[name] += done["seconds"]
    with tempfile.TemporaryDirectory() as folder:
        instances, tours = f"{folder}/instances", f"{folder}/tours"
        sides["rl4co"].ask(f"make {options.instances} {instances}")
        mine = sides["ours"].ask(f"solve {instances} {tours}")
        theirs = sides["rl4co"].ask(f"evaluate {instances}")
        judged = sides["rl4co"].ask(f"judge {instances} {tours}")
    for side in sides.values():
        side.close()
    print(f"CVRP{sizes.customers}, {options.instances} instances, {options.batch} x {options.routes} routes a step")
    print("| | trained on | greedy | augmented | greedy, s | augmented, s |\n|---|---|---|---|---|---|")
    for name, found, lengths in (("ours", mine, judged), ("rl4co", theirs, theirs)):
        count = f"{steps[name] * options.batch:,.0f} instances in {spent[name]:.0f} s"
        row = [name, count, *(f"{lengths[how]:.4f}" for how in METHODS)]
        row += [f"{found[f'{how}Seconds']:.2f}" for how in METHODS]
        print(f"| {' | '.join(row)} |")
    apart = max(abs(mine[how] - judged[how]) for how in METHODS)
    print(json.dumps({"claimed": {how: mine[how] for how in METHODS}, "largestDifference": apart}))
    if apart > 1e-3:
        raise SystemExit("rl4co measures other lengths than we claim")


if __name__ == "__main__":
    main()
