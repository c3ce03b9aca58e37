"""The operator and its installation: `torchyard operator`, what its container runs, `crd`, `version`."""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.cli.errors import FAILED, INVALID, SUCCEEDED, RefusalError
from torchyard.version import __version__

if TYPE_CHECKING:
    from torchyard.api.status import State

MAX_COUNT = 100_000


def operator_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `operator`."""
    from torchyard.app.options import Options, variable
    from torchyard.reconcile.notifications import DEFAULT_STATES, states_of

    defaults = Options()

    def flag(name: str, help: str, default: object, kind: Any = str) -> None:  # noqa: A002 -- argparse's own word
        text = f"{help} [{variable(name)}]"
        parser.add_argument(name, help=text, type=_explained(kind), default=_given(name, default, kind))

    parser.add_argument(
        "--namespace",
        dest="namespaces",
        metavar="NS",
        action="append",
        help=f"manage this namespace only; may be repeated [{variable('--namespace')}, separated by commas]",
    )
    flag("--intake-port", "port that agents call, HTTPS", defaults.intake_port, _port)
    flag("--intake-host", "address that the intake listens on; empty: all", defaults.intake_host)
    flag("--intake-url", "base URL that agents call", defaults.intake_url)
    flag("--tls-dir", "folder of tls.crt, tls.key, ca.crt; read again when they change", defaults.tls_dir, Path)
    flag("--probe-port", "port of /healthz and /readyz, plain HTTP", defaults.probe_port, _port)
    flag(
        "--metrics",
        "who may read /metrics. token: accounts that may `get /metrics`, over HTTPS at the intake port; "
        "open: everyone, over HTTP at the probe port; off: no one",
        defaults.metrics,
        _metrics,
    )
    flag(
        "--job-series",
        "highest number of jobs with series of their own on /metrics; 0: none",
        defaults.job_series,
        _count,
    )
    flag(
        "--notifications",
        "folder with the files url, key and optionally ca.crt: send the transitions of jobs to the URL, as CloudEvents "
        "signed with the key; empty: send none",
        None,
        Path,
    )
    flag("--notify-states", "send a transition to these states, separated by commas", DEFAULT_STATES, states_of)
    flag("--notify-link", "URL in each notification, with {namespace}, {name} and {cluster}", "")
    flag("--notify-cluster", "name of the cluster in notifications", "")
    flag("--agent-image", "image from which the agent is copied into pods", defaults.agent_image)
    flag(
        "--agent-volume",
        "mount that image in the pods instead of copying the agent by an init container, which saves half a second of "
        "each start; needs nodes that serve image volumes: true or false",
        defaults.agent_volume,
        _truth,
    )
    flag("--trainer-image", "image of jobs without spec.image", defaults.trainer_image)
    flag(
        "--disk",
        "disk limit of a pod whose job sets none; empty: no limit",
        defaults.disk,
        _quantity,
    )
    flag(
        "--shm",
        "size of /dev/shm of a pod whose job sets neither it nor memory; empty: the memory of the node",
        defaults.shm,
        _quantity,
    )
    flag(
        "--network-peers",
        "create a NetworkPolicy for each job, which admits its own pods and these NetworkPolicy peers (a JSON list)",
        defaults.network_peers,
        _peers,
    )
    flag(
        "--schedulers",
        "gang schedulers that jobs may use, the preferred one first: kueue, native, volcano, coscheduling, kai; "
        "NAME=SCHEDULER sets the schedulerName of the pods, kueue=priorityBoost sets Kueue's priority boost",
        defaults.schedulers,
        _schedulers,
    )
    flag(
        "--count-claimed-gpus",
        "read the ResourceClaimTemplates of jobs, to know how many GPUs their pods have: true or false",
        defaults.count_claimed_gpus,
        _truth,
    )
    flag(
        "--node-notices",
        "taints and conditions by which nodes announce that they leave or are broken: known, further names after a "
        "comma; empty: nodes are not watched",
        defaults.node_notices,
        _notices,
    )
    flag(
        "--node-memory",
        "half-life of failures that speak against a node, for the pods of all jobs, as 6h; off: jobs do not learn from "
        "each other",
        defaults.node_memory,
        _half_life,
    )
    flag("--qps", "highest rate of writes to the API server, per second", defaults.qps, float)
    flag("--burst", "size of a burst of writes to the API server", defaults.burst, float)
    flag("--lease-name", "name of the Lease that the leader holds", defaults.lease_name)
    flag("--lease-namespace", "namespace of the Lease; empty: the operator's own", defaults.lease_namespace)
    flag("--log-format", "format of the log on stderr: text or json", defaults.log_format, _log_format)
    flag("--context", "context of the kubeconfig; by default its current one, in a pod its service account", "")
    parser.add_argument(
        "--no-leader-election",
        dest="leader_election",
        action="store_false",
        default=_given("--no-leader-election", "", str).lower() not in {"1", "true", "yes"},
        help="run as the only operator, without a Lease; after a restart, pods that had joined no round are replaced "
        f"[{variable('--no-leader-election')}=1]",
    )


def operator(
    *,
    namespaces: list[str] | None,
    context: str,
    notifications: Path | None,
    notify_states: tuple["State", ...],
    notify_link: str,
    notify_cluster: str,
    **settings: Any,
) -> int:
    """Carry out `torchyard operator`.

    Several operators may run: one leads, and the others are ready to replace it.
    """
    from torchyard.app.main import run
    from torchyard.app.notifier import Wishes
    from torchyard.app.options import Options

    named = namespaces if namespaces is not None else _given("--namespace", "", str).split(",")
    wishes = None
    if notifications is not None:
        wishes = Wishes(folder=notifications, states=notify_states, link=notify_link, cluster=notify_cluster)
    chosen = tuple(name for name in named if name)
    options = Options(namespaces=chosen, context=context or None, notifications=wishes, **settings)
    try:
        return SUCCEEDED if run(options) else FAILED
    except ValueError as error:
        raise RefusalError(str(error), code=INVALID) from error


def _explained(kind: Any) -> Any:
    """Return a reader of a flag whose ValueErrors reach the user; argparse shows those of its own type only."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return read


def _given(name: str, default: object, kind: Any) -> Any:
    from torchyard.app.options import environment, variable

    text = environment(name)
    if text is None:
        return default
    try:
        return kind(text)
    except ValueError as error:
        raise RefusalError(f"{variable(name)}={text!r}: {error}", f"correct it, or use {name}") from error


def _quantity(text: str) -> str:
    from torchyard.api.values import amount

    if text:
        amount(text)
    return text


def _log_format(text: str) -> str:
    if text not in {"text", "json"}:
        raise ValueError(f"{text!r} is neither text nor json")
    return text


def _metrics(text: str) -> str:
    if text not in {"off", "token", "open"}:
        raise ValueError(f"{text!r} is not off, token or open")
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_COUNT:
        raise ValueError(f"{text!r} is not a number from 0 to {MAX_COUNT}")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _notices(text: str) -> tuple[str, ...]:
    from torchyard.kubernetes.cache.node_notices import notice_names

    return notice_names(text)


def _half_life(text: str) -> float:
    from torchyard.kubernetes.cache.remembered_nodes import half_life

    return half_life(text)


def _schedulers(text: str) -> tuple[str, ...]:
    from torchyard.schedulers.backends import switched_on

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    switched_on(names)
    return names


def _peers(text: str) -> tuple[dict[str, Any], ...] | None:
    import msgspec

    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=tuple[dict[str, Any], ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{text!r} is not a JSON list of NetworkPolicy peers: {error}") from error


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def crd_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `crd`."""


def crd() -> int:
    """Carry out `torchyard crd`.

    `torchyard crd | kubectl apply --server-side -f -` installs them.
    """
    from torchyard.api.crd import crd_yaml
    from torchyard.api.profiles.crd import profile_crd_yaml
    from torchyard.sweeps.crd import sweep_crd_yaml

    sys.stdout.write(f"{crd_yaml()}---\n{sweep_crd_yaml()}---\n{profile_crd_yaml()}")
    return SUCCEEDED


def schema_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `schema`."""


def schema() -> int:
    """Carry out `torchyard schema`.

    `torchyard schema >torchyard.json` writes a file; editors with the YAML language server (VS Code, Neovim, IntelliJ)
    use it for a job file whose first line is `# yaml-language-server: $schema=torchyard.json`.
    """
    import json

    from torchyard.sweeps.schema import file_schema

    print(json.dumps(file_schema(), indent=1))
    return SUCCEEDED


def version_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `version`."""


def version() -> int:
    """Carry out `torchyard version`."""
    print(__version__)
    return SUCCEEDED
