"""Jobs without an agent (`launcher.kind: none`): the state of an agent is derived from its pod.

Such a pod trains from its start to its end: it can neither wait for the other pods nor receive commands. A gang of such
pods therefore takes part in one round, and the next round gets new pods.
"""

from msgspec.structs import replace

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import TrainingJobStatus
from torchyard.engine.view import Agent, Pod, RoundExit, View

MASTER_PORT = 29500  # torchrun's own


def is_agentless(spec: TrainingJobSpec) -> bool:
    """Return whether the pods of this job have no agent."""
    return spec.launcher.kind == "none"


def with_pod_agents(view: View) -> View:
    """Return the view with an agent for each started pod, so that rounds have one kind of member."""
    agents = {pod.uid: _agent(view, pod) for pod in view.pods if pod.phase != "Pending"}
    return replace(view, agents=agents, commands={})


def is_spent(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the round of this pod is over for the gang, even if the pod itself still trains."""
    former = pod.uid in status.rendezvous.members or pod.incarnation < status.incarnation
    return is_agentless(view.job.spec) and not status.rendezvous.open and former


def counts_for_index(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod that has ended still counts for its index: it ended before it was seen running."""
    fresh = pod.incarnation >= status.incarnation and pod.uid not in status.rendezvous.members
    return is_agentless(view.job.spec) and fresh and not status.rendezvous.open and pod.exit_code is not None


def _agent(view: View, pod: Pod) -> Agent:
    status = view.job.status
    member = pod.uid in status.rendezvous.members
    ended = pod.phase == "Succeeded" and not pod.exit_code
    return Agent(
        pod_uid=pod.uid,
        instance=pod.uid,
        state="running" if member else "ready",
        seen=view.since,
        # Only the node of the pod can report its state, and a pod that is being deleted counts as gone.
        connected=pod.phase != "Unknown" and not pod.deleting,
        round=status.round if member else 0,
        address=pod.address or pod.name,
        master_port=MASTER_PORT,
        procs=max(1, view.job.spec.gpus_per_node),
        exit=RoundExit(round=status.round, code=0, time=pod.finished or view.now) if member and ended else None,
    )
