"""An error of a cluster is one sentence with a next step; what the cluster sends is printed in order."""

import asyncio
import ssl
import subprocess

import pytest
from aiohttp import web
from tests.cli.conftest import EXAMPLES
from tests.support.cli.cluster import JOB, cluster, objects
from tests.support.kubernetes.api_server import refused

from torchyard.api.reasons import Reason
from torchyard.api.resource import read_job
from torchyard.client.errors import TorchYardError
from torchyard.client.explanation import explanation
from torchyard.client.remote.jobs import job_path
from torchyard.client.remote.session import Remote


async def asked(torchyard, answer, *words, tls=None):
    async def said(request):
        return answer(request)

    async with cluster(torchyard, said, tls):
        return await asyncio.to_thread(torchyard, *words)


@pytest.fixture
def untrusted(tmp_path):
    """Return a server whose certificate no authority signed."""
    key, cert = tmp_path / "tls.key", tmp_path / "tls.crt"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    argv = (*made, "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
    subprocess.run(list(map(str, argv)), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


async def test_a_certificate_that_is_not_trusted_is_not_silence(torchyard, untrusted):
    done = await asked(torchyard, objects, "ps", "-n", "team", tls=untrusted)
    assert done.returncode == 1
    assert "the certificate of https://127.0.0.1:" in done.stderr
    assert "is not trusted: self-signed certificate; correct certificate-authority" in done.stderr
    assert "does not answer" not in done.stderr


async def test_a_server_that_is_not_there_does_not_propose_a_doctor_that_cannot_reach_it_either(torchyard):
    async def answer(request):
        return objects(request)

    async with cluster(torchyard, answer):
        pass
    done = await asyncio.to_thread(torchyard, "doctor", "-n", "team")
    assert done.returncode == 1
    assert "is the cluster of context test up, and can it be reached from here?" in done.stderr
    assert "torchyard doctor" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (("ps", "-n", "team"), 'in the namespace "team"', "in namespace team of context test"),
        (("ps", "-A"), "at the cluster scope", "ask for that right in context test"),
    ],
)
async def test_a_right_is_asked_for_where_it_is_missing(torchyard, words, message, fix):
    done = await asked(torchyard, lambda _: refused(403, "Forbidden", f"jane cannot list jobs {message}"), *words)
    assert (done.returncode, done.stderr.rstrip().endswith(fix)) == (1, True), done.stderr


async def test_who_named_a_cluster_is_sent_to_look_at_that_one(torchyard):
    done = await asked(torchyard, lambda _: refused(404, "NotFound"), "ps", "-n", "team", "--context", "test")
    assert done.returncode == 1
    assert "the TrainingJob CRD is not installed in context test" in done.stderr
    assert "`torchyard doctor -n team --context test`" in done.stderr


async def test_events_of_one_second_come_in_the_order_in_which_they_happened(torchyard):
    """Listed by name, which says nothing of time."""

    def event(reason, version):
        return {"metadata": {"resourceVersion": version}, "lastTimestamp": "2026-11-21T07:00:00Z", "reason": reason}

    def answer(request):
        if request.path.endswith("/events"):
            return web.json_response({"items": [event("Failed", "101"), event("RoundOpened", "99")]})
        return objects(request)

    done = await asked(torchyard, answer, "events", "cvrp", "-n", "team", "-o", "yaml")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines() if "reason" in line] == ["RoundOpened", "Failed"]


async def test_what_waits_is_not_explained_by_explaining_it_again(torchyard):
    def answer(request):
        if request.path.endswith("/events"):
            return web.json_response({"items": []})
        return objects(request, "Pending", pods=0)

    done = await asked(torchyard, answer, "explain", "cvrp", "-n", "team")
    assert done.stdout.endswith("next: torchyard wait cvrp -n team --for running\n"), done.stdout


@pytest.mark.parametrize(("claim", "warned"), [(None, True), ("checkpoint.volume={claim: runs}", False)])
async def test_submitting_a_job_that_leaves_nothing_behind_reports_it(torchyard, claim, warned):
    async def answer(request):
        return web.json_response(await request.json())

    words = ("--set", claim) if claim else ()
    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "submit", EXAMPLES / "cvrp.yaml", "-n", "team", *words)
    assert (done.returncode, "are lost with its pods" in done.stderr) == (0, warned), done.stderr


async def test_a_job_comes_from_stdin(torchyard):
    async def answer(request):
        return web.json_response(await request.json())

    job = "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: x}\nspec: {script: pass}\n"
    async with cluster(torchyard, answer):
        process = torchyard.start("submit", "-", "-n", "team", "-o", "json", stdin=subprocess.PIPE)
        shown, said = await asyncio.to_thread(process.communicate, job)
    assert (process.returncode, '"name": "x"' in shown) == (0, True), said


async def test_what_kubectl_printed_can_be_submitted_again(torchyard):
    """The server answers 500 to a resourceVersion in an object that it is to create."""
    sent = []

    async def answer(request):
        sent.append(await request.json())
        return web.json_response(sent[-1])

    printed = "uid: u-1, resourceVersion: '7', generation: 2, creationTimestamp: '2026-11-21T06:55:50Z', labels: {a: b}"
    job = f"apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{name: x, {printed}}}\n"
    (torchyard.folder / "kept.yaml").write_text(job + "spec: {script: pass}\nstatus: {state: Running}\n")
    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "submit", "kept.yaml", "-n", "team")
    assert done.returncode == 0, done.stderr
    assert [each["metadata"] for each in sent] == [{"name": "x", "labels": {"a": "b"}, "namespace": "team"}]


async def test_the_doctor_is_not_content_where_every_pod_is_rejected(torchyard):
    message = "an admission policy of the cluster forbids the pods (no team label); ask the owner of that policy"
    admitted = {"type": "Admitted", "status": "False", "reason": "AdmissionDenied", "message": message}

    def answer(request):
        if request.path.endswith("/trainingjobs"):
            return web.json_response({"items": [{**JOB, "status": {"state": "Pending", "conditions": [admitted]}}]})
        return web.json_response({"items": [], "resources": [], "status": {"allowed": True}, "spec": {"versions": []}})

    done = await asked(torchyard, answer, "doctor", "-n", "team")
    assert done.returncode == 1
    assert f"no pod of job cvrp is created: {message}" in done.stdout + done.stderr
    assert "`torchyard explain cvrp -n team`" in done.stdout + done.stderr


async def test_an_explanation_gives_the_next_step_of_the_reason_with_the_name_of_the_job(torchyard):
    message = "rounds in a row ended without progress (its last words: (no); run this instead); see `torchyard logs`"

    def answer(request):
        if request.path.endswith("/events"):
            return web.json_response({"items": []})
        if request.path.endswith("/cvrp"):
            attempts = [{"round": 1, "reason": "Suspended"}, {"round": 2, "reason": "Completed"}]
            status = {"state": "Failed", "reason": "NoProgress", "message": message, "attempts": attempts}
            return web.json_response({**JOB, "status": status})
        return objects(request, pods=0)

    done = await asked(torchyard, answer, "explain", "cvrp", "-n", "team")
    assert "What to do:\n  fix the cause, see `torchyard logs cvrp -n team`\n" in done.stdout
    assert "Failures so far" not in done.stdout, "no round failed"


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("MaxRestartsExceeded", "check the memory of the node"),  # of the failure that used the last restart up
        ("DeadlineExceeded", "raise it and run the job again"),  # whatever failed before
        ("Killed", "check the memory of the node"),
        ("OfALaterVersion", None),
    ],
)
def test_the_next_step_is_that_of_the_first_cause_where_a_limit_of_restarts_ended_the_job(reason, step):
    attempts = [{"round": 1, "reason": "Killed", "cause": {"class": "Killed"}}]
    job = read_job({**JOB, "status": {"state": "Failed", "reason": reason, "attempts": attempts}})
    steps = [each.lines for each in explanation(job, (), (), "in x", "", 0.0).sections if each.title == "What to do"]
    assert steps == ([(step,)] if step else [])


def test_the_next_step_after_a_pending_timeout_is_that_of_what_the_pods_waited_for():
    more_time = "raise spec.health.pendingTimeout"
    for waited_for, expected in (
        ({"waitedFor": "InsufficientMemory"}, f"{Reason.INSUFFICIENT_MEMORY.next_step}, or {more_time}"),
        ({"waitedFor": "OfAnotherVersion"}, more_time),
        ({}, more_time),
    ):
        status = {"state": "Failed", "reason": "PendingTimeout", "message": "the pods wait", "rendezvous": waited_for}
        job = read_job({**JOB, "status": status})
        assert f"What to do:\n  {expected}\n" in str(explanation(job, (), (), "in x", "", 0.0))


REMOTE = Remote(api=None, namespace="team", context="context test", flags=" -n team")


@pytest.mark.parametrize("name", ["", ".", "..", "cvrp/..", "cvrp/status", "cvrp?x", "cvrp#", "Cvrp", "a b", "%2e%2e"])
def test_an_invalid_name_makes_no_path(name):
    with pytest.raises(TorchYardError, match="is not a valid name of a TrainingJob"):
        job_path(REMOTE, name)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("delete", "", "-n", "team"), "'' is not a valid name of a TrainingJob; `torchyard ps -n team` lists them"),
        (("suspend", "cvrp/..", "-n", "team"), "'cvrp/..' is not a valid name of a TrainingJob"),
        (("delete", "cvrp", "-n", "a/b"), "-n 'a/b' is not a valid name of a namespace"),
    ],
)
async def test_an_invalid_name_reaches_no_server(torchyard, words, says):
    """Of an empty one the path is that of all jobs: deleting it would delete every job of the namespace."""
    seen = []

    def answer(request):
        seen.append((request.method, request.path))
        return web.json_response({})

    done = await asked(torchyard, answer, *words)
    assert (done.returncode, seen) == (64, []), done.stderr
    assert says in done.stderr


async def test_an_unknown_user_is_not_reported_as_a_silent_server(torchyard):
    done = await asked(torchyard, lambda _: refused(401, "Unauthorized", "Unauthorized"), "ps", "-n", "team")
    assert done.returncode == 1
    assert "the API server rejects your credentials" in done.stderr
    assert "log in again" in done.stderr


def test_a_job_of_another_controller_is_not_said_to_lack_an_operator():
    spec = {**JOB["spec"], "managedBy": "kueue.x-k8s.io/multikueue"}
    said = str(explanation(read_job({**JOB, "spec": spec}), (), (), "in namespace team", " -n team", 0.0))
    assert "kueue.x-k8s.io/multikueue runs it (spec.managedBy), not the operator of this cluster." in said
    assert "doctor" not in said
