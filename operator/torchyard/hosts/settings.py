"""Which machines form the gang of a run: `gang.json` of its controller, and `node.json` of each further host."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from torchyard.api.files import read_regular

MAX_BYTES = 256 * 1024
_SIOCGIFADDR = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


class HostSettings(Struct, frozen=True):
    """One machine of a gang.

    Attributes:
        name: as the user calls it.
        address: at which the others reach it.
        token: by which its node identifies itself; empty: the host of the controller.
        home: folder of TorchYard there.
        source: folder that the job starts in there.
        programs: folder of `torchrun` and `python` of the workers there; None: TorchYard's own.
    """

    name: str
    address: str
    token: str = ""
    home: str = ""
    source: str = ""
    programs: str | None = None


class GangSettings(Struct, frozen=True):
    """`gang.json`. The ports are those of the first start: agents that live on know them.

    Attributes:
        hosts: all machines; the first has the controller.
        agents_port: where agents call.
        nodes_port: where nodes call.
        certificate: of the controller, for the addresses of its host, PEM.
        key: of the certificate, PEM.
        job_uid: of the run.
    """

    hosts: tuple[HostSettings, ...]
    agents_port: int
    nodes_port: int
    certificate: str
    key: str
    job_uid: str


class NodeSettings(Struct, frozen=True):
    """`node.json`.

    Attributes:
        run: name of the run.
        hosts: number of machines.
        index: of this one.
        name: of this one.
        address: of this one.
        controller: address of the controller's host.
        agents_port: where agents call.
        nodes_port: where the node calls.
        token: identifies the node.
        authority: certificate that signed the controller's, PEM.
        source: folder that the job starts in, on this machine.
        programs: folder of `torchrun` and `python` of the workers; None: TorchYard's own.
        home: folder of TorchYard; checkpoints are below it, at the place that they have on the controller's host.
        job_uid: of the run.
    """

    run: str
    hosts: int
    index: int
    name: str
    address: str
    controller: str
    agents_port: int
    nodes_port: int
    token: str
    authority: str
    source: str
    programs: str | None
    home: str
    job_uid: str

    @classmethod
    def of(cls, run: str, gang: GangSettings, index: int) -> "NodeSettings":
        """Return the settings of a further host of a gang."""
        host = gang.hosts[index]
        return cls(
            run=run,
            hosts=len(gang.hosts),
            index=index,
            name=host.name,
            address=host.address,
            controller=gang.hosts[0].address,
            agents_port=gang.agents_port,
            nodes_port=gang.nodes_port,
            token=host.token,
            authority=gang.certificate,
            source=host.source,
            programs=host.programs,
            home=host.home,
            job_uid=gang.job_uid,
        )


def read_gang(folder: Path) -> GangSettings | None:
    """Return the gang of a run; None: all of it is on this machine."""
    try:
        return msgspec.json.decode(read_regular(folder / "gang.json", MAX_BYTES), type=GangSettings)
    except FileNotFoundError:
        return None


def read_node(file: Path) -> NodeSettings:
    """Return the settings of a node."""
    return msgspec.json.decode(read_regular(file, MAX_BYTES), type=NodeSettings)


def interface_of(address: str) -> Mapping[str, str]:
    """Return the variables that make gloo and NCCL use the interface of an address; none for a loopback address.

    By themselves they look the machine's own name up, which Debian maps to a loopback address.
    """
    with suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            return {}
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                return dict.fromkeys(INTERFACES, name)
    return {}
