"""The options of a torchrun command that decide what the spec decides: honoured, or rejected with the field (pure).

The agent runs such a command through torchrun's own launcher, with the size, the ranks and the rendezvous of the round.
Without an agent torchrun is started as it is written, so nothing here is about that.
"""

import re
from collections.abc import Mapping
from typing import Literal

from torchyard.api.spec import TrainingJobSpec

MASTER_PORT = 29500  # torchrun's own
_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
_PYTHON_FLAGS = re.compile(r"^-[uOEsIBq]+$")
_MODULE = ["-m", "torch.distributed.run"]
_FLAGS = frozenset({"standalone", "module", "no-python", "run-path", "virtual-local-rank", "help"})
_VALUES = frozenset({
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
    "log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters",
    "node-rank", "master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle",
    "shutdown-timeout", "print-completion",
})  # fmt: skip
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee", "-h": "help"}
_MEETING = re.compile(r"^(rdzv-.*|master-.*|node-rank|local-addr)$")


def is_agentless(spec: TrainingJobSpec) -> bool:
    """Return whether the pods of a job have no agent: they start its program themselves."""
    return spec.launcher.kind == "none"


def options(spec: TrainingJobSpec) -> Mapping[str, str]:
    """Return the options of a torchrun command by their long names with hyphens; empty for any other program."""
    if spec.launcher.kind != "agent" or not spec.command:
        return {}
    words = [*spec.command, *spec.args]
    program = words.pop(0).rpartition("/")[2]
    if _PYTHON.match(program):
        while words and _PYTHON_FLAGS.match(words[0]):
            words.pop(0)
        if words[:2] != _MODULE:
            return {}
        words = words[2:]
    elif program != "torchrun":
        return {}
    return _parsed(words)


def _parsed(words: list[str]) -> dict[str, str]:
    """Read options up to the script, as argparse does: `--name=value`, `--name value`, and any unambiguous prefix."""
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "--":
        word, equals, value = words.pop(0).partition("=")
        name = _SHORT.get(word) or _long_name(word)
        if name is None:  # one of another torch, whose own parser will judge it
            break
        if name not in _FLAGS and not equals:
            value = words.pop(0) if words else ""
        found[name] = value
    return found


def _long_name(word: str) -> str | None:
    given = word.removeprefix("--").replace("_", "-")
    if not word.startswith("--") or not given:
        return None
    known = [name for name in (*_FLAGS, *_VALUES) if name == given] or [
        name for name in (*_FLAGS, *_VALUES) if name.startswith(given)
    ]
    return known[0] if len(known) == 1 else None


def asked_procs(spec: TrainingJobSpec) -> int | Literal["auto"]:
    """Return the workers of a pod that the spec or its torchrun command asks for."""
    given = options(spec).get("nproc-per-node", "")
    return int(given) if spec.procs_per_node == "auto" and _is_count(given) else spec.procs_per_node


def local_procs(spec: TrainingJobSpec) -> int:
    """Return the workers of a pod; auto is one a GPU, or one."""
    asked = asked_procs(spec)
    return asked if isinstance(asked, int) else max(1, spec.gpus_per_node)


def procs_agree(spec: TrainingJobSpec) -> bool:
    """Return whether `--nproc-per-node` can be honoured beside `procsPerNode`."""
    given = options(spec).get("nproc-per-node")
    if given is None or given in {"auto", "gpu"}:
        return given is None or spec.procs_per_node in {"auto", max(1, spec.gpus_per_node)}
    return _is_count(given) and int(given) <= MAX_PROCS and spec.procs_per_node in {"auto", int(given)}


def nodes_agree(spec: TrainingJobSpec) -> bool:
    """Return whether `--nnodes` is the number of nodes that the spec asks for, and `--standalone` is about one node."""
    found = options(spec)
    given = found.get("nnodes", str(spec.nodes))
    return set(given.split(":")) == {str(spec.nodes)} and ("standalone" not in found or spec.nodes == 1)


def restarts_are_rounds(spec: TrainingJobSpec) -> bool:
    """Return whether torchrun is asked for no restarts of its own."""
    return options(spec).get("max-restarts", "0") == "0"


def meets_as_told(spec: TrainingJobSpec) -> bool:
    """Return whether the rendezvous is left to the round."""
    return not any(map(_MEETING.match, options(spec)))


MAX_PROCS = 256  # of `procsPerNode`


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) > 0
