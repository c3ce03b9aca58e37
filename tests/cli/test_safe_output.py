"""No command hands what a job wrote to the terminal as it is: one filter, tried with every command."""

import asyncio
import io
import json
import logging
import re
import shlex

import msgspec
import pytest
from aiohttp import web
from rich.table import Table
from tests.support.cli.cluster import JOB, cluster, pod

from torchyard.api.curves import with_point
from torchyard.api.status import Curve, TrainingJobStatus
from torchyard.app.log_format import FORMAT, SafeFormatter
from torchyard.cli.main import COMMANDS
from torchyard.cli.output import SafeStream, console, escaped

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202eevil[/x][link=file:///x]:bomb:\r\x00"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What each command is asked; None: it prints nothing from outside, or never ends.
WORDS = {
    "run": f"run {EVIL}",
    "submit": f"submit {EVIL}",
    "push": f"push . {EVIL}",
    "validate": f"validate evil.yaml {EVIL}",
    "plan": f"plan {EVIL}",
    "ps": "ps -n team",
    "status": "status cvrp -n team",
    "explain": "explain cvrp -n team",
    "logs": "logs cvrp -n team",
    "events": "events cvrp -n team",
    "curves": "curves cvrp -n team",
    "diff": "diff cvrp cvrp -n team",
    "wait": "wait cvrp --timeout 1s -n team",
    "fetch": "fetch cvrp -n team",
    "stacks": "stacks cvrp -n team",
    "profile": "profile cvrp -n team",
    "stop": f"stop {EVIL}",
    "suspend": "suspend cvrp -n team",
    "resume": "resume cvrp -n team",
    "scale": "scale cvrp --nodes 2 -n team",
    "rm": f"rm {EVIL}",
    "delete": "delete cvrp -n team",
    "gpus": f"gpus --match {EVIL}",
    "chat": f"chat {EVIL}",
    "dataset": f"dataset inspect {EVIL}",
    "sweep": f"sweep show {EVIL}",
    "init": f"init --to {EVIL} {EVIL}.py",
    "install": "install --no-helm",
    "uninstall": "uninstall",
    "doctor": "doctor -n team",
    "demo": None,
    "ui": None,
    "top": None,
    "operator": f"operator --qps {EVIL}",
    "crd": "crd",
    "schema": "schema",
    "completion": f"completion {EVIL}",
    "version": f"version {EVIL}",
}


def spoiled(value):
    """The same document with something odd at the end of each text that is shown."""
    if isinstance(value, dict):
        kept = {"kind", "apiVersion", "name", "uid", "namespace", "phase", "type", "status", "state", "time"}
        return {
            key: child if key in kept and isinstance(child, str) else spoiled(child) for key, child in value.items()
        }
    if isinstance(value, list):
        return [spoiled(child) for child in value]
    return value + EVIL if isinstance(value, str) else value


STATUS = {
    "state": "Running",
    **spoiled({"reason": "Training", "message": "it trains"}),
    "round": 1,
    "attempts": [spoiled({"round": 1, "reason": "Killed", "message": "x", "lines": ["a line"], "host": "h"})],
    "conditions": [{"type": "Stalled", "status": "True", **spoiled({"reason": "X", "message": "y"})}],
    "warnings": [f"a warning {EVIL}"],
    "metrics": {f"loss{EVIL}": 1.0},
    "curves": {f"loss{EVIL}": msgspec.to_builtins(with_point(Curve(), 3, 1.0, 1))},
}


LABELS = {"app.kubernetes.io/instance": EVIL, "app.kubernetes.io/managed-by": EVIL}
FIXED = {
    "version": {"gitVersion": EVIL},
    "deployments": {"items": [{"metadata": {"name": EVIL, "namespace": EVIL, "labels": LABELS}}]},
}


async def hostile(request):
    """A cluster of which every answer has sequences in it."""
    path = request.path
    if path.endswith("/log"):
        return web.Response(text=f"2026-11-21T10:00:00Z [rank 0] a line {EVIL}\n")
    if path.endswith("/exec"):
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x02" + EVIL.encode())
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Failure", "message": EVIL}).encode())
        await socket.close()
        return socket
    if path.endswith("/events"):
        event = {"metadata": {"resourceVersion": "1"}, "type": "Warning", **spoiled({"reason": "A", "message": "b"})}
        return web.json_response({"items": [event]})
    job = {**JOB, "status": STATUS}
    if path.endswith("/trainingjobs"):
        return web.json_response({"items": [job]})
    if path.endswith("/cvrp"):
        return web.json_response(job)
    if (answer := FIXED.get(path.rpartition("/")[2])) is not None:
        return web.json_response(answer)
    if path.endswith("/pods"):
        leader = {"metadata": spoiled({"name": "a", "namespace": "b"}) | {"name": f"a{EVIL}", "namespace": f"b{EVIL}"}}
        leader |= {"spec": {"containers": [{"image": EVIL}]}}
        return web.json_response({"items": [leader] if "leader" in request.query_string else [pod(0)]})
    return web.json_response({"items": [], "resources": [], "status": {"allowed": True}, "spec": {"versions": []}})


def test_every_command_is_tried():
    assert WORDS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name, words in WORDS.items() if words is not None])
async def test_no_command_prints_what_a_terminal_would_obey(torchyard, name):
    spec = {"script": "1", f"x{EVIL}": EVIL}
    document = {"apiVersion": JOB["apiVersion"], "kind": "TrainingJob", "metadata": {"name": EVIL}, "spec": spec}
    (torchyard.folder / "evil.yaml").write_text(json.dumps(document))
    words = [word.replace("\x00", "") for word in shlex.split(WORDS[name].replace("\r", ""))]
    async with cluster(torchyard, hostile):
        done = await asyncio.to_thread(torchyard, *words)
    said = done.stdout + done.stderr
    assert said, "it says something"
    assert not OBEYED.findall(said), repr(said)
    assert "Traceback" not in said
    assert "MarkupError" not in said


def test_a_value_of_a_parameter_is_text_and_no_markup(capsys):
    table = Table("name")
    for value in ("[/INST]", "[link=file:///etc/passwd]click[/link]", "[red]x", ":bomb:"):
        table.add_row(value)
    console(force_terminal=True, width=80).print(table)
    said = capsys.readouterr().out
    assert "[/INST]" in said
    assert "[link=file:///etc/passwd]click[/link]" in said
    assert ":bomb:" in said
    assert "\x1b]8" not in said


async def test_machine_output_is_exact(torchyard):
    async with cluster(torchyard, hostile):
        done = await asyncio.to_thread(torchyard, "status", "cvrp", "-n", "team", "-o", "json")
    assert not OBEYED.findall(done.stdout)
    assert json.loads(done.stdout)["status"]["message"] == f"it trains{EVIL}"


def test_the_stream_keeps_text_lines_and_tabs():
    stream = io.StringIO()
    SafeStream(stream).writelines(["a\tb\n", f"Zürich \U0001f600{EVIL}\n", "\x1b[31mred\x1b[0m\n"])
    assert stream.getvalue() == "a\tb\nZürich \U0001f60031mevil[/x][link=file:///x]:bomb:\nred\n"


def test_a_character_that_the_terminal_lacks_is_a_question_mark():
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    stream.write("a\u00fc\ud800b")
    assert raw.getvalue() == b"a??b"


def test_json_keeps_what_is_taken_out_as_escapes():
    assert json.loads(escaped(json.dumps({"a": EVIL}, ensure_ascii=False))) == {"a": EVIL}


def test_a_record_of_the_operators_log_is_one_line_whatever_a_job_wrote():
    record = logging.LogRecord("torchyard", logging.WARNING, "", 0, "%s: %s", (f"team{EVIL}", "a\nERROR forged"), None)
    line = SafeFormatter(FORMAT).format(record)
    assert "\n" not in line
    assert not OBEYED.findall(line)
    assert "\\x1b[2J" in line
    assert "a\\nERROR forged" in line


def test_a_traceback_in_the_log_keeps_its_lines():
    with pytest.raises(ValueError, match="evil") as raised:
        int(EVIL)
    record = logging.LogRecord("torchyard", logging.ERROR, "", 0, "failed", (), raised._excinfo)
    text = SafeFormatter(FORMAT).format(record)
    assert len(text.splitlines()) > 2
    assert not OBEYED.findall(text)


def test_the_status_has_no_field_that_this_does_not_spoil():
    assert STATUS.keys() <= set(TrainingJobStatus.__struct_encode_fields__)
