"""How the hosts of a gang reach each other: the address of each that the others can open a connection to."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.hosts.preflight import Probe
from torchyard.client.hosts.ssh import Host

_LISTEN = """
import select, socket, sys
server = socket.socket()
server.bind(("", 0))
server.listen(16)
print(server.getsockname()[1], flush=True)
while True:
    ready, _, _ = select.select([server, sys.stdin], [], [], 120)
    if server not in ready:
        break
    server.accept()[0].sendall(b"torchyard")
"""
_TRY = """
import json, socket, sys
for address in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((address, int(sys.argv[2])), timeout=3) as connection:
            if connection.recv(9) == b"torchyard":
                print(address)
                break
    except OSError:
        pass
"""
_RUN = 'exec "$1" -c "$2" "$3" "$4"'


def addresses(hosts: list[Host], reports: list[Probe], named: tuple[str, ...]) -> list[str]:
    """Return an address of each host that the others reach, on any port.

    Args:
        hosts: of the gang, the controller's first.
        reports: their answers.
        named: address of each that the user names; empty: those that the host itself has are tried.

    Raises:
        TorchYardError: a host is not reached by another one.
    """
    candidates = [[name] if name else list(report.addresses) for name, report in zip(named, reports, strict=True)]
    with ThreadPoolExecutor(len(hosts)) as pool:
        numbers = range(len(hosts))
        return list(pool.map(lambda number: _address(number, hosts, reports, candidates[number]), numbers))


def _address(number: int, hosts: list[Host], reports: list[Probe], candidates: list[str]) -> str:
    """Return the first address at which all others reach a host."""
    words = hosts[number].words(_RUN, reports[number].executable, _LISTEN, "", "")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listening:
        assert listening.stdin is not None
        assert listening.stdout is not None
        try:
            port = listening.stdout.readline().decode().strip()
            # The first host connects to each, and each connects to the first: the others do as they do.
            others = [other for other in range(len(hosts)) if other != number and 0 in {other, number}]
            left = candidates
            for other in others:
                program = (reports[other].executable, _TRY, json.dumps(left), port)
                reached = hosts[other].run(_RUN, *program).decode().split()
                if not reached:
                    raise _unreached(hosts[other], hosts[number], left)
                left = reached
            return left[0]
        finally:
            listening.stdin.close()
            listening.terminate()


def _unreached(one: Host, other: Host, tried: list[str]) -> TorchYardError:
    where = f"at {', '.join(tried)}" if tried else "since that has no address but loopback ones"
    fix = f"let them connect to each other on all ports, or name an address: --host {other.name}=ADDRESS"
    return TorchYardError(f"{one.shown} does not reach {other.shown} {where}", fix, FAILED)
