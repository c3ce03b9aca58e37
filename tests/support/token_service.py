"""A service that issues tokens of a registry, as the specification of distribution describes it, on loopback.

A registry answers 401 and names this service; it gives a signed token for the actions that a user has on a repository.
"""

import base64
import contextlib
import datetime as dt
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

ACTIONS = {"writer:secret": ["pull", "push"], "reader:secret": ["pull"]}
"""Of the users, by name and password."""
IDENTITY = "identity-of-writer"
"""A refresh token, which `docker login` stores instead of a password."""
SECONDS = 300


class TokenService(NamedTuple):
    """A service: the URL that a registry names, the certificate that it trusts, and the scopes that were asked for."""

    realm: str
    certificate: Path
    scopes: list[str]


@contextlib.contextmanager
def token_service(folder: Path) -> Iterator[TokenService]:
    """Serve tokens that are signed with a new key; its certificate is written into `folder`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = _certificate(key)
    path = folder / "tokens.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
    scopes: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scheme, _, word = self.headers.get("Authorization", "").partition(" ")
            user = base64.b64decode(word).decode() if scheme == "Basic" else ""
            self.answer(ACTIONS.get(user), parse_qs(urlsplit(self.path).query), user)

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            known = form["grant_type"] == ["refresh_token"] and form["refresh_token"] == [IDENTITY]
            self.answer(ACTIONS["writer:secret"] if known else None, form, "writer:secret")

        def answer(self, actions: list[str] | None, query: dict[str, list[str]], user: str) -> None:
            scope = query.get("scope", [""])[0]
            scopes.append(f"{user.partition(':')[0]} {scope}")
            if actions is None:
                self.send(401, {"details": "no such user"})
                return
            kind, name, wanted = scope.split(":")
            granted = [each for each in wanted.split(",") if each in actions]
            claims = {
                "iss": "tokens",
                "sub": user.partition(":")[0],
                "aud": query["service"][0],
                "iat": int(time.time()) - 1,
                "nbf": int(time.time()) - 1,
                "exp": int(time.time()) + SECONDS,
                "jti": str(len(scopes)),
                "access": [{"type": kind, "name": name, "actions": granted}],
            }
            token = _signed(key, chain, claims)
            # The answer to a refresh token names it differently.
            self.send(200, {"access_token" if self.command == "POST" else "token": token, "expires_in": SECONDS})

        def send(self, status: int, document: dict[str, object]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield TokenService(f"http://127.0.0.1:{server.server_address[1]}/token", path, scopes)
        server.shutdown()


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - dt.timedelta(1))
    return builder.not_valid_after(now + dt.timedelta(1)).sign(key, hashes.SHA256())


def _signed(key: rsa.RSAPrivateKey, chain: list[str], claims: dict[str, object]) -> str:
    """Return a JSON web token, signed with RS256."""
    parts = [{"typ": "JWT", "alg": "RS256", "x5c": chain}, claims]
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
