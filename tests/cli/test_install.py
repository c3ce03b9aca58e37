"""`torchyard install` without Helm writes what is missing, in an order that works, and names what prevents it."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB, cluster
from tests.support.kubernetes.api_server import refused

from torchyard.client.installation.existing import by_namespace
from torchyard.client.installation.manifests import definitions, operator_objects
from torchyard.client.installation.rollout import LEADER, progress_of

NAMESPACE = "torchyard-system"
LABELS = {"app.kubernetes.io/managed-by": "torchyard-install", "app.kubernetes.io/instance": "torchyard"}


class Server:
    """Keeps objects as an API server does: by path, with a version that changes with their content."""

    def __init__(self, *, forbidden=""):
        self.objects, self.writes, self.forbidden = {}, [], forbidden
        self.plurals = {}
        for each in [*definitions(), *operator_objects(NAMESPACE)]:
            self.plurals.setdefault(each["apiVersion"], {})[each["kind"]] = "namespace" in each["metadata"]
        self.plurals["v1"] |= {"Namespace": False, "Secret": True}

    async def answer(self, request):
        api, *rest = request.path.removeprefix("/apis/").removeprefix("/api/").split("/")
        api_version = api if request.path.startswith("/api/") else f"{api}/{rest.pop(0)}"
        if api_version.startswith("torchyard.dev"):
            return web.json_response({"metadata": {}, "items": [JOB] if rest[-1] == "trainingjobs" else []})
        kinds = self.plurals.get(api_version, {})
        if not rest:
            resources = [{"name": plural(kind), "kind": kind, "namespaced": each} for kind, each in kinds.items()]
            return web.json_response({"resources": resources})
        return await self.of_object(request, rest)

    async def of_object(self, request, rest):
        path = request.path
        if request.method == "PATCH":
            document = await request.json()
            if document["kind"] == self.forbidden:
                return refused(403, "Forbidden", f'User "eve" cannot patch {self.forbidden}')
            self.writes.append((document["kind"], "dryRun" in request.query))
            content = json.dumps(document, sort_keys=True)
            version = str(hash(content))
            metadata = document["metadata"] | {"resourceVersion": version, "uid": path}
            status = {"conditions": [{"type": "Established", "status": "True"}]}
            stored = document | {"metadata": metadata, "status": status}
            if "dryRun" not in request.query:
                self.objects[path] = stored
            return web.json_response(stored)
        if request.method == "DELETE" and path in self.objects:
            self.writes.append((self.objects.pop(path)["kind"], "deleted"))
            return web.json_response({})
        if path in self.objects:
            return web.json_response(self.objects[path])
        if rest[-1] in {plural(kind) for kinds in self.plurals.values() for kind in kinds}:
            wanted = dict(each.split("=") for each in request.query.get("labelSelector", "").split(",") if each)
            collection = path.rpartition("/")[2]
            items = [
                each
                for key, each in self.objects.items()
                if key.split("/")[-2] == collection
                and wanted.items() <= each["metadata"].get("labels", {}).items()
            ]  # fmt: skip
            return web.json_response({"metadata": {}, "items": items})
        return refused(404, "NotFound", "not found", details={"kind": rest[-2], "name": rest[-1]})

    def names(self):
        return {(each["kind"], each["metadata"]["name"]) for each in self.objects.values()}


def plural(kind):
    return kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"


@pytest.fixture
def line(torchyard):
    torchyard.env["PATH"] = "/usr/bin:/bin"  # no Helm
    return torchyard


async def test_a_second_installation_changes_nothing_and_an_upgrade_deletes_what_is_left_over(line):
    server = Server()
    async with cluster(line, server.answer):
        first = await asyncio.to_thread(line, "install", "--no-wait", "-o", "json")
        assert first.returncode == 0, first.stderr
        assert {each["change"] for each in json.loads(first.stdout)["objects"]} == {"created"}
        real = [kind for kind, dry in server.writes if not dry]
        assert real[:5] == ["Namespace", *["CustomResourceDefinition"] * 3, "Secret"]
        assert "tls.key" not in first.stdout + first.stderr
        authority = next(each for each in server.objects.values() if each["kind"] == "Secret")
        server.objects["/api/v1/namespaces/torchyard-system/services/old"] = {
            "kind": "Service", "metadata": {"name": "old", "namespace": NAMESPACE, "labels": LABELS}
        }  # fmt: skip
        second = await asyncio.to_thread(line, "install", "--no-wait", "-o", "json")
    changes = {(each["name"], each["change"]) for each in json.loads(second.stdout)["objects"]}
    assert {change for name, change in changes if name != "old"} == {"unchanged"}
    assert ("old", "deleted") in changes
    assert authority in server.objects.values()


async def test_a_missing_right_is_named_before_anything_is_written(line):
    server = Server(forbidden="ClusterRole")
    async with cluster(line, server.answer):
        done = await asyncio.to_thread(line, "install", "--no-wait")
    assert done.returncode == 1
    assert 'you may not install ClusterRole torchyard-view: User "eve" cannot patch ClusterRole' in done.stderr
    assert not server.objects


async def test_uninstall_keeps_jobs_resources_and_ca_and_deletes_them_only_when_confirmed(line):
    server = Server()
    async with cluster(line, server.answer):
        await asyncio.to_thread(line, "install", "--no-wait")
        done = await asyncio.to_thread(line, "uninstall")
        assert done.returncode == 0, done.stderr
        assert "what remains: 1 job in namespace team; their pods continue to train" in done.stderr
        left = {kind for kind, _ in server.names()}
        assert left == {"Namespace", "CustomResourceDefinition", "Secret"}
        asked = await asyncio.to_thread(line, "uninstall", "--delete-jobs")
        assert asked.returncode == 64
        assert "add --yes to confirm" in asked.stderr
        assert {kind for kind, _ in server.names()} == left
        done = await asyncio.to_thread(line, "uninstall", "--delete-jobs", "--yes")
    assert done.returncode == 0, done.stderr
    assert not server.objects


async def test_what_helm_manages_is_left_to_helm(line):
    server = Server()
    async with cluster(line, server.answer):
        await asyncio.to_thread(line, "install", "--no-wait")
        for each in server.objects.values():
            each["metadata"].get("labels", {})["app.kubernetes.io/managed-by"] = "Helm"
        for command in ("install", "uninstall"):
            done = await asyncio.to_thread(line, command)
            assert done.returncode == 1
            assert "release torchyard in namespace torchyard-system is managed by Helm; install Helm" in done.stderr
        elsewhere = await asyncio.to_thread(line, "install", "-n", "elsewhere")
    assert "an operator runs in namespace torchyard-system already" in elsewhere.stderr


def test_a_namespace_is_a_name(line):
    for name in ("a/../b", "x: y", "A", "a" * 64):
        done = line("install", "--dry-run", "-n", name)
        assert done.returncode == 64
        assert "is not a valid name: use lower-case letters" in done.stderr


def test_values_need_helm(line):
    done = line("install", "--set", "replicas=2")
    assert done.returncode == 64
    assert done.stderr.startswith("torchyard: --set needs Helm, which is not on PATH; install Helm (")


def pod(**fields):
    return {"metadata": {"name": "torchyard-0", "namespace": NAMESPACE, "labels": {}}, "status": fields}


def waiting(reason, message=""):
    status = {"name": "operator", "image": "ghcr.io/x:1", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(phase="Pending", containerStatuses=[status])


def crashed(code, message):
    ended = {"terminated": {"exitCode": code, "message": message}}
    return pod(phase="Running", containerStatuses=[{"name": "operator", "state": {"running": {}}, "lastState": ended}])


@pytest.mark.parametrize(
    ("pods", "conditions", "problem"),
    [
        ([waiting("ContainerCreating")], [], ""),
        (
            [waiting("ErrImagePull", "manifest unknown")],
            [],
            "the image of the operator cannot be pulled (not found: gh",
        ),
        (
            [crashed(1, "torchyard: no CRD\n")],
            [],
            "container operator of pod torchyard-0 ended with exit code 1: torchy",
        ),
        ([], [("ReplicaFailure", "exceeded quota: pods")], "its pods are not created: exceeded quota: pods"),
    ],
    ids=["starting", "image", "crash", "quota"],
)
def test_what_prevents_the_operator_from_leading_is_named(pods, conditions, problem):
    status = {"conditions": [{"type": kind, "status": "True", "message": text} for kind, text in conditions]}
    progress = progress_of({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status}, pods)
    assert not progress.done
    assert problem in progress.problem
    assert bool(progress.problem) == bool(problem)


def test_an_upgrade_is_done_when_the_new_pods_lead():
    ready = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    leader = ready | {"metadata": ready["metadata"] | {"labels": {LEADER: "true"}}}
    status = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status}
    assert progress_of(deployment, [leader]).done
    assert not progress_of(deployment, [ready]).done
    assert not progress_of(deployment | {"status": status | {"replicas": 2}}, [leader]).done
    assert not progress_of(deployment | {"status": status | {"observedGeneration": 1}}, [leader]).done


def test_jobs_are_counted_by_namespace():
    objects = [("trainingsweeps", "a", "s"), ("trainingjobs", "a", "x"), ("trainingjobs", "a", "y")]
    assert by_namespace(objects) == "2 jobs in namespace a, 1 sweep in namespace a"
