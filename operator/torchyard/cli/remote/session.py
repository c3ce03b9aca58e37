"""Which cluster and namespace a command speaks to, and what that cluster's refusals mean to a person."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from torchyard.cli.errors import FAILED, RefusalError
from torchyard.cluster.kube.client import Api, connected
from torchyard.cluster.kube.errors import Conflict, Gone, NotFound, Rejected
from torchyard.engine.ports import Unavailable

T = TypeVar("T")


class Remote(NamedTuple):
    """A namespace of a cluster."""

    api: Api
    namespace: str
    context: str
    flags: str
    """What to repeat in a command that we propose, with a space in front: ` -n research`."""

    @property
    def where(self) -> str:
        """The place in words."""
        return f"namespace {self.namespace} of {self.context}"


def ask(work: Callable[[Remote], Awaitable[T]], context: str | None, namespace: str | None) -> T:
    """Do `work` with a connection to the cluster.

    Raises:
        RefusalError: there is no cluster, it does not answer, or it refuses.
    """
    return asyncio.run(_ask(work, context, namespace))


async def _ask(work: Callable[[Remote], Awaitable[T]], context: str | None, namespace: str | None) -> T:
    connection = connected(context)
    try:
        api = await connection.__aenter__()
    except ValueError as error:
        raise RefusalError(str(error).rstrip("."), code=FAILED) from error
    flags = f" -n {namespace}" if namespace is not None else ""
    flags += f" --context {context}" if context is not None else ""
    name = await asyncio.to_thread(_context_name, context)
    remote = Remote(api, namespace or api.namespace, name or api.credentials.server, flags)
    try:
        return await work(remote)
    except Unavailable as error:
        fix = f"is the cluster of {remote.context} up? `torchyard doctor{flags}` looks"
        raise RefusalError(f"the API server does not answer: {error}", fix, FAILED) from error
    except NotFound as error:
        raise missing(remote, error) from error
    except Rejected as error:
        raise rejected(remote, error) from error
    except (Conflict, Gone) as error:
        raise RefusalError(str(error), "try again", FAILED) from error
    finally:
        await connection.__aexit__(None, None, None)


def missing(remote: Remote, error: NotFound) -> RefusalError:
    """What a 404 says: no such job, no such namespace, or nobody installed TorchYard."""
    if error.details.kind == "trainingjobs" and error.details.name:
        what = f"there is no TrainingJob {error.details.name!r} in {remote.where}"
        return RefusalError(what, f"`torchyard ps{remote.flags or f' -n {remote.namespace}'}` lists them")
    if error.details.kind == "namespaces":
        return RefusalError(f"there is no namespace {error.details.name!r} in {remote.context}", "create it first")
    if error.details.kind:
        return RefusalError(str(error), "it may just have been deleted", FAILED)
    fix = "see docs/installation.md; `torchyard doctor` looks at what is there"
    return RefusalError(f"TrainingJobs are not installed in {remote.context}", fix, FAILED)


def rejected(remote: Remote, error: Rejected) -> RefusalError:
    """What a 4xx says: the fields that are at fault, or the right that is missing."""
    causes = [cause for cause in error.details.causes if cause.message and not cause.field.startswith("<")]
    if error.code == 403:
        return RefusalError(error.message, f"ask for that right in {remote.where}", FAILED)
    if causes:
        said = "; ".join(f"{cause.field}: {cause.message.removeprefix('Invalid value: ')}" for cause in causes)
        return RefusalError(f"the API server refuses it: {said}")
    return RefusalError(f"the API server refuses it: {error.message}")


def _context_name(context: str | None) -> str:
    """`context X`; empty where there is none, in a pod for instance."""
    from kubernetes.config import ConfigException, list_kube_config_contexts

    if context is not None:
        return f"context {context}"
    try:
        _, active = list_kube_config_contexts()  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, TypeError):
        return ""
    return f"context {active['name']}"
