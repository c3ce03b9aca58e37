"""What one plan observes: the view joined with the round that the status names, computed once.

A job without agents (`launcher.kind: none`) is observed like any other: the state of an agent is derived from its pod.
Such a pod trains from its start to its end: it can neither wait for the other pods nor receive commands. A gang of such
pods therefore takes part in one round, and the next round gets new pods.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.status import TrainingJobStatus
from torchyard.api.torchrun import MASTER_PORT, is_agentless
from torchyard.reconcile.failures import cannot_start, node_lost
from torchyard.reconcile.view import Agent, Pod, RankReport, RoundExit, View


class Observed(Struct, frozen=True, kw_only=True):
    """The pods, agents and reports of a job, as seen from one status.

    Attributes:
        view: what was gathered; every started pod has an agent in it.
        status: the status that names the round.
        pods: by uid.
        active: the active pod of each index, see `observe`.
        reports: the newest reports of the ranks of the open round, by rank; none between rounds.
        size: the number of pods of the gang. An open round keeps its size: a changed `spec.nodes` applies to the next.
    """

    view: View
    status: TrainingJobStatus
    pods: Mapping[str, Pod]
    active: Mapping[int, Pod]
    reports: tuple[RankReport, ...]
    size: int

    @property
    def newest_step(self) -> int:
        """Return the newest step of the newest round."""
        known = self.status.attempts[-1].end_step if self.status.attempts else 0
        return max([known, *(report.step for report in self.reports)])

    def after(self, status: TrainingJobStatus) -> "Observed":
        """Return what is observed from the status that a transition left; figures alone change nothing."""
        facts = (status.rendezvous, status.round, status.incarnation)
        if facts == (self.status.rendezvous, self.status.round, self.status.incarnation):
            return replace(self, status=status)
        return observe(self.view, status)


def observe(view: View, status: TrainingJobStatus) -> Observed:
    """Join a view with the round that the status names.

    The active pod of an index is alive, not being deleted and reachable; members of the newest round come first.
    Between rounds, a pod whose agent knows a newer round than the status is not active: the status was lost or reset,
    and the agent would reject any round that could be opened.
    """
    members = set(status.rendezvous.members)
    active: dict[int, Pod] = {}
    for pod in sorted(view.pods, key=lambda pod: (pod.uid in members, pod.incarnation, pod.uid)):
        stays = pod.alive and not (
            node_lost(view, pod)
            or cannot_start(view, pod)
            or is_ahead(view, status, pod)
            or is_outdated(view, status, pod)
            or is_suspect(status, pod)
        )
        if ((stays and not is_spent(view, status, pod)) or counts_for_index(view, status, pod)) and not pod.deleting:
            active[pod.index] = pod
    return Observed(
        view=view,
        status=status,
        pods={pod.uid: pod for pod in view.pods},
        active=active,
        reports=_reports(view, status),
        size=len(status.rendezvous.members) if status.rendezvous.open else view.job.spec.nodes,
    )


def _reports(view: View, status: TrainingJobStatus) -> tuple[RankReport, ...]:
    if not status.rendezvous.open:
        return ()
    members = (view.agents[uid] for uid in status.rendezvous.members if uid in view.agents)
    reports = (report for agent in members for report in agent.reports if report.round == status.round)
    return tuple(sorted(reports, key=lambda report: report.rank))


def is_ahead(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the agent of a pod knows a newer round than the status, between rounds."""
    agent = view.agents.get(pod.uid)
    return agent is not None and not status.rendezvous.open and agent.round > status.round


def is_outdated(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod can take part in no further round, since its configuration is not that of the gang."""
    if status.rendezvous.open:
        return False
    return pod.configuration not in {"", view.configuration} or pod.incarnation < status.rendezvous.oldest_incarnation


def is_suspect(status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the hardware of this pod ended the last round: its replacement prefers another node."""
    if status.rendezvous.open or not status.attempts:
        return False
    cause = status.attempts[-1].cause
    return cause is not None and cause.class_ == Reason.HARDWARE_SUSPECTED and cause.pod == pod.name


def is_spent(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the round of a pod without an agent is over for the gang, even if the pod itself still trains."""
    former = pod.uid in status.rendezvous.members or pod.incarnation < status.incarnation
    return is_agentless(view.job.spec) and not status.rendezvous.open and former


def counts_for_index(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod without an agent that has ended still counts: it ended before it was seen running."""
    fresh = pod.incarnation >= status.incarnation and pod.uid not in status.rendezvous.members
    return is_agentless(view.job.spec) and fresh and not status.rendezvous.open and pod.exit_code is not None


def with_pod_agents(view: View) -> View:
    """Return the view with an agent for each started pod of a job without agents."""
    agents = {pod.uid: _agent(view, pod) for pod in view.pods if pod.phase != "Pending"}
    return replace(view, agents=agents, commands={})


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
