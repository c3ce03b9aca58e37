"""Jobs as they are known while the CRD under them changes: an upgrade brings the CRD before the operator."""

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, talking

from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.sweeps import Sweeps
from torchyard.reconcile.ports import Unavailable

KEY = ("team", "job")


def document(version, *, generation=1, status=None, **spec):
    metadata = {
        "name": "job",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": str(version),
        "generation": generation,
    }
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": {"script": "1", "nodes": 2, **spec},
        "status": status or {},
    }


@pytest.fixture
def invalid():
    return []


@pytest.fixture
def jobs(invalid):
    known = Jobs()

    with known.subscribed(lambda key, _after: invalid.append(known.find(key)), invalid=True):
        known.record("ADDED", document(1))
        yield known


def test_a_field_that_a_newer_crd_adds_on_reading_takes_no_job_from_its_training(jobs, invalid):
    jobs.record("MODIFIED", document(2, status={"state": "Running", "round": 3}, newField=True))
    job = jobs.get(KEY)
    assert (job.spec.nodes, job.status.round, job.metadata.resource_version) == (2, 3, "2")
    assert not invalid


def test_an_own_write_that_the_watch_repeats_is_not_decoded(jobs, invalid):
    written = jobs.get(KEY)
    jobs.record("MODIFIED", document(1, status={"round": "three"}))
    assert jobs.get(KEY) is written
    assert not invalid


def test_a_field_that_we_do_not_know_is_rejected(jobs, invalid):
    jobs.record("MODIFIED", document(2, generation=2, newField=True))
    assert jobs.get(KEY) is None
    assert invalid[-1].problem.startswith("spec.newField: unknown to this operator")
    assert "upgrade the operator" in invalid[-1].problem


def test_a_status_that_cannot_be_read_is_never_taken_for_a_new_job(jobs, invalid):
    jobs.record("MODIFIED", document(2, status={"round": "three"}, newField=True))
    assert jobs.get(KEY) is None
    assert invalid


async def test_a_job_that_a_former_crd_reads_as_valid_again_runs(tmp_path, monkeypatch, jobs, invalid):
    """The API server drops on reading what its CRD does not know: no version tells of it."""
    jobs.record("MODIFIED", document(2, generation=2, newField=True))
    assert jobs.get(KEY) is None

    async def answer(request):
        one = document(2, generation=2)
        listed = {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": one["metadata"]}]}
        return web.json_response(listed if request.path.endswith("/trainingjobs") else one)

    async with talking(tmp_path, answer, monkeypatch) as api:
        await jobs.compare(api, [""])
    assert jobs.get(KEY).spec.nodes == 2
    assert len(invalid) == 1


async def test_a_kind_that_is_not_served_for_a_moment_is_not_the_end_of_its_jobs(tmp_path, monkeypatch, jobs):
    """As while a CRD is being replaced: lists may be answered already, and objects not yet."""
    there = {}

    async def answer(request):
        if request.path.endswith("/trainingjobs"):
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})
        return refused(404, "NotFound", "the server could not find the requested resource", details=there)

    async with talking(tmp_path, answer, monkeypatch) as api:
        with pytest.raises(Unavailable, match="not served"):
            await jobs.compare(api, [""])
        assert jobs.get(KEY) is not None
        there = {"name": "job", "group": "torchyard.dev", "kind": "trainingjobs"}
        await jobs.compare(api, [""])
    assert jobs.get(KEY) is None


@pytest.mark.parametrize(("listed", "read"), [((5, "new"), "new"), ((0, "former"), "u")])
async def test_a_new_operator_does_not_begin_with_a_deleted_job_for_one_of_its_name(
    listed, read, tmp_path, monkeypatch, jobs
):
    monkeypatch.setattr("torchyard.kubernetes.cache.jobs.CATCH_UP_SECONDS", 0)
    there = document(listed[0])
    there["metadata"]["uid"] = listed[1]

    async def answer(request):
        many = {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": there["metadata"]}]}
        return web.json_response(many if request.path.endswith("/trainingjobs") else there)

    async with talking(tmp_path, answer, monkeypatch) as api:
        await jobs.caught_up(api, [""])
    assert jobs.get(KEY).metadata.uid == read


async def test_a_sweep_that_the_watch_missed_is_read_without_the_right_to_get_it(tmp_path, monkeypatch):
    sweeps, asked = Sweeps(), []
    there = [
        {
            "metadata": {"name": "tune", "namespace": "team", "uid": "one", "resourceVersion": "7"},
            "spec": {
                "objective": {"metric": "score", "goal": "maximize"},
                "parameters": [{"path": "trainer.params.lr", "choice": [0.1, 0.2]}],
                "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
            },
        }
    ]

    async def answer(request):
        asked.append((request.path.rpartition("/")[2], request.query.get("fieldSelector")))
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": there})

    async with talking(tmp_path, answer, monkeypatch) as api:
        await sweeps.compare(api, ["team"])
        assert sweeps.get(("team", "tune")).metadata.uid == "one"
        assert asked == [("trainingsweeps", None), ("trainingsweeps", "metadata.name=tune")]
        there.clear()
        await sweeps.compare(api, ["team"])
    assert not sweeps.keys()


def test_jobs_are_found_by_their_owner_as_long_as_they_name_it(jobs):
    assert jobs.owned_by("sweep") == []
    for at, owners in enumerate((["sweep"], ["sweep", "other"], ["other"]), start=2):
        changed = document(at)
        changed["metadata"]["ownerReferences"] = [{"uid": uid, "controller": True} for uid in owners]
        jobs.record("MODIFIED", changed)
        found = {uid: jobs.owned_by(uid) for uid in ("sweep", "other")}
        assert found == {uid: [jobs.get(KEY)] if uid in owners else [] for uid in found}
    jobs.record("DELETED", document(5))
    assert jobs.owned_by("other") == []
