"""`torchyard diff`: what differs between two runs, and nothing else."""

import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB
from tests.support.kubernetes.api_server import kubeconfig, serving

import torchyard as ty
from torchyard.cli.main import main

STATUS = {
    "state": "Succeeded",
    "progress": {"step": 100},
    "metrics": {"loss": 0.5, "cost": 4.0},
    "devices": {"cuda:0 NVIDIA H100": "0-1"},
    "startTime": "2026-11-21T07:00:00Z",
    "completionTime": "2026-11-21T07:01:00Z",
    "environment": "d1",
}
RECORD = {
    "schema": 1,
    "python": "3.12.1",
    "packages": {"torch": "2.15.0", "numpy": "2.2.0"},
    "code": {"commit": "abc", "files": {"train.py": "11", "model.py": "22"}},
    "machine": {"cpus": 8, "driver": "550.1"},
}
SCRIPT = "import torch\nlr = {lr}\nprint(lr)\n"


def run(home, name, spec, status=STATUS, record=RECORD):
    """A run of this machine that is over, with the files of a real one."""
    folder = home / "runs" / name
    (folder / "checkpoints").mkdir(parents=True)
    job = {
        "apiVersion": JOB["apiVersion"],
        "kind": "TrainingJob",
        "metadata": {"name": name, "uid": name},
        "spec": spec,
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    (folder / "status.json").write_text(
        json.dumps({"metadata": {"name": name, "namespace": "default", "uid": name}, "status": status})
    )
    if record is not None:
        text = record if isinstance(record, str) else json.dumps(record)
        (folder / "checkpoints" / "environment.json").write_text(text)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return tmp_path


def spec(lr=1, **fields):
    return {"script": SCRIPT.format(lr=lr), "nodes": 2, "env": [{"name": "TOKEN", "value": f"secret{lr}"}], **fields}


def test_every_section_shows_its_differences(home, capsys):
    run(home, "one", spec())
    status = {**STATUS, "metrics": {"loss": 0.25, "gap": 1.5}, "environment": "d2", "restarts": {"total": 1}}
    record = {
        **RECORD,
        "packages": {"torch": "2.16.0", "einops": "1.0"},
        "code": {"commit": "abc", "files": {"train.py": "12", "model.py": "22"}},
        "machine": {"cpus": 2, "driver": "550.1"},
    }
    run(home, "two", spec(lr=2, nodes=4, checkpoint={"keepLast": 5}), status, record)
    found = ty.diff("one", "two")
    assert {(each.section, each.name, each.left, each.right) for each in found.differences if not each.lines} == {
        ("specification", "nodes", 2, 4),
        ("specification", "checkpoint.keepLast", None, 5),
        ("code", "train.py", "11", "12"),
        ("packages", "torch", "2.15.0", "2.16.0"),
        ("packages", "numpy", "2.2.0", None),
        ("packages", "einops", None, "1.0"),
        ("machine", "cpus", 8, 2),
        ("result", "restarts", 0, 1),
        ("metrics", "loss", 0.5, 0.25),
        ("metrics", "cost", 4.0, None),
        ("metrics", "gap", None, 1.5),
    }
    (script,) = [each for each in found.differences if each.lines]
    assert script.lines == ("@@ -1,3 +1,3 @@", " import torch", "-lr = 1", "+lr = 2", " print(lr)")
    assert main(["diff", "one", "two"]) == 0
    text = capsys.readouterr().out
    assert "packages:\n  torch: 2.15.0 -> 2.16.0\n  numpy: 2.2.0 -> (none)\n" in text
    assert "secret" not in text + str(found)
    assert main(["diff", "one", "two", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["left"], document["right"], document["notes"]) == ("one", "two", [])
    assert len(document["differences"]) == 12


def test_runs_that_are_the_same_do_not_differ(home, capsys):
    run(home, "one", spec())
    run(home, "two", spec(), record=None)  # their digests are equal: the record is not needed
    found = ty.diff(ty.get_job("one"), "two")
    assert (bool(found), found.notes) == (False, ())
    assert main(["diff", "one", "two"]) == 0
    assert capsys.readouterr().out == "one and two do not differ\n"


@pytest.mark.parametrize("record", [None, "[1", "[]", '{"packages": 3, "code": {"files": 7}, "machine": "x"}'])
def test_a_record_that_is_missing_or_odd_is_noted_and_the_rest_is_compared(home, record):
    run(home, "one", spec())
    run(home, "two", spec(nodes=3), {**STATUS, "environment": ""}, record)
    found = ty.diff("one", "two")
    assert ("specification", "nodes") in {(each.section, each.name) for each in found.differences}
    if record is None or not record.startswith("{"):
        assert found.notes == ("two has no record of its code and packages",)


def test_long_texts_of_a_stranger_are_not_compared_line_by_line(home, capsys):
    """These two would take difflib minutes."""
    texts = ["\n".join(str(number * factor % 251) for number in range(120_000)) for factor in (7, 11)]
    for name, text in zip(("one", "two"), texts, strict=True):
        run(home, name, spec(), {**STATUS, "environment": name}, {**RECORD, "packages": {"odd": text}})
    assert main(["diff", "one", "two"]) == 0
    assert "  odd:\n    120000 and 120000 lines, which differ from line 2 on\n" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_named(home, capsys):
    run(home, "one", spec())
    assert main(["diff", "one", "tow"]) == 64
    assert "there is no run 'tow'" in capsys.readouterr().err


async def test_jobs_of_a_cluster_with_equal_digests_need_no_pod(home, monkeypatch):
    asked = []

    async def answer(request):
        asked.append(request.path.rpartition("/")[2])
        name = asked[-1]
        return web.json_response({**JOB, "metadata": {**JOB["metadata"], "name": name}, "status": STATUS})

    async with serving(answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home, url, namespace="team")))
        found = await ty.aio.diff("one", "two", namespace="team")
    assert (asked, found.differences, found.notes) == (["one", "two"], (), ())
