"""Put the files that are no modules into the wheel: a build hook of Hatchling, which pyproject.toml names.

The repository holds each of them once. An editable installation has none of them: `torchyard.shipped` then finds those
of the checkout.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from pathspec import GitIgnoreSpec

SHIPPED = {"charts/torchyard": "chart", "charts/plain.yaml": "plain.yaml", "examples": "examples"}
"""Paths of the repository, and their names in the folder `torchyard/share` of the wheel."""


class ShippedFiles(BuildHookInterface[Any]):
    """Adds the files when a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files for the builder, which copies them with fixed modes and times.

        Raises:
            FileNotFoundError: the tree that is built from lacks one of them.
        """
        if version == "editable":
            return
        for source, name in SHIPPED.items():
            path = Path(self.root, source)
            if not path.exists():
                raise FileNotFoundError(f"{path} belongs into the wheel and is missing; build from a whole checkout")
            for file in shipped_files(path):
                inside = Path("torchyard/share", name, file.relative_to(path))
                build_data["force_include"][str(file)] = inside.as_posix()


def shipped_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder without those that its .gitignore names: what the examples wrote."""
    if path.is_file():
        yield path
        return
    lists = [file.read_text(encoding="utf-8").splitlines() for file in path.glob(".gitignore")]
    ignored = GitIgnoreSpec.from_lines([".gitignore", "__pycache__/", *(line for each in lists for line in each)])
    for file in sorted(path.rglob("*")):
        if file.is_file() and not ignored.match_file(file.relative_to(path).as_posix()):
            yield file
