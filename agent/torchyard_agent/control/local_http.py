"""The agent's own small server on loopback: `/metrics`, `/status`, and the Kubeflow progress call of Hugging Face."""

from __future__ import annotations

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Tuple

from torchyard_agent.telemetry.metrics import render

PROGRESS_PATH = "/v1/progress"
_BODY_BYTES = 64 * 1024


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    token: str
    status: Callable[[], Dict[str, Any]]
    progress: Callable[[Dict[str, Any]], None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        if self.path == "/status":
            self._answer(200, "application/json", json.dumps(self.server.status(), default=str))
        elif self.path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", render(self.server.status()))
        else:
            self._answer(404, "text/plain", "try /status or /metrics\n")

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length") or ""
        if self.path != PROGRESS_PATH or not size.isdigit():
            self._answer(404, "text/plain", f"POST {PROGRESS_PATH} with a Content-Length\n")
        elif not hmac.compare_digest((self.headers.get("Authorization") or "").encode(), self._expected()):
            self._answer(401, "text/plain", "wrong token\n")
        elif int(size) > _BODY_BYTES:
            self._answer(413, "text/plain", f"at most {_BODY_BYTES} bytes\n")
        else:
            self._progress(self.rfile.read(int(size)))

    def _expected(self) -> bytes:
        return f"Bearer {self.server.token}".encode()

    def _progress(self, data: bytes) -> None:
        try:
            self.server.progress(json.loads(data))
        except ValueError as error:
            self._answer(400, "text/plain", f"{error}\n")
        else:
            self._answer(200, "application/json", "{}")

    def _answer(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing: metrics are scraped all the time."""


def serve(
    address: Tuple[str, int],
    token: str,
    status: Callable[[], Dict[str, Any]],
    progress: Callable[[Any], None],
) -> ThreadingHTTPServer:
    """Start answering on `address` (port 0: any) in threads; the port is in the server's `server_address`.

    `progress` gets the body of each progress call that carries `token`; it raises ValueError for one it cannot read.
    """
    server = _Server(address, _Handler)
    server.token, server.status, server.progress = token, status, progress
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
