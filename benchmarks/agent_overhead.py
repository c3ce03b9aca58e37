"""What the agent costs a training step: median step time under the agent and under plain torchrun, and the agent's CPU.

    python benchmarks/agent_overhead.py [SECONDS] [TURNS]

The two take turns, so that a busy machine slows both. The script is unmodified PyTorch; under the agent its steps are
counted by the hook and its output is followed. All that the agent does inside a worker is that hook, so steps with and
without it also take turns within one process, where a noisy machine spoils the comparison least.

glibc is told to keep freed memory on both sides: else a step of either may meet none or a thousand page faults, as the
heap happens to lie, which is half of a step and has nothing to do with the agent.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from restart import Intake, agent_process, run

STEADY_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
PROGRAM = """
import json, os, time, torch
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
data, steps, end = torch.randn(64, 512), [], time.monotonic() + float(os.environ["SECONDS"])
installed, turns = dict(hooks), {True: [], False: []}
while time.monotonic() < end:
    counted = len(steps) % 2 == 0
    hooks.clear()
    hooks.update(installed if counted else {})
    start, used = time.perf_counter(), time.thread_time()
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    steps.append(time.perf_counter() - start)
    turns[counted].append(time.thread_time() - used)
    if len(steps) % 10 == 0:
        print("step", len(steps), flush=True)
json.dump([steps[20:], turns[True][20:], turns[False][20:]], open(os.environ["MARK"], "w"))
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    agent, plain, ratios, cpu, wall = [], [], [], 0.0, 0.0
    hooked, bare = [], []
    with tempfile.TemporaryDirectory() as name:
        folder, intake = Path(name), Intake()
        script, mark = folder / "train.py", folder / "mark"
        script.write_text(PROGRAM)
        env = {"MARK": str(mark), "SECONDS": str(seconds)}
        process = agent_process(folder, intake, ["torchrun", script], **STEADY_MEMORY)
        try:
            intake.wait_for(lambda state: state["state"] == "ready")
            for number in range(1, turns + 1):
                before, start = cpu_seconds(process.pid), time.monotonic()
                run(intake, number, env, procs=1)
                intake.wait_for(lambda state, number=number: state.get("exit", {}).get("round") == number)
                cpu, wall = cpu + cpu_seconds(process.pid) - before, wall + time.monotonic() - start
                steps, with_hook, without = json.loads(mark.read_text())
                agent.append(steps)
                hooked.append(statistics.median(with_hook))
                bare.append(statistics.median(without))
                torchrun = [sys.executable, "-m", "torch.distributed.run", script]
                quiet = {**os.environ, "OMP_NUM_THREADS": "1", **STEADY_MEMORY, **env}
                subprocess.run(torchrun, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
                plain.append(json.loads(mark.read_text())[0])
                ratios.append(statistics.median(agent[-1]) / statistics.median(plain[-1]))
            intake.tell(verb="exit", code=0)
            process.wait(20)
        finally:
            process.kill()
            process.wait()
    print(f"{'1 rank, CPU':24} {'median step ms':>15} {'fastest turn':>13} {'steps':>8}")
    for label, steps in (("plain torchrun", plain), ("under the agent", agent)):
        medians = [1000 * statistics.median(turn) for turn in steps]
        count = sum(map(len, steps))
        print(f"{label:24} {statistics.median(medians):15.3f} {min(medians):13.3f} {count:8}")
    low, middle, high = (100 * (figure - 1) for figure in (min(ratios), statistics.median(ratios), max(ratios)))
    costs = [100 * (one / other - 1) for one, other in zip(hooked, bare, strict=True)]
    print(
        f"counting a step, processor time in one process: {statistics.median(costs):+.2f} % of it"
        f" ({min(costs):+.2f} to {max(costs):+.2f})"
    )
    print(f"difference {middle:+.2f} % ({low:+.2f} to {high:+.2f}); the agent used {100 * cpu / wall:.2f} % of a core")


if __name__ == "__main__":
    main()
