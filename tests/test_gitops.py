"""What Helm, Flux and Argo CD make of a TrainingJob: the rules of kstatus, and the health script for Argo CD."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lupa.lua54 import LuaRuntime
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.crd import NEVER_VISITED
from torchyard.api.resource import job_document
from torchyard.api.spec_workload import Trainer
from torchyard.api.values import Duration, Time

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard" / "kind" / "programs"
SCRIPT = (ROOT / "docs" / "gitops" / "argocd-health.lua").read_text(encoding="utf-8")


def kstatus(job):
    """The status of a custom resource, as cli-utils' pkg/kstatus/status computes it: the last test compares with it."""
    metadata, status = job["metadata"], job.get("status", {})
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = [(each["type"], each["status"]) for each in status.get("conditions", ())]
    for each in conditions:
        if each == ("Reconciling", "True"):
            return "InProgress"
        if each == ("Stalled", "True"):
            return "Failed"
    ready = [value for kind, value in conditions if kind == "Ready"]
    return "InProgress" if ready and ready[0] != "True" else "Current"


def argo(job):
    """What the script makes of a job in Argo CD: `obj` is the resource, the answer a table of status and message."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(job, recursive=True)
    health = lua.execute(SCRIPT)
    assert health.message
    return health.status


def new():
    return World(1)


def running():
    return World(1).to_running()


def ended(code):
    world = World(1).to_running()
    world.end_workers(world.at(0), code)
    world.settle()
    return world


def pending():
    world = World(1)
    world.settle()
    return world


def recovering():
    world = World(1).to_running()
    world.vanish(world.at(0))
    world.settle()
    return world


def suspending():
    world = World(1).to_running()
    world.edit(suspend=True)
    world.step()
    return world


def suspended():
    world = suspending()
    world.settle()
    world.finish_deletions()
    world.settle()
    return world


def invalid():
    world = World(1, trainer=Trainer(name="cvrp", params={"stepz": 1}))
    world.settle()
    return world


def terminating():
    world = World(1).to_running()
    gone = replace(world.job.metadata, deletion_timestamp=Time.of(world.now), finalizers=["example.com/books"])
    world.job = replace(world.job, metadata=gone)
    world.settle()
    return world


def edited():
    world = World(1).to_running()
    world.edit(active_deadline=Duration("9h"))
    return world


WORLDS = [
    (new, "", ("InProgress", "Progressing")),
    (pending, "Pending", ("InProgress", "Progressing")),
    (running, "Running", ("Current", "Healthy")),
    (edited, "Running", ("InProgress", "Progressing")),
    (recovering, "Recovering", ("InProgress", "Progressing")),
    (suspending, "Suspending", ("InProgress", "Suspended")),
    (suspended, "Suspended", ("Current", "Suspended")),
    (lambda: ended(0), "Succeeded", ("Current", "Healthy")),
    (lambda: ended(64), "Failed", ("Failed", "Degraded")),
    (invalid, "Failed", ("Failed", "Degraded")),
    (terminating, "Terminating", ("Terminating", "Progressing")),
]


def shown(world, state):
    """Return the object as the API server has it."""
    job = world().job
    assert job.status.state == state
    document = job_document(job)
    document["metadata"].setdefault("generation", job.metadata.generation)
    if not state:
        document["status"] = NEVER_VISITED  # which the API server puts there
    return document


@pytest.mark.parametrize(("world", "state", "expected"), WORLDS)
def test_tools_that_wait_for_resources_see_what_a_job_does(world, state, expected):
    document = shown(world, state)
    assert (kstatus(document), argo(document)) == expected


def test_the_rules_above_are_those_of_the_library():
    """The test bed compiles it: `hack/kind/go/kstatus`."""
    program = shutil.which("kstatus") or max(PROGRAMS.glob("kstatus-*/kstatus"), key=os.path.getmtime, default=None)
    if program is None:
        pytest.skip("the test bed was not built here: make kind-up")
    documents = [shown(world, state) for world, state, _ in WORLDS]
    done = subprocess.run([program], input=json.dumps(documents), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [expected for _, _, (expected, _) in WORLDS]
