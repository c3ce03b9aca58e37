"""Starts real gangs of workers for the tests and looks at what they leave behind."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import DEADLINE

from torchyard.api.values import BUILT_IN
from torchyard_agent.workers.environment import KEEP_MEMORY
from torchyard_agent.workers.ports import ReservedPort
from torchyard_trainers.core.parameters import METRICS

TINY = {
    "steps": 12,
    "seed": 7,
    "customers": 6,
    "capacity": 20,
    "samples": 4,
    "batch": 12,
    "embedding": 16,
    "heads": 2,
    "layers": 1,
    "evalInstances": 32,
    "evalEvery": 6,
    "baselineInstances": 64,
    "baselineEvery": 3,
    "logEvery": 1,
}

AT_ONCE = {"microBatchSize": 128}
"""A rank's samples of a step, all of them: no size is sought, which takes an eighth of a short run."""


def config(*, params: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A config of a run that takes a second. It saves at its end only: by default it would where a step takes long."""
    given = TINY | (params or {})
    return {
        "trainer": {"name": "cvrp", "params": given},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
        "checkpoint": {"interval": {"steps": 1_000_000}} | sections.get("checkpoint", {}),
        "parallelism": AT_ONCE | sections.get("parallelism", {}),
    }


RATES = ("stepsPerSecond", "samplesPerSecond", "tokensPerSecond", "mfu")
WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
HELD: list[ReservedPort] = []


def free_port() -> int:
    """Return a port that no other process here is given, for a store to listen on."""
    HELD.append(ReservedPort())
    number = HELD[-1].number()
    HELD[-1].lend()
    return number


@dataclass
class Gang:
    """Workers of one round."""

    pids: list[int]
    logs: list[Path]
    server: "ForkServer"

    def wait(self, seconds: float = DEADLINE) -> list[int]:
        """Exit codes by rank (negative: signal); kills what is left at the deadline."""
        codes = self.server.ask({"wait": self.pids, "seconds": seconds})["codes"]
        if None in codes:
            self.kill()
            raise TimeoutError(f"{codes} after {seconds} s\n{self.output()}")
        return codes

    def kill(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.pids)):
            try:
                os.kill(self.pids[rank], signal.SIGKILL)
            except ProcessLookupError:
                continue

    def output(self) -> str:
        return "\n".join(f"[{log.name}]\n{log.read_text()}" for log in self.logs if log.exists())


class ForkServer:
    """One warm parent for all tests of a session."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, WORKER_MODULES / "fork_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | KEEP_MEMORY,  # as the agent starts workers on a CPU
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(DEADLINE)


@dataclass
class Yard:
    """One test's folders: a checkpoint folder that outlives rounds, a run folder that does not."""

    server: ForkServer
    root: Path
    checkpoints: Path = field(init=False)
    rounds: int = 0
    own_disks: bool = False  # every node (of one rank, unless said) has a checkpoint folder that no other one sees

    def __post_init__(self) -> None:
        self.checkpoints = self.root / "checkpoints"

    @property
    def run_dir(self) -> Path:
        return self.root / f"run-{self.rounds}"

    def start(
        self,
        settings: dict[str, Any],
        world: int = 1,
        *,
        nodes: int = 1,
        env: dict[str, str] | None = None,
        hold: tuple[int, str] | None = None,
        function: tuple[str, list[Any]] | None = None,
    ) -> Gang:
        """Start a round.

        Args:
            settings: content of the config file.
            world: ranks.
            nodes: which they are spread over, one after the other.
            env: further variables.
            hold: a rank, and the moment (see `moments`) at which it stands still until it is killed.
            function: name and arguments of what workers run (see `faults`) instead of the command line.
        """
        self.rounds += 1
        self.run_dir.mkdir(exist_ok=True)
        file = self.root / f"config-{self.rounds}.json"
        file.write_text(json.dumps(settings))
        common = {
            "TORCHYARD_CONFIG": str(file),
            "TORCHYARD_RUN_DIR": str(self.run_dir),
            "TORCHYARD_CHECKPOINT_DIR": str(self.checkpoints),
            "TORCHYARD_ROUND": str(self.rounds),
            "TORCHYARD_JOB_UID": "job-1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world),
            **(env or {}),
        }
        logs = [self.root / f"round-{self.rounds}-rank-{rank}.log" for rank in range(world)]
        a_node = -(-world // (world if self.own_disks and nodes == 1 else nodes))
        workers = []
        for rank, log in enumerate(logs):
            node, local_rank = divmod(rank, a_node)
            own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            own["LOCAL_WORLD_SIZE"] = str(min(a_node, world - node * a_node))
            if node > 0:
                own["TORCHYARD_RUN_DIR"] = ""
                if self.own_disks:
                    own["TORCHYARD_CHECKPOINT_DIR"] = str(self.disk(node))
            workers.append({"env": common | own, "log": str(log), "arguments": []})
        if function is not None:
            workers = [worker | {"function": function[0], "arguments": function[1]} for worker in workers]
        if hold is not None:
            workers[hold[0]]["env"] |= {"HOLD_AT": hold[1], "HELD": str(self.held)}
        return Gang(self.server.ask({"start": workers})["pids"], logs, self.server)

    def disk(self, node: int) -> Path:
        """Checkpoint folder of a node with a disk of its own."""
        return self.checkpoints if node == 0 else self.root / f"checkpoints-of-{node}"

    @property
    def held(self) -> Path:
        """Exists once the newest round's worker that was to be held stands still."""
        return self.root / f"held-{self.rounds}"

    def train(
        self,
        settings: dict[str, Any],
        world: int = 1,
        *,
        nodes: int = 1,
        env: dict[str, str] | None = None,
        function: tuple[str, list[Any]] | None = None,
    ) -> None:
        """Run a round that must end well; for the parameters see `start`."""
        gang = self.start(settings, world, nodes=nodes, env=env, function=function)
        codes = gang.wait()
        assert codes == [0] * world, gang.output()

    def losses(self) -> dict[int, float]:
        """Loss by step; of two lines with one step the later counts."""
        return {entry["step"]: entry["loss"] for entry in self.metrics()}

    def metrics(self) -> list[dict[str, float]]:
        """Lines of the curves; a built-in workload says beforehand what they have, and sweeps rely on that."""
        found = [json.loads(line) for line in (self.checkpoints / "metrics.jsonl").read_text().splitlines()]
        trainer = json.loads((self.root / f"config-{self.rounds}.json").read_text())["trainer"]["name"]
        if trainer in BUILT_IN:
            of_workload = import_module(f"torchyard_trainers.{trainer}.params").METRICS
            assert {name for line in found for name in line} <= {"step", *METRICS, *of_workload, *RATES}
        return found

    def assert_learned(self, expected: list[dict[str, float]], names: Collection[str], *, rel: float = 1e-5) -> None:
        """Compare the metrics of these names at every step; what was measured of the machine differs between runs."""
        found = {line["step"]: line for line in self.metrics()}
        assert sorted(found) == [line["step"] for line in expected]
        for line in expected:
            assert "loss" in line
            compared = [name for name in line if name in names]
            values = {name: found[line["step"]][name] for name in compared}
            assert values == pytest.approx({name: line[name] for name in compared}, abs=1e-5, rel=rel), line["step"]

    def weights(self) -> str:
        """SHA-256 of the final weights."""
        return hashlib.sha256((self.checkpoints / "final" / "model.safetensors").read_bytes()).hexdigest()

    def committed(self) -> list[int]:
        """Steps of committed checkpoints."""
        return sorted(int(path.parent.name[5:]) for path in self.checkpoints.glob("step-*/COMMIT"))

    def record(self, step: int) -> dict[str, Any]:
        return json.loads((self.checkpoints / f"step-{step:08d}" / "state.json").read_text())

    def failure(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.run_dir / f"failure.{rank}.json").read_text())

    def report(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.run_dir / f"report.{rank}.json").read_text())


def until(condition: Any, seconds: float = DEADLINE) -> Any:
    """Wait for a truth, with a deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise TimeoutError(f"not true within {seconds} s")
