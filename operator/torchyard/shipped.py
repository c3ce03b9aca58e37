"""Files that come with the package and are no modules: the chart, its objects as plain YAML, and the examples.

A wheel has them in the folder `share` (hack/wheel.py puts them there). In a checkout they are at their own places.
"""

from importlib.resources import files
from pathlib import Path

_IN_CHECKOUT = {"chart": "charts/torchyard", "plain.yaml": "charts/plain.yaml", "examples": "examples"}


def chart() -> Path:
    """Return the folder of the Helm chart."""
    return _path("chart")


def plain_manifests() -> Path:
    """Return the file of the objects that the chart installs by default, without its custom resources and its CA."""
    return _path("plain.yaml")


def examples() -> Path:
    """Return the folder of job files and scripts."""
    return _path("examples")


def _path(name: str) -> Path:
    package = Path(str(files("torchyard")))
    inside = package / "share" / name
    return inside if inside.exists() else package.parents[1] / _IN_CHECKOUT[name]
