"""A git server of this machine: `git http-backend` behind TLS and a password, as a private server has them."""

import base64
import contextlib
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trustme

USER, TOKEN = "x-access-token", "s3cret"


class GitServer(NamedTuple):
    """A server: its URL, the certificate of its CA, and the paths that were asked for."""

    url: str
    ca: bytes
    requests: list[str]


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as a user without settings; return what it prints."""
    person = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nowhere", **person}
    return subprocess.check_output(["git", *words], cwd=folder, env=environment, text=True).strip()


def repository(folder: Path, **files: str) -> str:
    """Create a repository, or add a commit to it; return the commit."""
    if not folder.exists():
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=one")
    return git(folder, "rev-parse", "HEAD")


@contextlib.contextmanager
def serving_git(root: Path, address: str = "127.0.0.1", name: str = "localhost") -> Iterator[GitServer]:
    """Serve the repositories below a folder to a user that knows the token."""
    requests: list[str] = []
    wanted = "Basic " + base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            requests.append(path)
            if self.headers.get("Authorization") != wanted:
                self.answer(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known = {
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": USER,
                "PATH": os.environ["PATH"],
            }
            known |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
            done = subprocess.run(["git", "http-backend"], input=body, env=known, capture_output=True, check=False)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            pairs = [tuple(line.decode().split(": ", 1)) for line in head.split(b"\r\n")]
            status = next((int(text.split()[0]) for name, text in pairs if name == "Status"), 200)
            self.answer(status, [(name, text) for name, text in pairs if name != "Status"], content)

        do_POST = do_GET  # noqa: N815

        def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            for header, text in [*headers, ("Content-Length", str(len(content)))]:
                self.send_header(header, text)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_words: object) -> None: ...

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    with http.server.ThreadingHTTPServer((address, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield GitServer(f"https://{name}:{server.server_address[1]}", authority.cert_pem.bytes(), requests)
        server.shutdown()
