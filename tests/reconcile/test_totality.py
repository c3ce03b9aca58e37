"""Every combination of observed facts has a plan: the plan never raises, whatever it is shown."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.reconcile.world import START, World

from torchyard.api.spec_workload import Trainer
from torchyard.api.status import Attempt, CheckpointStatus, Rendezvous, State, TrainingJobStatus
from torchyard.api.values import Duration, Time
from torchyard.reconcile.observed import Agent, Failure, Pod, RankReport, RoundExit, View
from torchyard.reconcile.plan import plan

UIDS = st.sampled_from(["a", "b"])
SMALL = st.integers(0, 3)
ROUND = st.integers(1, 2)
NUMBER = st.floats() | st.sampled_from([0.0, START, START - 5, -1.0, 1e300])
TEXT = st.sampled_from(["", "x", "OOMKilled", "Unschedulable", "InsufficientGPU", "step", "save", "init", "\x00" * 9])
TIME = st.sampled_from(
    [None, *map(Time.parse, ("2027-01-15T08:00:00Z", "2027-01-15T07:59:58Z", "9999-12-31T23:59:59Z"))]
)
CODE = st.sampled_from([0, 1, 64, 75, 76, 127, 137, 143, 255, -9, 4096])

PODS = st.builds(
    Pod,
    uid=UIDS,
    name=TEXT,
    index=st.integers(0, 2),
    incarnation=SMALL,
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    created=NUMBER,
    started=st.none() | NUMBER,
    finished=st.none() | st.just(START),
    deleting=st.booleans(),
    exit_code=st.none() | CODE,
    reason=TEXT,
    message=TEXT,
)
FAILURES = st.builds(
    Failure, rank=st.none() | SMALL, code=st.none() | CODE, exception=TEXT, message=TEXT, time=NUMBER,
    secondary=st.booleans(), step=st.none() | SMALL,
)  # fmt: skip
EXITS = st.builds(
    RoundExit, round=ROUND, code=CODE, saved=st.booleans(), asked=st.booleans(), time=NUMBER,
    failure=st.none() | FAILURES, lines=st.just(("line",) * 50),
)  # fmt: skip
JSON = st.none() | st.booleans() | SMALL | NUMBER | TEXT | st.just([]) | st.just({})
REPORTS = st.builds(
    RankReport, round=ROUND, rank=SMALL, step=st.integers(-5, 10**30), total_steps=st.none() | st.integers(-1, 10**30),
    epoch=st.none() | NUMBER, phase=TEXT, time=NUMBER, metrics=st.dictionaries(TEXT, NUMBER),
    throughput=st.dictionaries(st.sampled_from(["stepsPerSecond", "mfu"]), NUMBER),
    checkpoint=st.none() | st.dictionaries(st.sampled_from(["step", "time", "path", "bytes", "saveSeconds"]), JSON),
)  # fmt: skip
AGENTS = st.builds(
    Agent, pod_uid=UIDS, instance=TEXT, state=st.sampled_from(["starting", "ready", "running", "stopping", "exiting"]),
    seen=NUMBER, connected=st.booleans(), round=ROUND, address=TEXT, master_port=SMALL, procs=SMALL,
    exit=st.none() | EXITS, reports=st.tuples() | st.tuples(REPORTS) | st.tuples(REPORTS, REPORTS),
)  # fmt: skip
ATTEMPTS = st.builds(
    Attempt, round=ROUND, start_time=TIME, end_time=TIME,
    reason=st.sampled_from(["", "Suspended", "RoundClosed", "WorkerFailed"]), start_step=SMALL, end_step=SMALL,
)  # fmt: skip
STATUSES = st.builds(
    TrainingJobStatus,
    state=st.sampled_from(State),
    round=ROUND,
    incarnation=SMALL,
    rendezvous=st.builds(
        Rendezvous,
        open=st.booleans(),
        members=st.sampled_from([[], ["a"], ["a", "b"], ["b", ""], ["c", "a"]]),
        next_round_time=TIME,
    ),
    attempts=st.lists(ATTEMPTS, max_size=3),
    checkpoint=st.none() | st.builds(CheckpointStatus, step=SMALL),
    start_time=TIME,
    completion_time=TIME,
)
SPECS = st.fixed_dictionaries({
    "suspend": st.booleans(),
    "active_deadline": st.none() | st.just(Duration("1h")),
    "ttl_after_finished": st.none() | st.just(Duration("1h")),
    "trainer": st.none() | st.just(Trainer(name="cvrp")),
})  # fmt: skip


@given(
    pods=st.lists(PODS, max_size=5),
    agents=st.lists(AGENTS, max_size=4),
    status=STATUSES,
    spec=SPECS,
    nodes=st.integers(1, 2),
    since=st.sampled_from([0.0, START]),
)
@settings(max_examples=800, suppress_health_check=list(HealthCheck))
def test_every_combination_of_facts_has_a_plan(*, pods, agents, status, spec, nodes, since):
    job = replace(World(nodes, **spec).job, status=status)
    told = {agent.pod_uid: agent for agent in agents}
    decided = plan(View(job=job, pods=tuple(pods), agents=told, commands={}, now=START + 1, since=since))
    assert decided.requeue_after is None or (decided.requeue_after > 0 and math.isfinite(decided.requeue_after))
