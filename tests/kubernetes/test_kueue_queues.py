"""Places in Kueue's queues: what is asked, how often, and what a job shows of the answer."""

import asyncio
import contextlib
import io

from msgspec.structs import replace
from rich.console import Console
from tests.support.kubernetes.api_server import until
from tests.support.kubernetes.object_server import ObjectServer
from tests.support.reconcile.world import START, World

from torchyard.api.resource import TrainingJob
from torchyard.api.spec_placement import Scheduling
from torchyard.api.status import GangStatus, Progress, State
from torchyard.api.values import Time
from torchyard.cli.views.show import facts
from torchyard.cli.views.table import row
from torchyard.client.explanation import explanation
from torchyard.client.summaries import summary_of
from torchyard.kubernetes import kueue_queues
from torchyard.kubernetes.cache.gang_objects import GangObjects
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.gang_writes import manifest
from torchyard.kubernetes.kueue_queues import KueueQueues
from torchyard.reconcile.plan import plan
from torchyard.schedulers.kueue import FLAVOR, LOCAL_QUEUE, POD_PRIORITY, WORKLOAD, WORKLOAD_PRIORITY, Kueue
from torchyard.schedulers.protocol import CreateObject, ObjectCondition, QueuePosition, object_name

GPU = "nvidia.com/gpu"
NAMESPACE = "default"
PENDING = f"/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/localqueues/research/pendingworkloads"
CLUSTER_QUEUE = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/gpus"


def job(name, *, running_minutes=None) -> TrainingJob:
    made = World(2, scheduling=Scheduling(gang="kueue", queue="research")).job
    assert made is not None
    state = State.QUEUED if running_minutes is None else State.RUNNING
    gang = GangStatus(enforced_by="kueue", admitted=running_minutes is not None)
    eta = None if running_minutes is None else round(60 * running_minutes)
    status = replace(
        made.status, state=state, gang=gang, progress=Progress(eta_seconds=eta), last_update_time=Time.of(START)
    )
    metadata = replace(made.metadata, name=name, uid=f"{name}-uid-1234", resource_version="1", namespace=NAMESPACE)
    return replace(made, metadata=metadata, status=status)


def workload(of, gpus, *, reserved):
    template = {"spec": {"containers": [{"resources": {"requests": {GPU: str(gpus // 2)}}}]}}
    spec = {"queueName": "research", "podSets": [{"name": "gang", "count": 2, "template": template}]}
    change = CreateObject(
        kind=WORKLOAD, name=object_name(of), manifest={"metadata": {"name": object_name(of)}, "spec": spec}
    )
    usage = {"name": "gang", "resourceUsage": {GPU: str(gpus)}}
    admission = {"admission": {"clusterQueue": "gpus", "podSetAssignments": [usage]}} if reserved else {}
    condition = {"type": "QuotaReserved", "status": str(reserved), "reason": "Pending", "message": ""}
    return manifest(of, change) | {"status": {"conditions": [condition], **admission}}


class Bench:
    """The queues of an operator whose jobs are these, with what Kueue answers."""

    def __init__(self, *jobs: tuple[TrainingJob, int]) -> None:
        self.server = ObjectServer(WORKLOAD, FLAVOR, WORKLOAD_PRIORITY, POD_PRIORITY, LOCAL_QUEUE)
        self.jobs, self.changed, self.now = Jobs(), [], START
        self.jobs.synced.set()
        self.objects = GangObjects(
            self.server, (), [Kueue()], changed=lambda *_: None, source_changed=lambda _name: None
        )
        self.queues = KueueQueues(
            self.server, self.jobs, self.objects, changed=self.changed.append, clock=lambda: self.now
        )
        for each, gpus in jobs:
            self.jobs._take(each)
            document = workload(each, gpus, reserved=each.status.state is State.RUNNING)
            self.server.put(f"{WORKLOAD.path(NAMESPACE)}/{object_name(each)}", document)
        self.reads: list[str] = []
        request = self.server.request

        async def counted(verb, path, **options):
            self.reads.append(path)
            return await request(verb, path, **options)

        self.server.request = counted
        self.quota(8, 8)

    def pending(self, *ahead):
        """The order of the ClusterQueue; texts are Workloads of other controllers."""
        items = [
            {
                "metadata": {"name": each if isinstance(each, str) else object_name(each)},
                "positionInClusterQueue": position,
            }
            for position, each in enumerate(ahead)
        ]
        self.server.objects[PENDING] = {"items": items}

    def local_queue(self, name):
        document = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"clusterQueue": "gpus"}}
        self.server.put(f"{LOCAL_QUEUE.path(NAMESPACE)}/{name}", document)

    def quota(self, nominal, reserved):
        self.local_queue("research")
        flavors = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": str(nominal)}]}]
        held = [{"name": "h100", "resources": [{"name": GPU, "total": reserved}]}]
        self.server.objects[CLUSTER_QUEUE] = {
            "spec": {"resourceGroups": [{"flavors": flavors}]}, "status": {"flavorsReservation": held},
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def followed(self):
        task = asyncio.create_task(self.objects.run())
        await until(lambda: self.objects.known(Kueue()))
        self.reads.clear()
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_waiting_job_has_its_place_and_a_time_by_the_forecasts_of_running_ones():
    first, second = job("first"), job("second")
    bench = Bench((job("long", running_minutes=90), 4), (job("short", running_minutes=10), 4), (first, 4), (second, 4))
    bench.pending(first, "a-batch-job", second)
    async with bench.followed():
        await bench.queues.look()
        assert bench.queues.position(first.metadata.uid) == QueuePosition(position=1, start=START + 600)
        assert bench.queues.position(second.metadata.uid) == QueuePosition(position=3, uncounted=1, start=START + 5400)
        assert sorted(bench.changed) == [first.key, second.key]
        assert bench.reads == [CLUSTER_QUEUE, PENDING], "one queue costs two calls, however many jobs wait"
        await bench.queues.look()
        assert len(bench.changed) == 2, "nothing has changed"


async def test_quota_that_is_free_counts():
    waiting = job("waiting")
    bench = Bench((job("short", running_minutes=10), 2), (job("long", running_minutes=90), 2), (waiting, 6))
    bench.pending(waiting)
    bench.quota(8, 4)
    async with bench.followed():
        await bench.queues.look()
    assert bench.queues.position(waiting.metadata.uid) == QueuePosition(position=1, start=START + 600)


async def test_a_job_learns_that_its_queue_is_not_active_even_without_the_visibility_api():
    waiting = job("waiting")
    bench = Bench((waiting, 4))
    bench.quota(8, 0)
    missing = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "missing: h100"}
    bench.server.objects[CLUSTER_QUEUE]["status"]["conditions"] = [missing]
    async with bench.followed():
        await bench.queues.look()
        assert bench.queues.condition(waiting) == ObjectCondition("False", "FlavorNotFound", "missing: h100")
        assert bench.changed == [waiting.key]
        await bench.queues.look()
        assert bench.changed == [waiting.key]


async def test_without_the_visibility_api_there_is_no_place_and_no_trouble(caplog):
    waiting = job("waiting")
    bench = Bench((waiting, 4))
    async with bench.followed():
        await bench.queues.look()
        assert bench.queues.position(waiting.metadata.uid) is None
        bench.pending(waiting)
        await bench.queues.look()
        assert bench.queues.position(waiting.metadata.uid) == QueuePosition(position=1)
        del bench.server.objects[PENDING]
        await bench.queues.look()
        assert bench.queues.position(waiting.metadata.uid) is None
    assert not caplog.records


async def test_nothing_is_asked_while_no_job_waits_and_few_queues_at_a_time(monkeypatch):
    bench = Bench((job("short", running_minutes=10), 4))
    async with bench.followed():
        await bench.queues.look()
        assert bench.reads == []
    monkeypatch.setattr(kueue_queues, "MAX_QUEUES", 2)
    names = [f"q{each}" for each in range(5)]
    waiting = []
    for name in names:
        of = job(name)
        waiting.append(replace(of, spec=replace(of.spec, scheduling=replace(of.spec.scheduling, queue=name))))
    bench = Bench(*((each, 2) for each in waiting))
    for each in waiting:
        name = each.spec.scheduling.queue
        bench.pending(each)
        bench.server.objects[PENDING.replace("research", name)] = bench.server.objects[PENDING]
        bench.local_queue(name)
    async with bench.followed():
        for _ in range(3):
            bench.reads.clear()
            await bench.queues.look()
            assert len([path for path in bench.reads if path.endswith("/pendingworkloads")]) == 2
    assert all(bench.queues.position(each.metadata.uid) for each in waiting), "each has had its turn"


def test_the_status_shows_place_and_time_only_while_the_job_waits():
    world = World(2, scheduling=Scheduling(gang="kueue", queue="research"))
    world.scheduler = Kueue()
    world.settle()
    place = QueuePosition(position=3, uncounted=1, start=START + 600)
    view = replace(world.view(), scheduling=replace(world.scheduling(), queue_position=place))
    (write,) = (each for each in plan(view).actions if hasattr(each, "status"))
    gang = write.status.gang
    assert (gang.position, gang.uncounted, gang.expected_start_time) == (3, 1, START + 600)
    assert not write.urgent, "a place is not worth a write of its own"
    world.edit(suspend=True)
    world.settle()
    view = replace(world.view(), scheduling=replace(world.scheduling(), queue_position=place))
    assert not plan(view).actions


def test_people_see_the_place_and_the_time_wherever_they_look():
    waiting = job("waiting")
    gang = GangStatus(
        enforced_by="kueue", message="insufficient unused quota", position=3, expected_start_time=Time.of(START + 2300)
    )
    shown = replace(waiting, status=replace(waiting.status, gang=gang))
    said = "place 3 in the queue, about 40 min, if running jobs end as they forecast"
    assert said in str(explanation(shown, (), (), "in namespace team", "", START))
    assert "#3, starts in 40 min" in row(summary_of(shown), START, wide=False)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(facts(shown, True, (), START))
    assert said in console.export_text()
