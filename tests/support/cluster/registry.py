"""A registry that has no image to give, each repository for a reason of its own; a node's kubelet asks it by loopback.

To loopback alone a runtime speaks plain HTTP, once it got a plain answer to TLS: the registry is a pod in the node's
own network.
"""

import json
from dataclasses import dataclass

from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import AGENT_IMAGE, until

# Repositories by what they answer; `token` sends to an authority of its own, which refuses everybody.
PROGRAM = """
import http.server, socket

class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        word = self.path.split("/")[2] if self.path.startswith("/v2/") else self.path.strip("/").partition("?")[0]
        bearer = f'Bearer realm="http://127.0.0.1:{self.server.server_port}/authority",service="registry"'
        status, challenge = {
            "password": (401, 'Basic realm="registry"'),
            "token": (401, bearer),
            "authority": (403, None),
            "forbidden": (403, None),
            "missing": (404, None),
            "busy": (429, None),
        }.get(word, (200, None))
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_GET

    def handle(self):
        if self.connection.recv(1, socket.MSG_PEEK) == b"\\x16":  # a TLS handshake
            self.connection.recv(65536)
            self.wfile.write(b"HTTP/1.0 400 Bad Request\\r\\n\\r\\n")
        else:
            super().handle()

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class Registry:
    """Where it listens."""

    node: str
    port: int

    def image(self, repository: str) -> str:
        """The name of an image of it."""
        return f"127.0.0.1:{self.port}/{repository}/image:1"


async def start_registry(jobs: Jobs) -> Registry:
    """One on some node, in a namespace that lets pods into the node's network; it goes with the namespace."""
    container = {"name": "registry", "image": AGENT_IMAGE, "command": ["python3", "-u", "-c", PROGRAM]}
    spec = {"hostNetwork": True, "automountServiceAccountToken": False, "containers": [container]}
    await jobs.make("pods", "registry", spec=spec)
    pod = f"{jobs.core}/pods/registry"
    found: dict = {}
    said = b""

    async def listens() -> bool:
        nonlocal found, said
        found = json.loads(await jobs.api.request("GET", pod))
        runs = found["status"]["phase"] == "Running"
        said = await jobs.api.request("GET", f"{pod}/log", accept="*/*") if runs else b""
        return said.startswith(b"port")

    await until(listens, why=lambda: f"the registry does not listen: {found.get('status')} {said!r}")
    return Registry(found["spec"]["nodeName"], int(said.split()[1]))
