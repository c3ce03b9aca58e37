"""`make scan` fails for a finding without an answer, an answer without a finding, and a scanner that read nothing."""

import json

import pytest
from hack import scan

ANSWERED = (
    "| Check | Object | Answer |\n| -- | -- | -- |\n| CKV_K8S_1, kube-score: `a-check` | operator, test pod | - |\n"
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Programs of the scanners' names that print a report."""
    monkeypatch.setattr(scan, "ANSWERS", tmp_path / "security.md")
    monkeypatch.setattr(scan, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    scan.ANSWERS.write_text(ANSWERED)

    def install(scores, failed, passed=3):
        checks = {"passed": passed, "parsing_errors": 0}
        failures = [{"check_id": check, "resource": f"Pod.x.{name}"} for check, name in failed]
        reports = {
            "helm": "",
            "kube-score": json.dumps(scores),
            "checkov": json.dumps({"summary": checks, "results": {"failed_checks": failures}}),
        }
        for name, report in reports.items():
            (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\n")
            (tmp_path / name).chmod(0o755)

    return install


def scored(name, grade):
    check = {"check": {"id": "a-check"}, "skipped": False, "grade": grade}
    return {"object_meta": {"name": name}, "checks": [check]}


BOTH = [scored("torchyard", 1), scored("torchyard-test", 5)]
CHECKED = [("CKV_K8S_1", "torchyard"), ("CKV_K8S_1", "torchyard-test")]


@pytest.mark.parametrize(
    ("scores", "failed", "said"),
    [
        (BOTH, CHECKED, ""),
        (BOTH, [*CHECKED, ("CKV_K8S_2", "torchyard")], "CKV_K8S_2 of operator is not answered"),
        ([*BOTH, scored("torchyard-intake", 1)], CHECKED, "a-check of intake is not answered"),
        ([scored("torchyard", 1), scored("torchyard-test", 10)], CHECKED, "a-check of test pod is answered, and not"),
    ],
)
def test_findings_and_answers_are_the_same(tools, capsys, scores, failed, said):
    tools(scores, failed)
    assert scan.main() == (1 if said else 0)
    error = capsys.readouterr().err
    assert said in error if said else not error


@pytest.mark.parametrize(("scores", "passed"), [([], 3), (BOTH, 0)])
def test_a_scanner_that_read_nothing_fails(tools, scores, passed):
    tools(scores, CHECKED, passed)
    with pytest.raises(ValueError, match=r"no object|no check"):
        scan.main()
