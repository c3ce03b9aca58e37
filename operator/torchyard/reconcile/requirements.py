"""The requirements of a job's code, as its agents report them."""

from torchyard.api.values import plural
from torchyard.reconcile.observed import Observed


def installing(seen: Observed) -> str:
    """Return in which pods how many packages are being installed; empty: in none."""
    agents = ((pod, seen.view.agents.get(pod.uid)) for pod in seen.active.values())
    said = []
    for pod, agent in agents:
        if agent is not None and agent.installs and (report := agent.requirements) is not None:
            count = plural(report.packages, "package") if report.packages else "requirements"
            said.append(", ".join(filter(None, (f"{count} in {pod.name}", report.message))))
    return "; ".join(said[:3])
