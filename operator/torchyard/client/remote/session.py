"""The cluster and namespace of a command, and its errors in the words of TorchYard."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

from aiohttp import ClientConnectorCertificateError

from torchyard.api.values import DNS_LABEL_PATTERN
from torchyard.client.backend import location_flags
from torchyard.client.errors import FAILED, NotFoundError, TorchYardError
from torchyard.kubernetes.client.api import Api, connected
from torchyard.kubernetes.client.errors import Conflict, Gone, NotFound, Rejected, Unauthorized
from torchyard.kubernetes.client.exec import CannotRun
from torchyard.reconcile.ports import Unavailable

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
        """The location in words."""
        return f"namespace {self.namespace} of {self.context}"


@contextlib.asynccontextmanager
async def connection(context: str | None, namespace: str | None, api: Api | None = None) -> AsyncIterator[Remote]:
    """Connect to a cluster; its errors become `TorchYardError` in this block.

    Args:
        context: of the kubeconfig; None: the current one.
        namespace: to look in; None: that of the context.
        api: an open connection to the cluster that this process runs in, in place of a context.

    Raises:
        TorchYardError: there is no cluster, it does not answer or rejects the request, or the name is invalid.
    """
    if namespace and not re.fullmatch(DNS_LABEL_PATTERN, namespace):
        raise TorchYardError(
            f"-n {namespace!r} is not a valid name of a namespace", "`kubectl get namespaces` lists them"
        )
    async with contextlib.AsyncExitStack() as stack:
        where = "this cluster"
        if api is None:
            try:
                api = await stack.enter_async_context(connected(context))
            except ValueError as error:
                raise TorchYardError(str(error).rstrip("."), code=FAILED) from error
            where = f"context {api.credentials.context}" if api.credentials.context else api.credentials.server
        remote = Remote(api, namespace or api.namespace, where, location_flags(context, namespace))
        with translated(remote):
            yield remote


@contextlib.contextmanager
def translated(remote: Remote) -> Iterator[None]:
    """Translate errors of the cluster in this block into errors that name the fix."""
    try:
        yield
    except Unavailable as error:
        raise unanswered(remote, error) from error
    except NotFound as error:
        raise missing(remote, error) from error
    except Rejected as error:
        raise rejected(remote, error) from error
    except (Conflict, Gone) as error:
        raise TorchYardError(str(error), "try again", FAILED) from error


def ask(work: Callable[[Remote], Awaitable[T]], context: str | None, namespace: str | None) -> T:
    """Do `work` with a connection to the cluster. Raises what `connection` does."""

    async def connected_work() -> T:
        async with connection(context, namespace) as remote:
            return await work(remote)

    return asyncio.run(connected_work())


def unanswered(remote: Remote, error: Unavailable) -> TorchYardError:
    """Return the error for a missing answer: no server there, or one that the kubeconfig does not trust."""
    cause = error.__cause__
    if isinstance(cause, ClientConnectorCertificateError):
        why = getattr(cause.certificate_error, "verify_message", "") or cause.certificate_error
        what = f"the certificate of {remote.api.credentials.server} is not trusted: {str(why).rstrip('.')}"
        fix = f"correct certificate-authority, server or tls-server-name of {remote.context} in the kubeconfig"
        return TorchYardError(what, fix, FAILED)
    if isinstance(error, Unauthorized):
        fix = f"log in again, or correct the user of {remote.context} in the kubeconfig"
        return TorchYardError(f"the API server rejects your credentials: {error}", fix, FAILED)
    if isinstance(error, CannotRun):
        fix = "if it has not ended, see whether its node is Ready: kubectl get nodes"
        return TorchYardError(str(error), fix, FAILED)
    fix = f"is the cluster of {remote.context} up, and can it be reached from here?"
    return TorchYardError(f"the API server does not answer: {error}", fix, FAILED)


def missing(remote: Remote, error: NotFound) -> TorchYardError:
    """Return the error for a 404: no such job, no such namespace, or TorchYard is not installed."""
    if error.details.kind == "trainingjobs" and error.details.name:
        what = f"there is no TrainingJob {error.details.name!r} in {remote.where}"
        return NotFoundError(what, f"`torchyard ps{remote.flags or f' -n {remote.namespace}'}` lists them")
    if error.details.kind == "namespaces":
        return TorchYardError(f"there is no namespace {error.details.name!r} in {remote.context}", "create it first")
    if error.details.kind:
        return TorchYardError(str(error), "it may just have been deleted", FAILED)
    fix = f"`torchyard install` installs it; `torchyard doctor{remote.flags}` checks the cluster"
    return TorchYardError(f"the TrainingJob CRD is not installed in {remote.context}", fix, FAILED)


def rejected(remote: Remote, error: Rejected) -> TorchYardError:
    """Return the error for a 4xx: the fields that are wrong, or the right that is missing."""
    causes = [cause for cause in error.details.causes if cause.message and not cause.field.startswith("<")]
    if error.code == 403:
        everywhere = "at the cluster scope" in error.message
        return TorchYardError(
            error.message, f"ask for that right in {remote.context if everywhere else remote.where}", FAILED
        )
    if causes:
        said = "; ".join(f"{cause.field}: {cause.message.removeprefix('Invalid value: ')}" for cause in causes)
        return TorchYardError(f"the API server rejects the request: {said}")
    return TorchYardError(f"the API server rejects the request: {error.message}")
