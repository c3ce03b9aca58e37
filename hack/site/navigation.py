"""The order of the documentation: sections for readers with different aims, each with its pages."""

from collections.abc import Collection, Iterator
from typing import Any

NAVIGATION: list[dict[str, Any]] = [
    {"Home": "index.md"},
    {
        "Start": [
            {"On a laptop, in five minutes": "start-laptop.md"},
            {"On a cluster, in fifteen minutes": "start-cluster.md"},
            {"For platform teams, in thirty minutes": "start-platform.md"},
            {"Install, upgrade, uninstall": "installation.md"},
            {"Profiles for teams": "profiles.md"},
        ]
    },
    {
        "Guides": [
            {"Your own script": "your-script.md"},
            {"Your code goes along": "your-code.md"},
            {"Troubleshooting": "troubleshooting.md"},
            {"Data, secrets, private registries": "data-and-secrets.md"},
            {"GPUs": "gpus.md"},
            {"TensorBoard, W&B, MLflow": "trackers.md"},
            {"ssh and Slurm": "hosts.md"},
            {"The page": "page.md"},
            {"Prometheus and Grafana": "monitoring.md"},
            {"Python": "python.md"},
            {"Built-in workloads, and your own": "workloads.md"},
            {"Fine-tune language models": "language-models.md"},
            {"Vision and action": "vision-action.md"},
            {"Vision, language and reinforcement": "vision-language-rl.md"},
            {"Inputs": "inputs.md"},
            {"Hyperparameter sweeps": "sweeps.md"},
            {"Gang schedulers": "schedulers.md"},
            {"Elastic gangs, spot instances": "elastic.md"},
            {"Check jobs before they run": "validation.md"},
            {"CI": "ci.md"},
            {"GitOps": "gitops.md"},
            {"Compared with other launchers": "comparison.md"},
        ]
    },
    {
        "Concepts": [
            {"Rounds, first cause, budget, goodput": "concepts.md"},
            {"Architecture": "architecture.md"},
            {"Checkpoints": "checkpoints.md"},
            {"Slow ranks, spikes, corrupted numbers": "health.md"},
            {"Faults": "faults.md"},
            {"Glossary": "glossary.md"},
            {"Protocol of the agent": "protocol.md"},
        ]
    },
    {
        "Reference": [
            {"TrainingJob": "reference/trainingjob.md"},
            {"TrainingSweep": "reference/trainingsweep.md"},
            {"TrainingProfile": "reference/trainingprofile.md"},
            {"Command line": "reference/command-line.md"},
            {"Python API": "reference/python-api.md"},
            {"Exit codes": "reference/exit-codes.md"},
            {"Reasons": "reference/reasons.md"},
            {"Parameters of cvrp": "reference/cvrp.md"},
            {"Parameters of vecrl": "reference/vecrl.md"},
            {"Parameters of lm": "reference/lm.md"},
            {"Parameters of vla": "reference/vla.md"},
            {"Parameters of vlm": "reference/vlm.md"},
            {"Values of the chart": "chart.md"},
        ]
    },
    {
        "Project": [
            {"Changelog": "changelog.md"},
            {"Benchmarks": "benchmarks.md"},
            {"Testing": "testing.md"},
            {"Test bed": "testbed.md"},
            {"Making a release": "release.md"},
            {"Security": "security.md"},
            {"Report a vulnerability": "vulnerabilities.md"},
            {"Contributing": "contributing.md"},
        ]
    },
]


# Sections of all pages of a folder.
FOLDERS = {"Reasons": "reference/reasons/", "Examples": "examples/", "Decisions": "decisions/", "Notebook": "notebook/"}
UNLISTED = ("gitops/",)
"""Pages that only another page links to."""


def navigation(pages: Collection[str]) -> list[dict[str, Any]]:
    """Return the sections of a site with these pages.

    Raises:
        ValueError: a page has no place, or a place has no page.
    """
    sections = [{title: sorted(path for path in pages if path.startswith(folder))} for title, folder in FOLDERS.items()]
    complete = [*NAVIGATION, *sections]
    expected = {path for path in pages if not path.startswith(UNLISTED)}
    if odd := sorted(set(paths(complete)) ^ expected):
        raise ValueError(f"{', '.join(odd)}: a page without a place in hack/site/navigation.py, or a place without one")
    return complete


def paths(navigation: Any) -> Iterator[str]:
    """Yield the path of each page in a navigation."""
    if isinstance(navigation, str):
        yield navigation
    for each in (
        navigation.values() if isinstance(navigation, dict) else navigation if isinstance(navigation, list) else ()
    ):
        yield from paths(each)
