"""A file of operator or agent has 40 to 400 lines, or a reason in docs/architecture.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL, LARGE = 40, 400


def test_files_of_unusual_size_have_a_reason():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+\.py)` *\| (above 400|below 40) *\| \S", page, re.MULTILINE))
    found = {}
    for folder in ("operator", "agent"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if path.name != "__init__.py" and not SMALL <= lines <= LARGE:
                found[str(path.relative_to(ROOT))] = "above 400" if lines > LARGE else "below 40"
    assert found == listed
