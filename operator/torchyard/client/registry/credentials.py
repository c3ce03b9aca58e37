"""The credentials of a registry, where docker keeps them: `config.json`, or a helper that it names."""

import base64
import binascii
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.client.errors import TorchYardError

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER = re.compile(r"[A-Za-z0-9_.-]+")
_SECONDS = 60
_OF_TOKENS = "<token>"


class Credentials(NamedTuple):
    """A user's name and password, or a token that is exchanged for others."""

    user: str
    password: str

    @property
    def is_token(self) -> bool:
        """Whether the password is an identity token."""
        return self.user == _OF_TOKENS

    def basic(self) -> str:
        """Return the header `Authorization` of the Basic scheme."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def credentials(host: str) -> Credentials | None:
    """Return what `docker login HOST` has stored; None: nothing.

    Raises:
        TorchYardError: the file cannot be read, or a helper fails.
    """
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TorchYardError(f"{file} cannot be read ({error})", "correct it, or `docker login` again") from error
    key = _HUB_KEY if host == "docker.io" else host
    known = known if isinstance(known, dict) else {}
    helper = _of(known, "credHelpers").get(key) or known.get("credsStore")
    if isinstance(helper, str) and helper:
        return _from_helper(helper, key)
    return _stored(_of(known, "auths").get(key), file)


def _of(known: dict[str, Any], name: str) -> dict[str, Any]:
    found = known.get(name)
    return found if isinstance(found, dict) else {}


def _stored(entry: Any, file: Path) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    if token := entry.get("identitytoken"):
        return Credentials(_OF_TOKENS, str(token))
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password", "")))
    try:
        user, colon, password = base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, TypeError) as error:
        raise TorchYardError(f"{file} has an entry that is not base64", "`docker login` again") from error
    return Credentials(user, password.rstrip("\0")) if colon else None


def _from_helper(helper: str, key: str) -> Credentials | None:
    if _HELPER.fullmatch(helper) is None:
        raise TorchYardError(f"config.json of docker names the credential helper {helper!r}", "correct its name")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        fix = "install it, or remove it from config.json of docker and `docker login` again"
        raise TorchYardError(f"the credential helper {program} cannot be run ({error})", fix) from error
    if done.returncode != 0:
        said = (done.stdout.strip() or done.stderr.strip())[:200]
        if "not found" in said:
            return None
        raise TorchYardError(f"the credential helper {program} failed for {key} ({said})", f"`docker login {key}`")
    try:
        answer = json.loads(done.stdout)
        return Credentials(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TorchYardError(
            f"the credential helper {program} did not answer as docker expects", "update it"
        ) from error
