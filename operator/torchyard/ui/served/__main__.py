"""Serve the page in a cluster: `python3 -m torchyard.ui.served`, the process of the chart's optional Deployment."""

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

from aiohttp import web

from torchyard.agents.http.tls import follow, server_context
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.remote.jobs import jobs_path
from torchyard.kubernetes.client.bearer import ApiServer
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.reconcile.ports import Unavailable
from torchyard.ui.served.access import HEALTH, MAX_TOKEN, USER, TokenAccess
from torchyard.ui.served.users import EVERYWHERE, User, Users, is_namespace
from torchyard.ui.server import page

LOOK_SECONDS = 5.0
CLUSTER_CA = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
MAX_NAMESPACES = 200
_log = logging.getLogger(__name__)


def main() -> None:
    """Serve until SIGTERM."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m torchyard.ui.served", description=__doc__)
    add = parser.add_argument
    add("--host", dest="hosts", action="append", required=True, help="name under which browsers reach the page")
    add("--namespace", dest="namespaces", action="append", default=[], help="shown to users who may not list all")
    add("--address", default="", help="to listen at; by default all")
    add("--port", type=int, default=8443, help="to listen at")
    add("--tls-dir", type=Path, required=True, help="folder with tls.crt and tls.key")
    add("--server", default=_in_cluster(), help="URL of the API server; by default that of this cluster")
    add("--server-ca", type=Path, default=CLUSTER_CA, help="authority of its certificate")
    options = parser.parse_args()
    if not options.server.startswith("https://"):
        parser.error(f"--server {options.server!r}: give a URL with https: tokens are sent there")
    for name in options.namespaces:
        if not is_namespace(name):
            parser.error(f"--namespace {name!r} is not a name of a namespace")
    if len(options.namespaces) > MAX_NAMESPACES:
        parser.error(f"--namespace is given {len(options.namespaces)} times; at most {MAX_NAMESPACES}")
    return options


def _in_cluster() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}" if host else ""


async def _serve(options: argparse.Namespace) -> None:
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    try:
        tls = server_context(options.tls_dir)
        server = ApiServer(options.server, options.server_ca)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    async with server.opened():
        users = Users(server)
        app = application(users, options.hosts, options.namespaces)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, max_field_size=2 * MAX_TOKEN)
        await runner.setup()
        await web.TCPSite(runner, options.address or None, options.port, ssl_context=tls).start()
        _log.info("the page listens at port %d for %s", options.port, ", ".join(options.hosts))
        tasks = [asyncio.create_task(follow(tls, options.tls_dir)), asyncio.create_task(_look(users))]
        try:
            await ends.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await users.close()
            await runner.cleanup()


def application(users: Users, hosts: list[str], namespaces: list[str]) -> web.Application:
    """Return the application.

    Args:
        users: whose tokens are passed on to the API server.
        hosts: names under which browsers reach the page.
        namespaces: shown at first to users who may not list the jobs of all.

    Raises:
        TorchYardError: the libraries of the page are not installed.
    """

    async def places(request: web.Request) -> dict[str, Any]:
        shown = await _shown(request[USER], namespaces)
        return {"places": shown, "shown": shown, "reading": True}

    app = page(lambda request: request[USER].views, places, TokenAccess(users, hosts).middleware)
    app.add_routes([web.get(HEALTH, _healthy)])
    return app


async def _shown(user: User, namespaces: list[str]) -> list[str]:
    """Return the places of a user: all namespaces, or those of the chart's whose jobs it may list."""
    if await _may_list(user, EVERYWHERE):
        return [EVERYWHERE]
    found = await asyncio.gather(*(_may_list(user, name) for name in namespaces))
    return [name for name, may in zip(namespaces, found, strict=True) if may]


async def _may_list(user: User, place: str) -> bool:
    path = jobs_path(None if place == EVERYWHERE else place)
    try:
        await user.api.request("GET", path, params={"limit": "1"})
    except Rejected as error:
        if error.code != 403:
            raise TorchYardError(f"the API server rejects the request: {error.message}", code=FAILED) from error
        return False
    except (NotFound, Unavailable) as error:
        raise TorchYardError(f"the jobs cannot be listed: {error}", code=FAILED) from error
    return True


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _look(users: Users) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await users.look()


if __name__ == "__main__":
    main()
