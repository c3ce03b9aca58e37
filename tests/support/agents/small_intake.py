"""A small intake that speaks the protocol, in the place of the operator."""

import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.waiting import DEADLINE


class TcpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # an agent that drops a poll is no error


class UnixServer(TcpServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)


def bound_to(path, handler):
    """A server on a socket whose path may be longer than the 108 bytes of an address."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    try:
        return UnixServer(f"/proc/self/fd/{folder}/{path.name}", handler)
    finally:
        os.close(folder)


class Intake:
    """`POST /v1/sync` of docs/protocol.md for any number of pods, identified by their bearer token."""

    def __init__(self, at=0, interval=0.5):
        """`at`: a port of loopback, 0 for any free one, or the path of a socket."""
        self.interval = interval
        self.changed = threading.Condition()
        self.commands = {}
        self.requests = {}
        self.refuse = {}
        self.closing = False
        intake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = intake.answer(self.path, self.headers["Authorization"], body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        if isinstance(at, Path):
            self.server = bound_to(at, Handler)
            self.at, self.url = at, f"unix:{at}"
        else:
            self.server = TcpServer(("127.0.0.1", at), Handler)
            self.at = self.server.server_address[1]
            self.url = f"http://127.0.0.1:{self.at}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path, authorization, body):
        assert path == "/v1/sync"
        assert len(body) <= 16 * 1024
        pod, request = authorization.removeprefix("Bearer "), json.loads(body)
        with self.changed:
            self.requests.setdefault(pod, []).append(request)
            self.changed.notify_all()
            if pod in self.refuse:
                return self.refuse[pod]
            self.commands.setdefault(pod, (1, {"verb": "wait"}))
            self.changed.wait_for(
                lambda: self.commands[pod][0] != request["revision"] or self.closing,
                min(request["wait"], self.interval),
            )
            revision, command = self.commands[pod]
            if self.closing:
                raise ConnectionAbortedError
        return 200, {"revision": revision, "interval": self.interval, "command": command}

    def tell(self, pod, verb, **fields):
        with self.changed:
            revision = self.commands.get(pod, (1, None))[0] + 1
            self.commands[pod] = (revision, {"verb": verb, **fields})
            self.changed.notify_all()

    def state(self, pod):
        requests = self.requests.get(pod, [])
        began = {request["instance"]: place for place, request in reversed([*enumerate(requests)])}
        return max(requests, key=lambda request: (began[request["instance"]], request["sequence"]), default={})

    def wait_for(self, pod, condition, seconds=DEADLINE):
        """The first newest state that meets `condition`."""
        with self.changed:
            met = self.changed.wait_for(lambda: self.requests.get(pod) and condition(self.state(pod)), seconds)
            state = self.state(pod)
        assert met, f"{pod} never got there; last state: {json.dumps(state, indent=1)}"
        return state

    def close(self):
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
