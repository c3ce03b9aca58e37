"""A container registry on this machine: `make registry`, or `python hack/registry --help`.

It is distribution, compiled from its Go module once (1 min) and kept in `~/.cache/torchyard`. The first line on stdout
is its address, its log goes to stderr; Ctrl-C and SIGTERM end it.
"""

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kind"))

import server
from cache import ROOT
from shell import SKIP, Unavailable

FOLDER = ROOT / "registry"


def main(argv: list[str]) -> int:
    """Serve until a signal; the exit code is that of the registry, or 77 where it cannot be had."""
    parser = argparse.ArgumentParser(prog="python hack/registry", description=__doc__)
    parser.add_argument("--address", default="127.0.0.1", help="that it listens on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="0: one that is free (5000)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"that holds what was pushed ({FOLDER})")
    parser.add_argument("--htpasswd", type=Path, help="file of users with bcrypt hashes; without it anybody may push")
    parser.add_argument(
        "--token-realm", metavar="URL", help="of the service whose bearer tokens it asks for, with --token-certificate"
    )
    parser.add_argument("--token-certificate", type=Path, help="by which the service signs tokens")
    parser.add_argument("--certificate", type=Path, help="for HTTPS, with --key; without them it speaks HTTP")
    parser.add_argument("--key", type=Path, help="of the certificate")
    parser.add_argument("--if-built", action="store_true", help="exit with 77 instead of compiling it")
    options = parser.parse_args(argv)
    if bool(options.certificate) != bool(options.key):
        parser.error("--certificate and --key belong together: give both or none")
    if bool(options.token_realm) != bool(options.token_certificate):
        parser.error("--token-realm and --token-certificate belong together: give both or none")
    if options.token_realm and options.htpasswd:
        parser.error("--htpasswd and --token-realm are two ways to log in: give one of them")
    try:
        program = server.program(compile_missing=not options.if_built)
    except Unavailable as reason:
        print(f"registry: {reason}", file=sys.stderr)
        return SKIP
    chosen = server.configuration(
        f"{options.address}:{options.port}", options.folder, options.htpasswd, options.certificate, options.key
    )
    if options.token_realm:
        chosen["auth"] = server.token_service(options.token_realm, options.token_certificate)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return server.serve(program, chosen, lambda address: print(address, flush=True))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
