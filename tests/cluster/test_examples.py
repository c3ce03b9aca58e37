"""The examples on a cluster: what is unchanged on a laptop is here, too, and shows what it does by itself."""

import asyncio
from pathlib import Path

import pytest
import yaml
from load import load_on_top
from tests.support.cluster import testbed
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import TRAINER_IMAGE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
IMAGE = "torchyard/examples:dev"
SCRIPTS = ("train.py", "hf_train.py")
# A pod's own files are read-only, so what a script writes beside itself goes elsewhere, as the examples' comments say.
PLAIN = {"image": IMAGE, "args": ["--steps", "100", "--checkpoint", "/tmp/spirals.ckpt", "--out", "/tmp/spirals.pt"]}
TRAINER = {"image": IMAGE, "args": ["--steps", "30", "--output", "/tmp/hf"], "nodes": 2}


@pytest.fixture(scope="session")
def image_with_scripts() -> str:
    """An image that has the scripts of the examples beside torch, on every node."""
    why = testbed.skip()
    if why:
        pytest.skip(f"an image has to be built and loaded: {why}")
    files = {f"work/{name}": (EXAMPLES / name).read_bytes() for name in SCRIPTS}
    load_on_top(IMAGE, TRAINER_IMAGE, files, tuple(node.name for node in testbed.workers()), folder="/work")
    return IMAGE


class Watched:
    """What the status of a job showed over time."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.metrics: set[str] = set()

    def note(self, status: dict) -> bool:
        """Whether it is over."""
        self.metrics |= set(status.get("metrics", {}))
        # A job of a second may be over before its rate is seen; the last one stays in the status.
        if status.get("progress", {}).get("step", 0) > 0:
            self.rates.append(status.get("throughput", {}).get("stepsPerSecond", 0.0))
        return status.get("state") in {"Succeeded", "Failed"}


async def watch(jobs: Jobs, name: str, **changed: object) -> tuple[dict, Watched]:
    """Submit an example and follow it to its end."""
    spec = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
    one_thread = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    await jobs.submit(
        name, **{**spec, **changed, "env": one_thread, "metrics": {**spec.get("metrics", {}), "interval": "1s"}}
    )
    seen = Watched()
    status = await jobs.until(name, seen.note)
    assert status["state"] == "Succeeded", f"{name}: {status['message']}"
    assert any(rate > 0 for rate in seen.rates), f"{name}: no rate was shown"
    return status, seen


async def test_the_examples_that_bring_everything_work_unchanged(api, namespace, operator):
    jobs = Jobs(api, namespace)
    (script, shown), (sharded, _) = await asyncio.gather(watch(jobs, "script"), watch(jobs, "cvrp-fsdp"))
    assert script["progress"]["step"] == 200
    assert "loss" in shown.metrics
    assert sharded["progress"]["step"] == 60


async def test_scripts_that_know_nothing_of_us_show_step_and_rate_on_two_nodes(
    api, namespace, operator, image_with_scripts
):
    jobs = Jobs(api, namespace)
    plain, _ = await watch(jobs, "bring-your-own", **PLAIN)
    assert plain["progress"]["step"] == 100
    trainer, shown = await watch(jobs, "hf-trainer", **TRAINER)
    assert trainer["progress"]["step"] == 30
    assert "loss" in shown.metrics
