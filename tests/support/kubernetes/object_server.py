"""An API server in memory for objects of any kind: discovery, lists, watches, creation, merge patches, deletion."""

import asyncio
import itertools
import json

from tests.support.reconcile.world import merged

from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Details, NotFound


class ObjectServer:
    """Answers like `Api`. `served` holds what discovery says, `errors` what the next requests of a verb raise."""

    def __init__(self, *kinds):
        self.served = set(kinds)
        self.objects = {}  # path of the object -> document
        self.calls = []
        self.errors = {}
        self.watches = []
        self._versions = itertools.count(100)

    leading, busy = True, False

    async def request(self, verb, path, *, params=None, body=None, content_type="", accept="", timeout=0, most=0):  # noqa: ASYNC109
        await asyncio.sleep(0)
        if verb != "GET":
            self.calls.append((verb, path))
        if self.errors.get(verb):
            raise self.errors[verb].pop(0)
        return json.dumps(getattr(self, f"_{verb.lower()}")(path, body)).encode()

    async def stream(self, path, params):
        lines = asyncio.Queue()
        since = int(params["resourceVersion"])
        for there, document in list(self.objects.items()):
            if there.rpartition("/")[0] == path and int(document["metadata"]["resourceVersion"]) > since:
                lines.put_nowait(self._line("ADDED", document))
        self.watches.append((path, lines))
        while True:
            yield await lines.get()

    def put(self, path, document, event="MODIFIED"):
        """The object changes, by whomever."""
        metadata = {"uid": f"uid-{next(self._versions)}", **document["metadata"]}
        document = document | {"metadata": metadata | {"resourceVersion": str(next(self._versions))}}
        self.objects[path] = document
        self._tell(path, event, document)
        return document

    def remove(self, path):
        document = self.objects.pop(path)
        document["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell(path, "DELETED", document)

    def _tell(self, path, event, document):
        for watched, lines in self.watches:
            if watched == path.rpartition("/")[0] or watched == self._everywhere(path):
                lines.put_nowait(self._line(event, document))

    @staticmethod
    def _everywhere(path):
        root, _, rest = path.partition("/namespaces/")
        return f"{root}/{rest.split('/')[1]}" if rest else ""

    @staticmethod
    def _line(event, document):
        return json.dumps({"type": event, "object": document}).encode()

    def _get(self, path, _body):
        if path in self.objects:
            return self.objects[path]
        roots = [kind.path().rpartition("/")[0] for kind in self.served]
        if path in roots:
            return {"resources": [{"name": kind.plural} for kind in self.served if kind.path().startswith(f"{path}/")]}
        if any(
            path in {kind.path(), self._everywhere(f"{path}/x")} or path.startswith(kind.path("n")[:-1])
            for kind in self.served
        ):
            items = [
                each
                for there, each in self.objects.items()
                if path in {there.rpartition("/")[0], self._everywhere(there)}
            ]
            return {"metadata": {"resourceVersion": str(next(self._versions))}, "items": items}
        raise NotFound(path, Details())

    def _post(self, path, body):
        there = f"{path}/{body['metadata']['name']}"
        if there in self.objects:
            raise AlreadyExists(there)
        return self.put(there, body, "ADDED")

    def _patch(self, path, body):
        path = path.removesuffix("/status")
        document = self._existing(path, body["metadata"])
        return self.put(path, merged(document, body))

    def _delete(self, path, body):
        self._existing(path, body["preconditions"])
        self.remove(path)
        return {"kind": "Status", "status": "Success"}

    def _existing(self, path, precondition):
        if path not in self.objects:
            raise NotFound(path, Details())
        metadata = self.objects[path]["metadata"]
        for name in ("uid", "resourceVersion"):
            if precondition.get(name) not in {None, metadata[name]}:
                raise Conflict(f"{path}: {name}")
        return self.objects[path]
