"""Kueue's topology-aware scheduling: the request of a Workload, and pods that Kueue places by their rank."""

import pytest
from msgspec.structs import replace
from tests.support.kueue import SOURCES, admit, with_status, workload
from tests.support.reconcile.world import World

from torchyard.api.spec_placement import Scheduling, Topology
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import pod
from torchyard.schedulers.kueue import Kueue
from torchyard.schedulers.kueue_topology import TOPOLOGY
from torchyard.schedulers.protocol import GangObject

RACK, BLOCK = "example.com/rack", "example.com/block"
LEVELS = [{"nodeLabel": BLOCK}, {"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
SITE = Site(operator_url="https://o", ca_pem="ca", agent_image="agent:1", trainer_image="trainer:1")
GATE = "kueue.x-k8s.io/topology"
# As Kueue 0.19 writes it: two pods in rack a, one in rack b.
ASSIGNED = {
    "levels": [BLOCK, RACK],
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"universal": "x"}, {"individual": {"roots": ["a", "b"]}}],
            "podCounts": {"individual": [2, 1]},
        }
    ],
}


def sources(topology_of_flavor="default", levels=LEVELS):
    (flavor,) = SOURCES["resourceflavors"]
    spec = flavor.document["spec"] | {"topologyName": topology_of_flavor}
    topology = GangObject(kind=TOPOLOGY, name="default", uid="t", document={"spec": {"levels": levels}})
    return SOURCES | {"resourceflavors": (replace(flavor, document={"spec": spec}),), "topologies": (topology,)}


def queued(of=None, nodes=3, **topology):
    scheduling = Scheduling(gang="kueue", queue="research", topology=Topology(**topology) if topology else None)
    world = World(nodes, scheduling=scheduling)
    world.scheduler, world.sources = Kueue(), of or sources()
    world.settle()
    return world


def admit_with_topology(world):
    admit(world)
    assignment = {"name": "gang", "flavors": {"nvidia.com/gpu": "spot"}, "topologyAssignment": ASSIGNED}
    with_status(world, {}, admission={"clusterQueue": "cluster", "podSetAssignments": [assignment]})
    world.settle()


def requested(world):
    return workload(world).document["spec"]["podSets"][0].get("topologyRequest")


@pytest.mark.parametrize(
    ("topology", "request_"),
    [
        ({"required": RACK}, {"required": RACK, "podIndexLabel": names.INDEX}),
        ({"preferred": BLOCK}, {"preferred": BLOCK, "podIndexLabel": names.INDEX}),
        ({"required": BLOCK, "preferred": RACK}, {"required": BLOCK, "podIndexLabel": names.INDEX}),
        ({"required": "topology.kubernetes.io/zone"}, None),
        ({}, None),
    ],
)
def test_the_request_names_the_level_if_a_topology_of_a_flavor_has_it(topology, request_):
    assert requested(queued(**topology)) == request_


@pytest.mark.parametrize("of", [SOURCES, sources(topology_of_flavor="other")], ids=["no topology", "of no flavor"])
def test_without_a_topology_pods_keep_their_affinity(of):
    world = queued(of, required=RACK)
    assert requested(world) is None
    admit(world)
    world.settle()
    made = pod(world.job, world.created[0], SITE)
    assert "schedulingGates" not in made["spec"]
    (near,) = made["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == RACK


def ungated(pods, assigned):
    """The racks of the pods as Kueue's topology ungater chooses them: domains in order, filled by the index label."""
    racks = []
    for part in assigned["slices"]:
        roots, counts = part["valuesPerLevel"][1]["individual"]["roots"], part["podCounts"]["individual"]
        racks += [rack for rack, count in zip(roots, counts, strict=True) for _ in range(count)]
    return [racks[int(each["metadata"]["labels"][names.INDEX])] for each in pods]


def test_pods_are_gated_and_their_ranks_are_contiguous_in_each_rack():
    world = queued(required=BLOCK)
    admit_with_topology(world)
    made = [pod(world.job, each, SITE) for each in world.created]
    for each in made:
        assert each["spec"]["schedulingGates"] == [{"name": GATE}]
        assert each["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "gang"
        annotations = each["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/workload"] == workload(world).name
        assert annotations["kueue.x-k8s.io/podset-required-topology"] == BLOCK
    assert ungated(made, ASSIGNED) == ["a", "a", "b"]
    world.to_running()
    ranks = [world.pods[uid].index for uid in world.status.rendezvous.members]
    assert ranks == [0, 1, 2], "the node rank of a pod is its index"


def test_a_topology_without_a_request_gates_the_pods_too():
    world = queued()
    admit_with_topology(world)
    annotations = world.created[0].changes.annotations
    assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


@pytest.mark.parametrize(
    "message",
    [
        'topology "default" allows to fit only 2 out of 3 pod(s)',
        'topology "default" doesn\'t allow to fit any of 3 pod(s)',
        'Flavor "spot" does not support TopologyAwareScheduling',
    ],
)
def test_a_gang_that_fits_no_domain_says_so(message):
    world = queued(required=RACK)
    with_status(world, {"QuotaReserved": (False, "Pending", f"couldn't assign flavors to pod set gang: {message}")})
    world.settle()
    assert (world.status.state, world.status.reason) == ("Queued", "TopologyNotMet")
    assert message in world.status.message
