"""Jobs as they are known while the CRD under them changes: an upgrade brings the CRD before the operator."""

import pytest

from torchyard.cluster.kube.jobs import Jobs

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
    known = Jobs(changed=lambda _key: None, invalid=invalid.append)
    known.hear("ADDED", document(1))
    return known


def test_a_field_that_a_newer_crd_adds_on_reading_takes_no_job_from_its_training(jobs, invalid):
    jobs.hear("MODIFIED", document(2, status={"state": "Running", "round": 3}, newField=True))
    job = jobs.get(KEY)
    assert (job.spec.nodes, job.status.round, job.metadata.resource_version) == (2, 3, "2")
    assert not invalid


def test_a_field_that_somebody_wrote_and_we_do_not_know_is_refused(jobs, invalid):
    jobs.hear("MODIFIED", document(2, generation=2, newField=True))
    assert jobs.get(KEY) is None
    assert "newField" in invalid[-1].problem


def test_a_status_that_cannot_be_read_is_never_taken_for_a_new_job(jobs, invalid):
    jobs.hear("MODIFIED", document(2, status={"round": "three"}, newField=True))
    assert jobs.get(KEY) is None
    assert invalid
