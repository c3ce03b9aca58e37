"""Events of jobs: what is worth one, and what was said a moment ago."""

import asyncio

from aiohttp import web
from tests.support.kubernetes.api_server import talking, until

from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.kubernetes.event_recorder import REPEAT_SECONDS, Recorder, document
from torchyard.reconcile.actions import EmitEvent

SILENT = EmitEvent(type="Warning", reason="AgentSilent", message="pods run (cvrp-0-0)")
OTHERS = EmitEvent(type="Warning", reason="AgentSilent", message="pods run (cvrp-0-1)")
TRAINING = EmitEvent(type="Normal", reason="Training", message="steps are being made (round 1)")


def job(version, uid="job-uid"):
    meta = ObjectMeta(name="cvrp", namespace="team", uid=uid, resource_version=str(version))
    return TrainingJob(metadata=meta, spec=TrainingJobSpec())


async def test_a_warning_that_comes_and_goes_is_written_once_a_minute(tmp_path, monkeypatch):
    written, now = [], [1000.0]

    async def answer(request):
        body = await request.json()
        written.append((body["involvedObject"]["uid"], body["reason"], body["message"]))
        return web.json_response({}, status=201)

    async with talking(tmp_path, answer, monkeypatch) as api:
        recorder = Recorder(api, reporter="one", clock=lambda: now[0])
        task = asyncio.create_task(recorder.run())
        for version in range(20):
            recorder.record(job(version), SILENT)
            recorder.record(job(version), TRAINING)
        recorder.record(job(20), OTHERS)
        recorder.record(job(20, uid="another"), SILENT)
        now[0] += REPEAT_SECONDS
        recorder.record(job(21), SILENT)
        await until(lambda: len(written) == 24)
        task.cancel()
    assert written.count(("job-uid", SILENT.reason, SILENT.message)) == 2
    assert written.count(("job-uid", TRAINING.reason, TRAINING.message)) == 20, "a transition each"


def test_an_event_is_one_line_of_text_even_if_names_have_line_breaks():
    event = EmitEvent(type="Normal", reason="BestImproved", message="best: lo\x1b[2Jss\n\u202e0.5\x9b")
    assert document(job(1), event, now=0.0, reporter="one")["message"] == "best: loss 0.5"
