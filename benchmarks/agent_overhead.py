"""What the agent costs a training step: step time, processor time and page faults under the agent and under torchrun.

    python benchmarks/agent_overhead.py [SECONDS] [TURNS]

The two take turns, so that a busy machine slows both. The script is unmodified PyTorch; under the agent its steps are
counted by the hook and its output is followed. All that the agent does inside a worker is that hook, so steps with and
without it also take turns within one process, where a noisy machine spoils the comparison least.

Under the agent, workers without a GPU keep the memory they free (decision 14); plain torchrun leaves that to glibc, as
its users have it: a step may then meet none or a thousand page faults, as the heap happens to lie.
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

WARM_UP_STEPS = 20
PROGRAM = f"""
import json, os, resource, time, torch
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
def used():
    return resource.getrusage(resource.RUSAGE_SELF)
data, steps, end = torch.randn(64, 512), [], time.monotonic() + float(os.environ["SECONDS"])
installed, turns = dict(hooks), {{True: [], False: []}}
while time.monotonic() < end:
    counted = len(steps) % 2 == 0
    hooks.clear()
    hooks.update(installed if counted else {{}})
    start, before = time.perf_counter(), time.thread_time()
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    steps.append(time.perf_counter() - start)
    turns[counted].append(time.thread_time() - before)
    if len(steps) == {WARM_UP_STEPS}:
        first = used()
    if len(steps) % 10 == 0:
        print("step", len(steps), flush=True)
last, count = used(), len(steps) - {WARM_UP_STEPS}
told = {{
    "steps": steps[{WARM_UP_STEPS}:],
    "counted": turns[True][{WARM_UP_STEPS // 2}:],
    "bare": turns[False][{WARM_UP_STEPS // 2}:],
    "cpu": (last.ru_utime + last.ru_stime - first.ru_utime - first.ru_stime) / count,
    "faults": (last.ru_minflt - first.ru_minflt) / count,
}}
json.dump(told, open(os.environ["MARK"], "w"))
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(seconds: float, turns: int) -> tuple[list[dict], list[dict], float]:
    """Return what each turn reported under the agent and under plain torchrun, and the agent's share of a core."""
    agent, plain, cpu, wall = [], [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder, intake = Path(name), Intake()
        script, mark = folder / "train.py", folder / "mark"
        script.write_text(PROGRAM)
        env = {"MARK": str(mark), "SECONDS": str(seconds)}
        process = agent_process(folder, intake, ["torchrun", script])
        try:
            intake.wait_for(lambda state: state["state"] == "ready")
            for number in range(1, turns + 1):
                before, start = cpu_seconds(process.pid), time.monotonic()
                run(intake, number, env, procs=1)
                intake.wait_for(lambda state, number=number: state.get("exit", {}).get("round") == number)
                cpu, wall = cpu + cpu_seconds(process.pid) - before, wall + time.monotonic() - start
                agent.append(json.loads(mark.read_text()))
                torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", script]
                quiet = {**os.environ, "OMP_NUM_THREADS": "1", **env}
                ended = subprocess.run(torchrun, env=quiet, capture_output=True, text=True, check=False)
                if ended.returncode:
                    sys.exit(f"torchrun ended with {ended.returncode}: {ended.stderr}")
                plain.append(json.loads(mark.read_text()))
            intake.tell(verb="exit", code=0)
            process.wait(20)
        finally:
            process.kill()
            process.wait()
    return agent, plain, cpu / wall


def difference(ones: list[float], others: list[float]) -> str:
    """By how much `ones` are more than `others`: the median of pairs, and the least and most of them."""
    percents = sorted(100 * (one / other - 1) for one, other in zip(ones, others, strict=True))
    return f"{statistics.median(percents):+.2f} % ({percents[0]:+.2f} to {percents[-1]:+.2f})"


def medians(turns: list[dict], name: str) -> list[float]:
    return [statistics.median(turn[name]) for turn in turns]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    agent, plain, share = measure(seconds, turns)
    print(f"{'1 rank, CPU':18} {'step ms':>8} {'cpu ms':>8} {'faults a step':>22} {'steps':>7}")
    for label, told in (("plain torchrun", plain), ("under the agent", agent)):
        step, cpu = (1000 * statistics.median(column) for column in (medians(told, "steps"), [t["cpu"] for t in told]))
        faults = sorted(turn["faults"] for turn in told)
        spread = f"{statistics.median(faults):.0f} ({faults[0]:.0f} to {faults[-1]:.0f})"
        count = sum(len(turn["steps"]) for turn in told)
        print(f"{label:18} {step:8.3f} {cpu:8.3f} {spread:>22} {count:7}")
    print(f"step time, paired turns: {difference(medians(agent, 'steps'), medians(plain, 'steps'))}")
    print(
        f"processor time of a step, paired turns: {difference(*([t['cpu'] for t in side] for side in (agent, plain)))}"
    )
    print(f"counting a step, within one process: {difference(medians(agent, 'counted'), medians(agent, 'bare'))}")
    print(f"the agent used {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
