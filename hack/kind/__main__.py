"""The test bed: `python hack/kind up | images | env | down`, which `make kind-up` and its sisters call."""

import shlex
import sys

import cluster
import docker
import images
from cache import lock
from shell import SKIP, Unavailable, say


def up() -> None:
    """Bring up Docker if nothing answers, the programs, the node image, the cluster."""
    docker.connect()
    cluster.up()


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


COMMANDS = {"up": up, "images": load, "env": env, "down": down}


def main(argv: list[str]) -> int:
    """Run one command; 77 says that this machine cannot carry a test bed, which a test run turns into a skip."""
    if len(argv) != 1 or argv[0] not in COMMANDS:
        say(f"usage: python hack/kind {{{'|'.join(COMMANDS)}}}")
        return 2
    try:
        if argv == ["env"]:
            env()
        else:
            with lock():
                COMMANDS[argv[0]]()
    except Unavailable as reason:
        say(f"no test bed on this machine: {reason}.")
        return SKIP
    except KeyboardInterrupt:
        say("interrupted; nothing half-finished counts")
        return 130
    except RuntimeError as error:
        say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
