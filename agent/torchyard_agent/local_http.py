"""The agent's own small server on loopback: `/metrics`, `/status`, and the Kubeflow progress call of Hugging Face."""

from __future__ import annotations

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Tuple

from torchyard_agent.metrics import render

PROGRESS_PATH = "/v1/progress"
_BODY_BYTES = 64 * 1024


def serve(
    address: Tuple[str, int],
    token: str,
    status: Callable[[], Dict[str, Any]],
    progress: Callable[[Dict[str, Any]], None],
) -> ThreadingHTTPServer:
    """Start answering on `address` (port 0: any) in threads; the server's `server_address` tells the port.

    `progress` gets the body of each progress call that carries `token`; it raises ValueError for one it cannot read.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:  # noqa: N802 - the standard library's name
            if self.path == "/status":
                self._answer(200, "application/json", json.dumps(status(), default=str))
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", render(status()))
            else:
                self._answer(404, "text/plain", "try /status or /metrics\n")

        def do_POST(self) -> None:  # noqa: N802
            size = self.headers.get("Content-Length") or ""
            if self.path != PROGRESS_PATH or not size.isdigit():
                self._answer(404, "text/plain", f"POST {PROGRESS_PATH} with a Content-Length\n")
            elif not hmac.compare_digest(self.headers.get("Authorization") or "", f"Bearer {token}"):
                self._answer(401, "text/plain", "wrong token\n")
            elif int(size) > _BODY_BYTES:
                self._answer(413, "text/plain", f"at most {_BODY_BYTES} bytes\n")
            else:
                self._progress(self.rfile.read(int(size)))

        def _progress(self, data: bytes) -> None:
            try:
                body = json.loads(data)
                if not isinstance(body, dict):
                    raise ValueError("the body must be a JSON object")  # noqa: TRY004 - all bad bodies are one kind
                progress(body)
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
            """Say nothing: scrapes are not news."""

    server = ThreadingHTTPServer(address, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
