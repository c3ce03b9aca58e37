"""Which proxy of the environment stands before a server: as for kubectl, none before this machine and NO_PROXY's."""

import ipaddress
import os
from urllib.parse import urlsplit
from urllib.request import getproxies

from kubernetes.client.rest import should_bypass_proxies


def proxy_for(server: str) -> str | None:
    """The proxy's URL; None: directly.

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
