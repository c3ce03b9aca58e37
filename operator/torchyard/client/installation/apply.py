"""Server-side apply of objects of any kind, and the removal of those that an installation no longer has."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.kubernetes.client.api import APPLY_PATCH, METADATA_OF_ALL, REQUEST_SECONDS, Api
from torchyard.kubernetes.client.errors import Conflict, NotFound, Rejected
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.objects import Listed
from torchyard.reconcile.ports import Unavailable

Document = dict[str, Any]
Change = Literal["created", "changed", "unchanged", "deleted", "applied"]
FIELD_MANAGER = "torchyard-install"
_BACKGROUND = {"propagationPolicy": "Background"}
_ESTABLISHED_SECONDS = 30
_LOOK_SECONDS = 0.5


class Resource(NamedTuple):
    """A kind of objects, and where the API server has them."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of the collection that holds it.

        Args:
            namespace: of the object; empty: all namespaces. A kind without namespaces ignores it.
            name: of the object; empty: the collection.
        """
        group = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{group}{within}/{self.plural}" + (f"/{name}" if name else "")


class Applied(NamedTuple):
    """An object, and what happened to it."""

    document: Document
    change: Change
    """`applied`: by Helm, which does not report more."""

    @property
    def title(self) -> str:
        """Kind and name."""
        return titled(self.document)


class Applier:
    """Applies objects with the credentials of the user.

    Args:
        api: the API server.
        force: whether fields that another field manager owns are taken over.
    """

    def __init__(self, api: Api, *, force: bool = False) -> None:
        self.api, self.force = api, force
        self._resources: dict[tuple[str, str], Resource] = {}

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Return where the API server has the objects of a kind.

        Raises:
            TorchYardError: it does not serve the kind.
        """
        if (api_version, kind) not in self._resources:
            group = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                served = _document(await self.api.request("GET", group))["resources"]
            except NotFound:
                served = []
            for each in served:
                if "/" not in each["name"]:
                    resource = Resource(api_version, each["kind"], each["name"], bool(each["namespaced"]))
                    self._resources[api_version, each["kind"]] = resource
        try:
            return self._resources[api_version, kind]
        except KeyError:
            what = f"the API server does not serve {kind} of {api_version}"
            raise TorchYardError(what, "upgrade it to Kubernetes 1.30 or newer", FAILED) from None

    async def current(self, document: Document) -> Document | None:
        """Return the object of the same kind and name that the cluster has; None: it has none."""
        try:
            return _document(await self.api.request("GET", await self._path(document)))
        except NotFound:
            return None

    async def check(self, documents: Iterable[Document]) -> None:
        """Have the API server check every object without storing any, so that nothing is half installed.

        Objects of a namespace that does not exist yet cannot be checked.

        Raises:
            TorchYardError: another field manager owns a field.
            Rejected: a right is missing, or an object is invalid.
        """
        for document in documents:
            try:
                await self._patch(document, {"dryRun": "All"})
            except NotFound as error:
                if error.details.kind != "namespaces":
                    raise

    async def apply(self, document: Document) -> Applied:
        """Create or change one object. Raises what `check` does."""
        before = await self.current(document)
        after = await self._patch(document, {})
        if before is None:
            return Applied(after, "created")
        return Applied(after, "unchanged" if _content(before) == _content(after) else "changed")

    async def create(self, document: Document) -> Applied:
        """Create an object that is never changed afterwards; leave one that exists."""
        before = await self.current(document)
        if before is not None:
            return Applied(before, "unchanged")
        return await self.apply(document)

    async def established(self, definition: Document) -> None:
        """Wait until the API server serves a custom resource.

        Raises:
            TorchYardError: it does not serve it in time.
        """
        conditions: list[Document] = []
        for _ in range(round(_ESTABLISHED_SECONDS / _LOOK_SECONDS)):
            conditions = ((await self.current(definition)) or {}).get("status", {}).get("conditions") or []
            if any((each["type"], each["status"]) == ("Established", "True") for each in conditions):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        said = "; ".join(
            f"{each['type']}: {each.get('message', '')}" for each in conditions if each["status"] == "False"
        )
        what = f"{titled(definition)} is not served after {_ESTABLISHED_SECONDS} s ({said or 'it has no conditions'})"
        raise TorchYardError(what, "run the command again", FAILED)

    async def others(self, documents: Sequence[Document], selector: str) -> list[Document]:
        """Return the objects with some labels that are of the kinds of `documents` but not among them.

        Args:
            documents: objects to leave out; their kinds are looked through.
            selector: labels.
        """
        identities = {identity(document) for document in documents}
        read = msgspec.json.Decoder(Listed[Document]).decode
        found = []
        for api_version, kind in dict.fromkeys((each["apiVersion"], each["kind"]) for each in documents):
            path = (await self.resource(api_version, kind)).path("")
            query = {"labelSelector": selector}
            async for page in pages(self.api, path, read, query, accept=METADATA_OF_ALL, timeout=REQUEST_SECONDS):
                items = page.items or []
                found += [{"apiVersion": api_version, "kind": kind, "metadata": each["metadata"]} for each in items]
        return [each for each in found if identity(each) not in identities]

    async def hand_over(self, current: Document) -> None:
        """Release the fields of an object that Helm applied as well, so that its next change of them is no conflict.

        Fields that only we own would be deleted: an object that Helm did not apply is left as it is.

        Args:
            current: the object as the cluster has it.
        """
        metadata = current["metadata"]
        managers = {(each["manager"], each["operation"]) for each in metadata.get("managedFields") or ()}
        if {(FIELD_MANAGER, "Apply"), ("helm", "Apply")} <= managers:
            identity = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
            document = {"apiVersion": current["apiVersion"], "kind": current["kind"], "metadata": identity}
            await self._patch(document, {})

    async def delete(self, document: Document) -> None:
        """Delete an object, unless it is gone already."""
        with contextlib.suppress(NotFound):
            await self.api.request("DELETE", await self._path(document), params=_BACKGROUND)

    async def _path(self, document: Document) -> str:
        resource = await self.resource(document["apiVersion"], document["kind"])
        return resource.path(document["metadata"].get("namespace", ""), document["metadata"]["name"])

    async def _patch(self, document: Document, options: dict[str, str]) -> Document:
        params = {"fieldManager": FIELD_MANAGER, "force": "true" if self.force else "false", **options}
        try:
            answer = await self.api.request(
                "PATCH", await self._path(document), params=params, body=document, content_type=APPLY_PATCH
            )
        except Rejected as error:
            if error.code == 403:
                raise TorchYardError(*_forbidden(document, error)) from error
            raise
        except Conflict as error:
            fix = "--force-conflicts takes those fields over; their owner may set them again"
            raise TorchYardError(
                f"{titled(document)} is managed by another program, too: {error}", fix, FAILED
            ) from error
        except Unavailable as error:
            raise Unavailable(f"{titled(document)}: {error}") from error
        return _document(answer)


def _forbidden(document: Document, error: Rejected) -> tuple[str, str, int]:
    fix = "installing needs the rights of ClusterRole cluster-admin: use --context with such a user, or ask one"
    return f"you may not install {titled(document)}: {error.message}", fix, FAILED


def _content(document: Document) -> tuple[Any, ...]:
    """Return what differs if the content of an object does.

    The version of a policy changes with each apply, but its generation does not: the API server adds defaults to it.
    """
    metadata = document["metadata"]
    version = metadata.get("generation") or metadata["resourceVersion"]
    return version, metadata.get("labels"), metadata.get("annotations")


def titled(document: Document) -> str:
    """Return kind and name of an object."""
    return f"{document['kind']} {document['metadata']['name']}"


def identity(document: Document) -> tuple[str, str, str]:
    """Return kind, namespace and name of an object."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def _document(answer: bytes) -> Document:
    document: Document = msgspec.json.decode(answer)
    return document
