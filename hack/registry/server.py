"""The registry itself: its program, its configuration and its process."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from binaries import programs
from cluster import OF_TESTS
from shell import Unavailable

LISTENS = re.compile(r"listening on ([0-9.:\[\]a-f]+:\d+)")


def program(*, compile_missing: bool = True) -> Path:
    """Return the registry's program, compiled if the cache has none.

    Raises:
        Unavailable: it is not there, and is not to be compiled or cannot be.
    """
    found = programs(OF_TESTS["registry"], compile_missing=compile_missing) / "registry"
    if not found.exists():
        raise Unavailable("the registry was not compiled yet, which `make registry` and `make kind-up` do once")
    return found


def configuration(
    address: str, folder: Path, htpasswd: Path | None, certificate: Path | None, key: Path | None
) -> dict[str, Any]:
    """Return what distribution reads as its configuration: JSON is YAML.

    Args:
        address: HOST:PORT; port 0 is one that is free.
        folder: storage; created when something is pushed.
        htpasswd: users with bcrypt hashes, or None: everybody may push.
        certificate: in PEM, for HTTPS, or None: HTTP.
        key: of the certificate.
    """
    http: dict[str, Any] = {"addr": address}
    if certificate and key:
        http["tls"] = {"certificate": str(certificate.resolve()), "key": str(key.resolve())}
    chosen = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder.resolve())}, "delete": {"enabled": True}},
        "http": http,
    }
    if htpasswd:
        chosen["auth"] = {"htpasswd": {"realm": "registry", "path": str(htpasswd.resolve())}}
    return chosen


def token_service(realm: str, certificate: Path) -> dict[str, Any]:
    """Return the authentication by bearer tokens, as the specification of distribution's tokens describes it.

    Args:
        realm: URL of the service that issues them.
        certificate: in PEM, by which it signs.
    """
    known = {"realm": realm, "service": "registry", "issuer": "tokens", "rootcertbundle": str(certificate.resolve())}
    return {"token": {**known, "signingalgorithms": ["RS256"]}}


def serve(executable: Path, chosen: dict[str, Any], ready: Callable[[str], None]) -> int:
    """Run the registry until it ends; an exception, such as that of a signal, ends it. Returns its exit code.

    Args:
        executable: the registry's program.
        chosen: its configuration.
        ready: called with HOST:PORT as soon as it listens.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(chosen, file)
        file.flush()
        # Without OTEL_TRACES_EXPORTER=none it looks for a collector of traces.
        process = subprocess.Popen(
            [executable, "serve", file.name], stderr=subprocess.PIPE, text=True, env={"OTEL_TRACES_EXPORTER": "none"}
        )
        assert process.stderr is not None
        try:
            with closing(process.stderr) as log:
                for line in log:
                    sys.stderr.write(line)
                    if found := LISTENS.search(line):
                        ready(found[1])
            return process.wait()
        finally:
            process.terminate()
            process.wait()
