"""Which gang schedulers the test bed installs, and what it takes of Kueue's webhooks."""

import json

import gang_schedulers
import pytest
from binaries import SCHEDULERS


def test_schedulers_are_a_list_with_commas_and_an_unknown_one_is_named():
    assert gang_schedulers.names("kueue, volcano,") == ("kueue", "volcano")
    assert gang_schedulers.names("") == ()
    with pytest.raises(RuntimeError, match="no slurm here; use kueue,volcano,coscheduling"):
        gang_schedulers.names("kueue,slurm")


def test_every_program_that_a_deployment_runs_is_compiled():
    for name, installation in gang_schedulers.INSTALLATIONS.items():
        compiled = {package.rpartition("/")[2] for package in SCHEDULERS[name].packages}
        assert set(installation.programs) == compiled


def test_only_webhooks_for_kinds_of_kueue_are_taken():
    def webhook(group):
        service = {"name": "webhook-service", "namespace": "system", "path": f"/mutate-{group}"}
        return {"rules": [{"apiGroups": [group]}], "clientConfig": {"service": service}}

    webhooks = [webhook("kueue.x-k8s.io"), webhook("batch")]
    documents = [
        {"kind": f"{kind}WebhookConfiguration", "metadata": {"name": kind}, "webhooks": webhooks}
        for kind in ("Mutating", "Validating")
    ]
    found = gang_schedulers._kueue_webhooks("\n".join(map(json.dumps, documents)), "QQ==")
    assert [each["metadata"]["name"] for each in found] == ["kueue-Mutating", "kueue-Validating"]
    client = {"url": "https://127.0.0.1:9443/mutate-kueue.x-k8s.io", "caBundle": "QQ=="}
    assert [[one["clientConfig"] for one in each["webhooks"]] for each in found] == [[client], [client]]
