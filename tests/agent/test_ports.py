"""The port of a round's store: no other process is given it, neither while it is held nor once it is lent."""

import socket
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from torchyard_agent.workers.ports import ReservedPort


def taken(number, address):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((address, number))


def test_a_port_is_held_on_every_address_and_lent_to_a_store_alone():
    held = ReservedPort()
    number = held.number()
    assert held.number() == number
    taken(number, "127.0.0.2")
    held.lend()
    taken(number, "127.0.0.2")
    assert held.number() != number
    store = TCPStore("127.0.0.1", number, is_master=True, wait_for_workers=False)
    store.set("step", "1")
    assert TCPStore("127.0.0.2", number, wait_for_workers=False).get("step") == b"1"


def test_a_port_is_free_again_once_the_next_one_is_lent():
    held = ReservedPort()
    first = held.number()
    held.lend()
    held.number()
    held.lend()
    with socket.socket() as other:
        other.bind(("127.0.0.2", first))


def test_no_outgoing_connection_is_given_the_port():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    held = [ReservedPort() for _ in range(50)]
    assert all(port.number() < first for port in held)


@pytest.mark.e2e
def test_a_round_whose_port_is_in_use_fails_with_a_message(node, script):
    with socket.create_server(("127.0.0.1", 0)) as other:
        node.run(program=script("print(1)"), port=other.getsockname()[1])
        ended = node.ended()
    assert (ended["code"], ended["failure"]["secondary"]) == (1, False)
    assert ended["failure"]["exception"] == "torch.distributed.DistNetworkError"
    assert "EADDRINUSE" in ended["failure"]["message"]
    assert "TCPStore" in "\n".join(ended["lines"])
