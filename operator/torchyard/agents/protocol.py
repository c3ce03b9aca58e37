"""The messages of `POST /v1/sync`, as defined in docs/protocol.md.

The frame (instance, sequence, state) is strict: a wrong type is an error of the agent and answered with 400. What a
user's program wrote (reports, failures, metrics) is not: `sanitize` drops what it cannot read, so that an odd report
of a script never makes its pod look silent.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from torchyard.reconcile.actions import CommandAgent
from torchyard.reconcile.observed import AgentState

PROTOCOL = 1
MAX_BODY_BYTES = 16 * 1024

Text = Annotated[str, Meta(max_length=256, pattern="^[!-~]*$")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class SyncRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of an agent. Raw values may come from users' programs; `sanitize` reads them."""

    protocol: int
    instance: Annotated[str, Meta(min_length=1, max_length=128, pattern="^[ -~]*$")]
    sequence: Count
    state: AgentState
    wait: Seconds = 0.0
    revision: Count = 0
    round: Count = 0
    address: Text = ""
    master_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    procs: Annotated[int, Meta(ge=0, le=4096)] = 1
    content: Annotated[str, Meta(max_length=64)] = ""
    environment: Annotated[str, Meta(max_length=64)] = ""
    exit: dict[str, Any] | None = None
    reports: list[Raw] = []
    gpus: list[Raw] = []
    notices: list[Any] = []


class SyncAnswer(Struct, frozen=True, kw_only=True):
    """The answer to an agent; `interval`: the longest time between two syncs, in seconds."""

    revision: int
    interval: float
    command: dict[str, Any]


def decode(body: bytes) -> SyncRequest:
    """Decode a request.

    Raises:
        ValueError: the body is invalid; the text is a sentence for the agent's log.
    """
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"The body is not a sync request: {error}.") from None
    if request.protocol != PROTOCOL:
        raise ValueError(
            f"`protocol` is {request.protocol}, this operator speaks {PROTOCOL}: use the agent of its version."
        )
    return request


def without_figures(request: SyncRequest) -> SyncRequest:
    """Return a request without figures, which are not kept during a long poll."""
    return msgspec.structs.replace(request, exit=None, reports=[], gpus=[], notices=[])


def command_document(command: CommandAgent | None) -> dict[str, Any]:
    """Return a command as sent to the agent: only the fields of its verb."""
    if command is None:
        return {"verb": "wait"}
    fields = {"verb": command.verb}
    return fields | {name: getattr(command, attribute) for name, attribute in _FIELDS[command.verb].items()}


_RUN = {
    "round": "round",
    "nodes": "nodes",
    "nodeRank": "node_rank",
    "masterAddress": "master_address",
    "masterPort": "master_port",
    "procs": "procs",
    "env": "env",
}
_FIELDS: dict[str, dict[str, str]] = {
    "wait": {},
    "run": _RUN,
    "stop": {"round": "round"},
    "save-and-stop": {"round": "round", "graceSeconds": "grace_seconds"},
    "exit": {"code": "code"},
}
_DECODER = msgspec.json.Decoder(SyncRequest)
