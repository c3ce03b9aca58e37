"""Whose a pod is: decided by what no user can edit."""

import pytest
from tests.support.kubernetes.pod_json import pod, seen

JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "cvrp",
    "uid": "job-uid",
    "controller": True,
}


def test_index_and_incarnation_come_from_the_name_that_cannot_be_edited():
    document = pod(metadata={"labels": {"torchyard.dev/index": "7", "torchyard.dev/job": "another"}})
    found = seen(document)
    assert (found.job_name, found.job_uid, found.pod.incarnation, found.pod.index) == ("cvrp", "job-uid", 0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": []},
        {"ownerReferences": [JOB | {"controller": False}]},
        {"ownerReferences": [JOB | {"apiVersion": "evil.example.com/v1alpha1"}]},
        {"ownerReferences": [JOB | {"apiVersion": "v1"}]},
        {"ownerReferences": [JOB | {"uid": ""}]},
        {"ownerReferences": [JOB | {"kind": "Job"}]},
        {"name": "cvrp"},
        {"name": "cvrp-0"},
        {"name": "cvrp-0-x"},
        {"name": "other-0-1"},
        {"name": "cvrp--1-1"},
    ],
)
def test_a_pod_that_no_job_of_ours_would_have_made_is_not_ours(change):
    assert seen(pod(metadata=change)) is None
