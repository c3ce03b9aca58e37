"""Servers that inputs are fetched from: a web server that can fail, and a stand-in for the API of the hub."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class WebServer(http.server.ThreadingHTTPServer):
    """Serves `files` with ranges.

    Attributes:
        files: content by path.
        redirects: where a path leads to.
        codes: status codes that the next requests of a path get instead of an answer.
        cut: bytes after which the next answers of a path end.
        requests: method, path and range of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.codes: dict[str, list[int]] = {}
        self.cut: dict[str, list[int]] = {}
        self.held: dict[str, threading.Event] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """Print nothing: clients break connections."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: WebServer

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, *, body: bool) -> None:
        server, path = self.server, urlsplit(self.path).path
        server.requests.append((self.command, self.path, self.headers.get("Range", "")))
        if codes := server.codes.get(path):
            self.send_error(codes.pop(0))
            return
        if to := server.redirects.get(path):
            self.send_response(302)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = server.files.get(path)
        if data is None:
            self.send_response(404)
            for name, value in server.headers.get("404", {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(match[1]) if (match := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        for name, value in server.headers.get(path, {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            rest = data[start:]
            most = cut.pop(0) if (cut := server.cut.get(path)) else len(rest)
            self.wfile.write(rest[:most])
            if held := server.held.get(path):
                self.wfile.flush()
                held.wait()
            self.close_connection = most < len(rest)


class Hub(WebServer):
    """A hub with the part of its API that downloads use."""

    def __init__(self) -> None:
        super().__init__()
        self.headers["404"] = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}

    def publish(self, repository: str, commit: str, files: dict[str, bytes], *, branch: str = "main") -> None:
        """Publish a commit, to which a branch then leads; files whose names end with `.bin` are large ones."""
        siblings = []
        for name, data in files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            digest = hashlib.sha256(data).hexdigest()
            large = {"lfs": {"sha256": digest, "size": len(data), "pointerSize": 130}} if name.endswith(".bin") else {}
            siblings.append({"rfilename": name, "size": len(data), "blobId": blob, **large})
            path = f"/{repository}/resolve/{commit}/{name}"
            self.files[path] = data
            self.headers[path] = {"ETag": f'"{digest if large else blob}"', "X-Repo-Commit": commit}
        kind = "datasets" if repository.startswith("datasets/") else "models"
        name = repository.removeprefix("datasets/")
        answer = json.dumps({"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}).encode()
        for revision in (commit, branch):
            path = f"/api/{kind}/{name}/revision/{revision}"
            self.files[path] = answer
            self.headers[path] = {"Content-Type": "application/json"}


@contextlib.contextmanager
def serving(server: WebServer) -> Iterator[WebServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
