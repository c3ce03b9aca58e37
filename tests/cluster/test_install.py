"""`torchyard install` on a real cluster: a job trains on while Helm takes the operator over, and after an uninstall."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.cli.conftest import EXECUTABLE
from tests.cluster.test_helm import HELM, LONG_JOB, Installation
from tests.support.cluster.namespaces import fresh_namespace
from tests.support.cluster.operators import AGENT_IMAGE, TRAINER_IMAGE

pytestmark = [pytest.mark.alone, pytest.mark.skipif(HELM is None, reason="no helm: `make kind-up` builds one")]
POLICIES = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    "?labelSelector=app.kubernetes.io/instance=torchyard"
)
IMAGES = ("--image", AGENT_IMAGE, "--trainer-image", TRAINER_IMAGE)


@pytest.fixture
def torchyard(namespace, kubeconfig):
    """What runs the command line, with Helm on PATH or without, and returns its exit code and its messages."""

    async def run(*words, helm=False, code=0):
        path = os.pathsep.join([*([str(Path(HELM).parent)] if helm else []), os.defpath])
        process = await asyncio.create_subprocess_exec(
            *(EXECUTABLE, *words, "-n", namespace),
            env={**os.environ, "PATH": path, "KUBECONFIG": kubeconfig},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == code, said.decode()
        return said.decode()

    return run


@pytest.fixture
async def team(api):
    """The namespace of the job: the policies keep jobs out of the operator's."""
    async with fresh_namespace(api) as name:
        yield Installation(api, name)


async def test_a_job_trains_on_while_helm_takes_over_an_installation_without_it(api, namespace, team, torchyard):
    place = Installation(api, namespace)
    try:
        # The custom resources belong to the tests, with other fields than ours after an upgrade of one of them.
        said = await torchyard("install", *IMAGES, "--force-conflicts")
        assert " leads\n" in said
        again = await torchyard("install", *IMAGES)
        assert "objects, " in again
        assert " changed\n" not in again
        await api.request("POST", team.jobs, body=LONG_JOB)
        await team.trains_on()
        same, authority = await team.identity(), await place.secret("torchyard-ca")

        await torchyard("install", *IMAGES, "--set", "replicas=2", "--force-conflicts", helm=True)
        assert len(await place.operators()) == 2
        assert await place.secret("torchyard-ca") == authority
        await team.trains_on()
        assert await team.identity() == same
        await torchyard("install", "--set", "log.format=json", helm=True)  # without a conflict
        assert await team.identity() == same
        assert "managed by Helm" in await torchyard("install", code=1)
    finally:
        said = await torchyard("uninstall", helm=True)
    assert f"1 job in namespace {team.namespace}" in said
    assert await team.identity() == same
    assert json.loads(await api.request("GET", POLICIES))["items"] == []
