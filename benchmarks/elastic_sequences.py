"""Elastic gangs on kind: random losses, returns and scalings with real agents; the loss curve is that of a fixed gang.

    eval "$(make -s kind-env)"; make kind-images
    python benchmarks/elastic_sequences.py [--sequences 10] [--first 0] [--length 4] [--raw FILE]

First a gang of three nodes trains without a disturbance. Each sequence is a job with the same seed, of one to four
nodes: `lose` takes a label away from all nodes, so that no pod can be placed, and deletes one or two pods by force;
`return` gives the label back; `scale` writes `spec.replicas` of the scale subresource. After each operation the job has
to train with the size that follows from it. Then it trains to its end, and each loss that it logged is compared with
that of the fixed gang. `resizes` are the seconds from each decision to resize to the next step, by the log. Raw data
is one JSON line a sequence. Exits with 1 if a size is not reached, a job fails, or a loss differs by more than 1e-5.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cluster import testbed
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, address_for_pods, make_certificates
from tests.support.cluster.patient_api import connected
from tests.support.cluster.training import SMALL, Training

from torchyard.kubernetes.client.api import MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import NotFound

# In longer runs, sums of another order differ more and more: 5e-8 at step 40, 1e-6 at step 180, 1e-5 at step 300.
STEPS, NODES, MOST = 200, 3, 4
ELASTIC = {"minNodes": 1, "maxNodes": MOST, "wait": "5s", "patience": "5s", "cooldown": "3s"}
TOLERANCE = 1e-5
LABEL = "benchmark.torchyard.dev"
# The job pauses after each step until a file appears: operations meet it in the middle, and its end takes seconds.
HURRIED = """
import os, time
from torchyard_trainers.cvrp.params import resolve_params
from torchyard_trainers.cvrp.task import Cvrp

class Hurried(Cvrp):
    def after_step(self, session, step, means):
        if not os.path.exists(os.environ["TORCHYARD_CHECKPOINT_DIR"] + "/hurry"):
            time.sleep(2.0)
        return super().after_step(session, step, means)
"""


class History:
    """One job and the operations that happen to it.

    Args:
        training: the job, which trains.
        place: whether its pods can be placed now, to be changed.
        draw: of the operations.
    """

    def __init__(self, training: Training, place: "Place", draw: random.Random) -> None:
        self.training, self.jobs, self.place, self.draw = training, training.jobs, place, draw
        self.nodes = self.members = NODES
        self.done: list[str] = []

    async def operate(self) -> None:
        """Do one drawn operation, and wait until the job trains with the size that follows from it."""
        can = ["scale"]
        can += ["lose"] if self.members > 1 else []
        can += ["return"] * 3 if not self.place.open else []
        kind = self.draw.choice(can)
        before = (await self.training.gained())["round"]
        if kind == "lose":
            count = self.draw.randint(1, min(2, self.members - 1))
            await self.place.close()
            status = await self.jobs.status(self.training.name)
            uids = self.draw.sample(status["rendezvous"]["members"], count)
            pods = await self.jobs.pods(self.training.name)
            for name in [name for name, pod in pods.items() if pod["metadata"]["uid"] in uids]:
                await self.jobs.delete_pod(name, grace_seconds=0)
            self.members -= count
            self.done.append(f"lose {count}")
        elif kind == "return":
            await self.place.give()
            self.members = self.nodes
            self.done.append("return")
        else:
            self.nodes = self.draw.choice([size for size in range(1, MOST + 1) if size != self.nodes])
            path = f"{self.jobs.path}/{self.training.name}/scale"
            await self.jobs.api.request(
                "PATCH", path, body={"spec": {"replicas": self.nodes}}, content_type=MERGE_PATCH
            )
            self.members = self.nodes if self.place.open else min(self.nodes, self.members)
            self.done.append(f"scale {self.nodes}")
        await self.trains(before)

    async def trains(self, before: int) -> None:
        def so(status: dict[str, Any]) -> bool:
            assert status.get("state") not in {"Failed", "Succeeded"}, (self.done, status.get("message"))
            size = len(status.get("rendezvous", {}).get("members", []))
            return status.get("state") == "Running" and size == self.members and status["round"] >= before

        await self.jobs.until(self.training.name, so)


class Place:
    """A label of the test bed's nodes that the pods of one namespace ask for."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.label, self._api, self.open = f"{LABEL}/{namespace}", api, False

    async def give(self) -> None:
        """Have pods placed."""
        await self._set("here")

    async def close(self) -> None:
        """Have no further pod placed."""
        await self._set(None)

    async def _set(self, value: str | None) -> None:
        self.open = value is not None
        for node in json.loads(await self._api.request("GET", "/api/v1/nodes"))["items"]:
            body = {"metadata": {"labels": {self.label: value}}}
            with contextlib.suppress(NotFound):
                path = f"/api/v1/nodes/{node['metadata']['name']}"
                await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@contextlib.asynccontextmanager
async def training(api: Api, folder: Path, nodes: int = NODES) -> AsyncIterator[tuple[Training, Place]]:
    """Yield a job in a fresh namespace, with an operator for it alone."""
    async with fresh_namespace(api) as namespace:
        place = Place(api, namespace)
        tls = make_certificates(folder / "tls", address := await address_for_pods(api))
        operator = Operator(folder, namespace, tls=tls, address=address, name=namespace)
        try:
            operator.start()
            await operator.ready()
            await place.give()
            spec = {
                "nodes": nodes,
                "elastic": ELASTIC,
                "resources": {"memory": "1Gi"},
                "scheduling": {"nodeSelector": {place.label: "here"}},
            }
            trainer = {"name": "hurried:Hurried", "params": {**SMALL, "batch": 12, "steps": STEPS}}
            job = Training(Jobs(api, namespace), STEPS, trainer=trainer, code={"hurried.py": HURRIED}, **spec)
            yield await job.start(), place
        finally:
            operator.stop()
            await place.close()


async def finish(job: Training) -> dict[int, float]:
    """Have a job train to its end without pauses; return its losses by step."""
    folder, plane = f"/shared/*{job.jobs.namespace}*/{job.name}", testbed.control_plane()
    await asyncio.to_thread(plane.run, "sh", "-c", f"cd {folder} && touch hurry")
    status = await job.jobs.ends(job.name)
    assert status["state"] == "Succeeded", status["message"]
    text = await asyncio.to_thread(plane.run, "sh", "-c", f"cat {folder}/metrics.jsonl")
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["step"]: row["loss"] for row in rows if isinstance(row.get("loss"), float)}


async def main(options: argparse.Namespace) -> int:
    """Run the fixed gang and the sequences; print a row for each."""
    console, results = Console(stderr=True), []
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api:
            await install(api)
            async with training(api, Path(folder)) as (fixed, _):
                await fixed.gained()
                usual = await finish(fixed)
            append(options.raw, {"fixed": usual})
            console.print(f"fixed gang: {len(usual)} losses of {STEPS} steps")
            for number in range(options.first, options.first + options.sequences):
                begun = time.monotonic()
                async with training(api, Path(folder)) as (job, place):
                    one = History(job, place, random.Random(f"elastic {number}"))
                    await one.trains(1)
                    for _ in range(options.length):
                        await one.operate()
                    losses = await finish(job)
                    status = await job.jobs.status(job.name)
                result = {
                    "sequence": number,
                    "operations": one.done,
                    "rounds": status["round"],
                    "restarts": status.get("restarts", {}).get("total", 0),
                    "resizes": resizes(Path(folder) / f"{job.jobs.namespace}.log"),
                    **compared(losses, usual),
                    "seconds": round(time.monotonic() - begun),
                }
                results.append(result)
                console.print({name: each for name, each in result.items() if name != "curve"}, soft_wrap=True)
                append(options.raw, result)
    show(results)
    return int(any(each["difference"] > TOLERANCE or not each["losses"] for each in results))


def append(raw: Path | None, result: dict[str, Any]) -> None:
    """Append a line to the raw data."""
    if raw is not None:
        with raw.open("a") as file:
            file.write(json.dumps(result) + "\n")


def compared(losses: dict[int, float], usual: dict[int, float]) -> dict[str, Any]:
    """Return how many losses are compared, the greatest difference, and the first step at which it is too great."""
    differences = {step: abs(losses[step] - usual[step]) for step in sorted(losses.keys() & usual.keys())}
    return {
        "losses": len(differences),
        "difference": max(differences.values(), default=math.inf),
        "first": next((step for step, each in differences.items() if each > TOLERANCE), None),
        "curve": losses,
    }


def resizes(log: Path) -> list[float]:
    """Return the seconds from each decision to resize to the next step, by the decisions that an operator logged."""
    seconds, decided_at = [], None
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry.get("logger") != "torchyard.decisions":
                continue
            at = datetime.fromisoformat(entry["time"]).timestamp()
            if (entry["state"], entry["reason"]) == ("Running", "Resizing"):
                decided_at = at
            elif decided_at is not None and "event Training" in entry["actions"]:
                seconds.append(round(at - decided_at, 2))
                decided_at = None
    return seconds


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a row for each sequence."""
    table = Table(title=f"{len(results)} sequences of a gang of {NODES}, 1 to {MOST} nodes", title_justify="left")
    for column in ("operations", "rounds", "restarts", "losses compared", "greatest difference", "longest resize", "s"):
        table.add_column(column, justify="right" if table.columns else "left")
    for each in results:
        longest = max(each["resizes"], default=0.0)
        curve = each["losses"], f"{each['difference']:.1e}"
        figures = (each["rounds"], each["restarts"], *curve, f"{longest:.1f} s", each["seconds"])
        table.add_row(", ".join(each["operations"]), *map(str, figures))
    Console(width=140).print(table)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=10, help="number of sequences (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default: %(default)s)")
    parser.add_argument("--length", type=int, default=4, help="operations of each (default: %(default)s)")
    parser.add_argument("--raw", type=Path, help="file that a JSON line is appended to after each sequence")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
