"""The port of the next round's store: nobody else is given it, neither while it is held nor just after."""

import socket
from pathlib import Path

import pytest

from torchyard_agent.ports import ReservedPort


def test_a_port_is_held_on_every_address_and_then_free_to_listen_on():
    held = ReservedPort()
    number = held.number()
    assert held.number() == number
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.2", number))
    held.release()
    with socket.create_server(("127.0.0.2", number)):
        pass


def test_no_outgoing_connection_is_given_the_port_after_its_release():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    held = [ReservedPort() for _ in range(50)]
    assert all(port.number() < first for port in held)
    for port in held:
        port.release()
