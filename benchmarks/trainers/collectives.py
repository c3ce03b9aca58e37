"""Small collectives between processes on a CPU: the process groups of the trainers beside those of plain PyTorch.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/trainers/collectives.py [--rounds 5] [--count 1000]

Both kinds take turns in the same processes. They differ where the ranks have no core to spare: the threads of gloo then
take the processors from each other. Prints the time, and the processor time of all ranks, of one all-reduce.
"""

import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch
from torch import distributed

from torchyard_trainers.core.group_threads import without_wakeup_preemption

SIDES: dict[str, Callable[[], AbstractContextManager[None]]] = {"plain": nullcontext, "ours": without_wakeup_preemption}


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=1000, help="all-reduces in a round")
    parser.add_argument("--length", type=int, default=1000, help="values of each, in fp32")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side, context in SIDES.items():
            with context():
                group = distributed.new_group(backend="gloo")
            found[side].append(measured(group, options.count, options.length))
            distributed.destroy_process_group(group)
    if distributed.get_rank() == 0:
        for what, column in (("time", 0), ("processor time", 1)):
            plain, ours = ([each[column] for each in found[side]] for side in ("plain", "ours"))
            ratios = [a / b for a, b in zip(ours, plain, strict=True)]
            print(
                f"{what} of an all-reduce: {1e3 * median(ours):.2f} ms, plain {1e3 * median(plain):.2f} ms, "
                f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    distributed.destroy_process_group()


def measured(group: distributed.ProcessGroup, count: int, length: int) -> tuple[float, float]:
    """Return the seconds, and the processor seconds of all ranks, of one all-reduce."""
    values = torch.zeros(length)
    for _ in range(10):
        distributed.all_reduce(values, group=group)
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        distributed.all_reduce(values, group=group)
    taken = torch.tensor([time.perf_counter() - begun, time.process_time() - used], dtype=torch.float64)
    distributed.all_reduce(taken)
    return taken[0].item() / distributed.get_world_size() / count, taken[1].item() / count


if __name__ == "__main__":
    main()
