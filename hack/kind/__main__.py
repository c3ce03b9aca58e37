"""The test bed, which the Makefile calls: `python hack/kind up|images|env|demo|down|program NAME|with COMMAND...`."""

import os
import shlex
import subprocess
import sys

import cluster
import docker
import gang_schedulers
import images
from binaries import MONITORING, SCHEDULERS, TOOLS, programs
from cache import lock
from demo import demo
from shell import SKIP, Unavailable, say


def up() -> None:
    """Bring up Docker if nothing answers, the programs, the node image, the cluster, the gang schedulers of SCHEDULERS.

    SCHEDULERS=built: those whose programs are in the cache.
    """
    text = os.environ.get("SCHEDULERS", "")
    chosen = gang_schedulers.built() if text == "built" else gang_schedulers.names(text)
    docker.connect()
    cluster.up()
    gang_schedulers.install(chosen, cluster.NODES[0], cluster.kubectl)


def load() -> None:
    """Build the project's images from the working tree and load what changed into the cluster's workers."""
    docker.connect()
    images.up_to_date()


def env() -> None:
    """Print what a shell has to evaluate: KUBECONFIG, DOCKER_HOST where the daemon is ours, PATH."""
    for name, value in cluster.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    print(f'export PATH={shlex.quote(str(cluster.BIN))}:"$PATH"')


def down() -> None:
    """Delete the cluster and end the daemon, if it is ours; what was built stays in the cache."""
    if docker.answers():
        cluster.delete()
    docker.stop()


COMMANDS = {"up": up, "images": load, "down": down}


def with_cluster(argv: list[str]) -> int:
    """Run a program on the cluster of KUBECONFIG, else on ours with our images; leaves the machine as it found it."""
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(argv, check=False).returncode
    was_up = docker.answers() and cluster.is_up()
    try:
        with lock():
            up()
            load()
        return cluster.run_in_shell(argv)
    finally:
        if not was_up:
            with lock():
                down()


def run(argv: list[str]) -> int:
    """One command; its exit code."""
    match argv:
        case ["env"]:
            env()
        case ["program", name] if name in TOOLS | SCHEDULERS | MONITORING:
            with lock():
                folder = programs((TOOLS | SCHEDULERS | MONITORING)[name])
                print(folder / name if (folder / name).exists() else folder)
        case ["demo"]:
            with lock():
                up()
                load()
            return demo()
        case ["with", "--if-built", _, *_]:
            if not (os.environ.get("KUBECONFIG") or cluster.is_built()):
                raise Unavailable("it was not built yet, which `make kind-up` does once, in up to 20 minutes")
            if os.environ.get("SCHEDULERS") == "built" and not gang_schedulers.built():
                raise Unavailable("no gang scheduler was built yet, which `make test-schedulers` does once")
            return with_cluster(argv[2:])
        case ["with", _, *_]:
            return with_cluster(argv[1:])
        case [name] if name in COMMANDS:
            with lock():
                COMMANDS[name]()
        case _:
            say(f"usage: python hack/kind {{{'|'.join(COMMANDS)}|env|demo|program NAME|with [--if-built] COMMAND...}}")
            return 2
    return 0


def main(argv: list[str]) -> int:
    """Run one command; 77 says that this machine cannot carry a test bed, which a test run turns into a skip."""
    try:
        return run(argv)
    except Unavailable as reason:
        say(f"no test bed on this machine: {reason}.")
        return SKIP
    except KeyboardInterrupt:
        say("interrupted; nothing half-finished counts")
        return 130
    except RuntimeError as error:
        say(f"failed: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
