"""docs/faults.md is true as far as a machine can tell: its entries, its reasons, its tests and its counts.

So are the attacks of docs/security.md.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from torchyard.api.reasons import Reason
from torchyard.sweeps.status import SweepReason

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
ENTRIES = {"A": 12, "B": 16, "C": 9, "D": 27, "E": 16, "F": 17, "G": 12, "H": 22, "I": 11, "J": 16}
ABSENT = "cannot be handled"


class Row(NamedTuple):
    """One line of a table."""

    entry: str
    fault: str
    reason: str
    read: str
    shown: str


ROWS = [
    Row(*(cell.strip() for cell in line.strip("|").split("|")))
    for line in PAGE.splitlines()
    if re.match(r"\| [A-J]\d", line)
]
SHOWN = [row for row in ROWS if row.shown != ABSENT]


def test_every_entry_has_one_row_in_its_order():
    assert [row.entry for row in ROWS] == [f"{group}{n}" for group, last in ENTRIES.items() for n in range(1, last + 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.entry)
def test_a_row_says_what_is_read(row):
    assert row.fault
    assert row.read
    if row.entry.startswith("J"):  # sweeps have reasons of their own, without a sentence for all of their uses
        assert set(re.findall(r"`(\w+)`", row.reason)) <= set(SweepReason)
        return
    assert set(re.findall(r"`(\w+)`", row.reason)) <= set(Reason)
    for code in re.findall(r"`(\w+)`", row.reason):
        cause = Reason(code).sentence
        assert row.shown == ABSENT or cause in row.read or row.read.startswith("the same"), f"{code}: {cause}"


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.entry)
def test_what_shows_it_exists(row):
    places = re.findall(r"`([\w/.]+\.py)(?:::(\w+))?`", row.shown)
    assert places
    for file, test in places:
        assert file.startswith("benchmarks/") or test in _tests(ROOT / "tests" / file), f"{file}::{test}"
        assert test or (ROOT / file).is_file()


def test_every_attack_of_the_review_has_a_test_that_exists():
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    attacks = re.findall(r"^\| (\d+)\. [^|]+\| ([^|]+)\|$", page, re.MULTILINE)
    assert [int(number) for number, _ in attacks] == list(range(1, 14))
    for _, cell in attacks:
        places = re.findall(r"`([\w/.]+\.py)::(\w+)`", cell)
        assert places
        for file, test in places:
            assert test in _tests(ROOT / "tests" / file), f"{file}::{test}"


def test_every_test_that_the_threat_model_names_exists():
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    places = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(places) > 50
    assert [f"{file}::{test}" for file, test in places if test not in _tests(ROOT / "tests" / file)] == []


def test_the_counts_are_those_of_the_rows():
    absent = [row.entry for row in ROWS if row.shown == ABSENT]
    counts = f"**{len(SHOWN)} of {len(ROWS)} faults are right**, and a test shows each"
    assert f"{counts}. {', '.join(absent)} cannot be handled" in " ".join(PAGE.split())


@cache
def _tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
