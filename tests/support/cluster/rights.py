"""An operator with the rights that the chart gives it, in one namespace: they can be taken away."""

import contextlib
import copy
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import Api

GOLDEN = Path(__file__).parents[2] / "chart/golden/two-namespaces.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "operator"


class Rights:
    """What an account of a namespace may do."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        documents = [each for each in yaml.safe_load_all(GOLDEN.read_text()) if each]
        rules = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in documents if "rules" in each}
        self._anywhere = rules["ClusterRole", "torchyard"]
        self._rules = {name: rules["Role", name] for name in ("torchyard", "torchyard-jobs")}

    @contextlib.asynccontextmanager
    async def given(self) -> AsyncIterator["Rights"]:
        """Bind them to it for the block."""
        for name, rules in self._rules.items():
            await self._put("POST", "roles", name, {"rules": rules})
            await self._put("POST", "rolebindings", name, self._bound("Role", name))
        of_all = f"{RBAC}/clusterrole"
        named = {"metadata": {"name": self._namespace}}
        await self._api.request("POST", f"{of_all}s", body={**named, "rules": self._anywhere})
        try:
            body = {**named, **self._bound("ClusterRole", self._namespace)}
            await self._api.request("POST", f"{of_all}bindings", body=body)
            await until(lambda: self.may("create", "pods"))
            yield self
        finally:
            await self._api.request("DELETE", f"{of_all}bindings/{self._namespace}", body={})
            await self._api.request("DELETE", f"{of_all}s/{self._namespace}", body={})

    async def take(self, *verbs: str) -> None:
        """Take these away as far as pods go; none named: every right to anything of jobs."""
        rules = copy.deepcopy(self._rules["torchyard-jobs"]) if verbs else []
        for rule in rules:
            if rule["resources"] == ["pods"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb not in verbs]
        await self._put("PUT", "roles", "torchyard-jobs", {"rules": rules})
        await until(lambda: self._may_not(verbs[0] if verbs else "delete", "pods"))

    async def give_back(self) -> None:
        """All of them."""
        await self._put("PUT", "roles", "torchyard-jobs", {"rules": self._rules["torchyard-jobs"]})
        await until(lambda: self.may("create", "pods"))

    async def may(self, verb: str, resource: str) -> bool:
        what = {"namespace": self._namespace, "verb": verb, "resource": resource}
        body = {"spec": {"user": self._user, "resourceAttributes": what}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return b'"allowed":true' in await self._api.request("POST", path, body=body)

    async def _may_not(self, verb: str, resource: str) -> bool:
        return not await self.may(verb, resource)

    def kubeconfig(self, file: Path) -> Path:
        """The tests' own, as that account."""
        document = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        for each in document["users"]:
            each["user"]["as"] = self._user
        file.write_text(yaml.safe_dump(document))
        return file

    def _bound(self, kind: str, name: str) -> dict[str, Any]:
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self._namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        return {"subjects": [subject], "roleRef": role}

    async def _put(self, verb: str, what: str, name: str, body: dict[str, Any]) -> None:
        path = f"{RBAC}/namespaces/{self._namespace}/{what}" + (f"/{name}" if verb == "PUT" else "")
        await self._api.request(verb, path, body={"metadata": {"name": name}, **body})
