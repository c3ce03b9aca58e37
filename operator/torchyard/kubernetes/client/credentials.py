"""Which API server, and as which user, by the rules of kubectl; tokens and certificates are read again as they rotate.

Of several kubeconfig files the first one that sets a value wins. The `kubernetes` package lets the last file's current
context win, wants a current context even where another one is asked for, refuses empty files, and passes over `as`: it
would connect to another cluster, or as another user. As for kubectl, this machine and NO_PROXY need no proxy.
"""

import asyncio
import ipaddress
import logging
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import yaml
from kubernetes.client import Configuration
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from torchyard.api.validation.yaml_tree import require_shallow
from torchyard.reconcile.ports import Unavailable

TOKEN_SECONDS = 60.0
RELOAD_SECONDS = 5.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_log = logging.getLogger(__name__)


Document = dict[str, Any]


class Chosen(NamedTuple):
    """A context, and what the package that loads credentials does not return."""

    files: str = ""
    """The files that are not empty, as $KUBECONFIG lists them."""
    context: str = ""
    namespace: str = "default"
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers of every request."""
    plugin: str = ""
    """Command that prints the user's credentials; empty: they are in the file."""
    hint: str = ""
    """How to install it, from the kubeconfig."""


class Loaded(NamedTuple):
    """What was found."""

    configuration: Configuration
    chosen: Chosen


class Credentials:
    """One API server and the credentials for it.

    Tokens are asked for again once a minute (projected tokens rotate, exec plugins know when theirs expires), and
    everything is loaded again when the server answers 401.

    Attributes:
        server: base URL without a slash at its end.
        context: of the kubeconfig; empty in a pod.
        namespace: of the context, or of the pod we run in.
        tls: of every connection; None for plain http. Stays the same object when certificates change.
        proxy: URL of the proxy to go through, None: directly.
        authorization: header of every request, None: none.
        fresh_until: when `refresh` is due, in seconds of the monotonic clock; never, without a token.
        impersonation: further headers of every request.
        server_name: that the server's certificate must have; None: the host of its address.
    """

    def __init__(self, context: str | None, loaded: Loaded) -> None:
        configuration = loaded.configuration
        self.server = configuration.host.rstrip("/")
        self.context, self.namespace = loaded.chosen.context, loaded.chosen.namespace
        self.proxy = configuration.proxy or proxy_for(self.server)
        self.tls = _tls(configuration) if self.server.startswith("https:") else None
        self._asked = context
        self._configuration = configuration
        self.server_name = configuration.tls_server_name
        self.impersonation = loaded.chosen.impersonation
        self.authorization: str | None
        self.fresh_until: float
        self._use(_authorization(configuration))
        self._loaded = time.monotonic()
        self._lock = asyncio.Lock()

    @classmethod
    async def load(cls, context: str | None = None) -> "Credentials":
        """Find the API server: $KUBECONFIG, else ~/.kube/config, else the service account of the pod we run in.

        Args:
            context: of the kubeconfig; None: its current one.

        Raises:
            ValueError: there is no configuration, or it cannot be used.
        """
        return cls(context, await asyncio.to_thread(_load, context))

    async def refresh(self) -> None:
        """Ask for the token again if it is old."""
        async with self._lock:
            if time.monotonic() > self.fresh_until:
                self.fresh_until = time.monotonic() + TOKEN_SECONDS
                # Asking for the token is what makes the library read it again.
                self.authorization = await asyncio.to_thread(_authorization, self._configuration)

    async def changed_since(self, used: str | None) -> bool:
        """Return whether there are other credentials than those that were just rejected."""
        async with self._lock:
            if self.authorization == used:
                if time.monotonic() - self._loaded < RELOAD_SECONDS:
                    return False
                self._loaded = time.monotonic()
                try:
                    self._configuration, _ = await asyncio.to_thread(_load, self._asked)
                except ValueError as error:
                    raise Unavailable(f"credentials were rejected (401) and cannot be loaded again: {error}") from error
                if self.tls is not None:
                    await asyncio.to_thread(_present, self.tls, self._configuration)
                self.server_name = self._configuration.tls_server_name
                self._use(_authorization(self._configuration))
                _log.info("the API server answered 401; reloaded the credentials")
            return True

    def _use(self, authorization: str | None) -> None:
        self.authorization = authorization
        self.fresh_until = float("inf") if authorization is None else time.monotonic() + TOKEN_SECONDS


def _load(context: str | None) -> Loaded:
    configuration = Configuration(proxy="")  # not the environment's, whose rules are not all in there
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")  # noqa: PTH111 - see `_paths`
    named = any(file.exists() for file in _paths(files))
    try:
        if named or context is not None or "KUBERNETES_SERVICE_HOST" not in os.environ:
            return Loaded(configuration, _from_files(files, context, configuration))
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return Loaded(configuration, Chosen(namespace=NAMESPACE_FILE.read_text().strip()))
    except (ConfigException, yaml.YAMLError, AttributeError, OSError, KeyError, TypeError, ValueError) as error:
        what = f"context `{context}` of {files}" if context is not None else files
        raise ValueError(
            f"No usable Kubernetes configuration ({what}): {' '.join(str(error).split()).rstrip('.')}: set KUBECONFIG,"
            " or give --context one that `kubectl config get-contexts` lists."
        ) from error


def _from_files(files: str, context: str | None, configuration: Configuration) -> Chosen:
    chosen = choose(files, context)
    load_kube_config(  # type: ignore[no-untyped-call]
        config_file=chosen.files, context=chosen.context, client_configuration=configuration
    )
    if chosen.plugin and not configuration.api_key and not configuration.cert_file:
        raise ValueError(f"the plugin {chosen.plugin!r} gave no credentials; {chosen.hint}")
    return chosen


def _authorization(configuration: Configuration) -> str | None:
    value = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    return None if value is None else value.strip()


def _tls(configuration: Configuration) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        # Python 3.13 asks of a CA what kubectl does not, and many clusters' own ones lack: key usage, key identifiers.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not configuration.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        _present(tls, configuration)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"The certificates for {configuration.host} cannot be used: {error}") from error
    return tls


def _present(tls: ssl.SSLContext, configuration: Configuration) -> None:
    """Use the client certificate for new connections, and trust the CA beside those trusted so far."""
    if configuration.ssl_ca_cert:
        tls.load_verify_locations(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)


def _paths(files: str) -> list[Path]:
    """Return the kubeconfig files of a list such as $KUBECONFIG; for a user without a home, `~` stays as it is."""
    return [Path(os.path.expanduser(file)) for file in files.split(os.pathsep) if file]  # noqa: PTH111 - pathlib's raises


def choose(files: str, context: str | None) -> Chosen:
    """Find the context that is asked for, else the current one.

    Args:
        files: as $KUBECONFIG lists them; those that are not there do not count.
        context: what --context says.

    Raises:
        ValueError: there is no such context.
        OSError, yaml.YAMLError, TypeError, KeyError, AttributeError: a file is no kubeconfig.
    """
    found = {path: _document(path) for path in _paths(files) if path.exists()}
    documents = {path: document for path, document in found.items() if document is not None}
    if not documents:
        raise ValueError("no such file, or nothing in it")
    name = context or next((each["current-context"] for each in documents.values() if each.get("current-context")), "")
    if not name:
        raise ValueError("there is no current-context")
    chosen = _first(documents, "context", name)
    if chosen is None:
        raise ValueError(f"there is no context `{name}`")
    user = _first(documents, "user", chosen.get("user") or "") or {}
    plugin = user.get("exec") or {}
    return Chosen(
        files=os.pathsep.join(map(str, documents)),
        context=name,
        namespace=str(chosen.get("namespace") or "default"),
        impersonation=tuple(_impersonation(user)),
        plugin=str(plugin.get("command") or ""),
        hint=" ".join(str(plugin.get("installHint") or "").split()) or "run it by hand to see why",
    )


def context_names(files: str) -> list[str]:
    """Return the names of the contexts of kubeconfig files, the current one first; empty if a file is no kubeconfig.

    Args:
        files: as $KUBECONFIG lists them.
    """
    try:
        current = choose(files, None).context
    except (ValueError, OSError, yaml.YAMLError, TypeError, KeyError, AttributeError):
        return []
    read = [_document(path) or {} for path in _paths(files) if path.exists()]
    names = [str(each["name"]) for document in read for each in document.get("contexts") or () if "name" in each]
    return list(dict.fromkeys([current, *names]))


def _document(path: Path) -> Document | None:
    data = path.read_bytes()
    require_shallow(data)
    document: Document | None = yaml.safe_load(data)
    return document


def _first(documents: dict[Path, Document], kind: str, name: str) -> Document | None:
    listed = (each for document in documents.values() for each in document.get(f"{kind}s") or ())
    return next((each.get(kind) or {} for each in listed if each["name"] == name), None)


def _impersonation(user: Document) -> Iterator[tuple[str, str]]:
    if user.get("as"):
        yield "Impersonate-User", str(user["as"])
    if user.get("as-uid"):
        yield "Impersonate-Uid", str(user["as-uid"])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", str(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{key}", str(value)


def proxy_for(server: str) -> str | None:
    """Return the proxy's URL; None: directly.

    Args:
        server: base URL.
    """
    url = urlsplit(server)
    spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if _is_here(url.hostname or "") or should_bypass_proxies(server, spared):
        return None
    return getproxies().get(url.scheme)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
