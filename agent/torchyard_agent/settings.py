"""Settings of one agent: its environment and command line, checked once, frozen (pure)."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional, Pattern, Sequence, Tuple
from urllib.parse import urlsplit

from torchyard_agent.telemetry.milestones import TOTAL_STEPS, Milestones, read_milestones

USAGE = "python torchyard-agent.pyz [--listen 127.0.0.1:PORT] -- COMMAND [ARG ...]"


@dataclass(frozen=True)
class Settings:
    """The settings of the agent, from its environment; docs/protocol.md describes each variable."""

    command: Tuple[str, ...]
    listen: Tuple[str, int]
    job: str
    namespace: str
    job_uid: str
    pod_name: str
    pod_index: int
    operator_url: str
    token_file: Path
    ca_file: Optional[Path]
    run_dir: Path
    log_dir: Path
    address: str
    procs: Optional[int]
    gpus: int
    grace_seconds: float
    orphan_seconds: float
    stall_seconds: Optional[float]
    warm_start: bool
    warm_seconds: float
    preload: Tuple[str, ...]
    zygote: Optional[Tuple[int, int]]
    hooks: bool
    patterns: Tuple[Pattern[str], ...]
    milestones: Optional[Milestones]
    total_steps: Optional[int]
    termination_log: Optional[Path]
    completion_file: Optional[Path]
    record_folder: Optional[Path]
    curves_folder: Optional[Path]
    tensorboard: bool
    owned_folder: Optional[Path]
    goes_on: bool
    content_folders: Tuple[Path, ...]
    variable_folders: Tuple[Path, ...]
    code_root: Optional[Path]
    code_mount: Optional[Path]
    code_source: Optional[str]
    working_folder: str
    inputs: Optional[str]
    keep_files_seconds: Optional[float]
    requirements: Optional[str]

    @property
    def loopback(self) -> bool:
        """Whether the other members are on this machine."""
        return is_loopback(self.address)


def read(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Settings from a command line and an environment.

    Raises:
        ValueError: names the option or variable, what it holds, and what it should hold.
    """
    listen, command = _command_line(argv)
    run_dir = Path(_required(env, "TORCHYARD_RUN_DIR"))
    procs = env.get("TORCHYARD_PROCS", "auto")
    return Settings(
        command=command,
        listen=listen,
        job=_required(env, "TORCHYARD_JOB"),
        namespace=_required(env, "TORCHYARD_NAMESPACE"),
        job_uid=_required(env, "TORCHYARD_JOB_UID"),
        pod_name=_required(env, "TORCHYARD_POD_NAME"),
        pod_index=int(_number(env, "TORCHYARD_POD_INDEX", None)),
        operator_url=_operator_url(_required(env, "TORCHYARD_OPERATOR_URL"), env.get("TORCHYARD_CA_FILE")),
        token_file=Path(_required(env, "TORCHYARD_TOKEN_FILE")),
        ca_file=_path(env.get("TORCHYARD_CA_FILE")),
        run_dir=run_dir,
        log_dir=Path(env.get("TORCHYARD_LOG_DIR") or run_dir / "logs"),
        address=env.get("TORCHYARD_POD_ADDRESS") or "127.0.0.1",
        procs=None if procs == "auto" else max(1, int(_number(env, "TORCHYARD_PROCS", None))),
        gpus=int(_number(env, "TORCHYARD_GPUS", 0)),
        grace_seconds=_number(env, "TORCHYARD_GRACE_SECONDS", 30),
        orphan_seconds=_number(env, "TORCHYARD_ORPHAN_SECONDS", 300),
        stall_seconds=_number(env, "TORCHYARD_STALL_SECONDS", 0) or None,
        warm_start=env.get("TORCHYARD_WARM_START", "1") != "0",
        warm_seconds=_number(env, "TORCHYARD_WARM_SECONDS", 120),
        preload=tuple(name.strip() for name in env.get("TORCHYARD_PRELOAD", "").split(",") if name.strip()),
        zygote=_inherited(env.get("TORCHYARD_ZYGOTE", "")),
        hooks=env.get("TORCHYARD_HOOKS", "1") != "0",
        patterns=_patterns(env.get("TORCHYARD_METRIC_PATTERNS", "")),
        milestones=read_milestones(env),
        total_steps=int(_number(env, TOTAL_STEPS, 0)) or None,
        termination_log=_path(env.get("TORCHYARD_TERMINATION_LOG")),
        completion_file=_completion_file(env),
        record_folder=_path(env.get("TORCHYARD_CHECKPOINT_DIR")),
        curves_folder=_path(env.get("TORCHYARD_CHECKPOINT_DIR")) if env.get("TORCHYARD_CURVES") else None,
        tensorboard="tensorboard" in env.get("TORCHYARD_CURVES", "").split(","),
        owned_folder=_path(env.get("TORCHYARD_CHECKPOINT_DIR")) if env.get("TORCHYARD_FORMER_JOB") else None,
        goes_on=env.get("TORCHYARD_FORMER_JOB", "") == "go-on",
        content_folders=_paths(env.get("TORCHYARD_CONTENT_FOLDERS", "")),
        variable_folders=_paths(env.get("TORCHYARD_VARIABLE_FOLDERS", "")),
        code_root=_path(env.get("TORCHYARD_CODE_ROOT")),
        code_mount=_path(env.get("TORCHYARD_CODE_MOUNT")),
        code_source=env.get("TORCHYARD_CODE_SOURCE") or None,
        working_folder=env.get("TORCHYARD_WORKING_DIR", ""),
        inputs=env.get("TORCHYARD_INPUTS") or None,
        keep_files_seconds=_number(env, "TORCHYARD_KEEP_FILES", 0) or None,
        requirements=env.get("TORCHYARD_REQUIREMENTS") or None,
    )


def _command_line(argv: Sequence[str]) -> Tuple[Tuple[str, int], Tuple[str, ...]]:
    if "--" not in argv:
        raise ValueError(f"no COMMAND after `--`: start as `{USAGE}`")
    cut = list(argv).index("--")
    options, command = list(argv[:cut]), tuple(argv[cut + 1 :])
    if not command:
        raise ValueError(f"COMMAND after `--` is empty: start as `{USAGE}`")
    listen = ("127.0.0.1", 0)
    while options:
        name, equals, value = options.pop(0).partition("=")
        if name != "--listen" or not (equals or options):
            raise ValueError(f"unknown option `{name}`: start as `{USAGE}`")
        host, _, port = (value if equals else options.pop(0)).rpartition(":")
        if not port.isdigit() or not is_loopback(host):
            raise ValueError(f"--listen must be a loopback ADDRESS:PORT, got `{host}:{port}`")
        listen = (host, int(port))
    return listen, command


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set: the agent needs it; see docs/protocol.md")
    return value


def _number(env: Mapping[str, str], name: str, default: Optional[float]) -> float:
    text = env.get(name, "") or ("" if default is None else str(default))
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got `{text}`") from None
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} must be between 0 and 1e9, got `{text}`")
    return value


def _inherited(text: str) -> Optional[Tuple[int, int]]:
    descriptor, _, pid = text.partition(":")
    return (int(descriptor), int(pid)) if descriptor.isdigit() and pid.isdigit() else None


def _path(text: Optional[str]) -> Optional[Path]:
    return Path(text) if text else None


def _paths(text: str) -> Tuple[Path, ...]:
    return tuple(Path(each) for each in text.split(":") if each)


def _completion_file(env: Mapping[str, str]) -> Optional[Path]:
    name = env.get("TORCHYARD_COMPLETION_FILE", "")
    return Path(_required(env, "TORCHYARD_CHECKPOINT_DIR")) / name if name else None


def _operator_url(url: str, ca_file: Optional[str]) -> str:
    if url.startswith("unix:/"):
        return url
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname and ca_file:
        return url
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return url
    raise ValueError(
        f"TORCHYARD_OPERATOR_URL must be https:// together with TORCHYARD_CA_FILE, http:// to a loopback address, or "
        f"unix:/path/of/socket; got `{url}` with TORCHYARD_CA_FILE `{ca_file or ''}`"
    )


def _patterns(text: str) -> Tuple[Pattern[str], ...]:
    if not text.strip():
        return ()
    try:
        patterns = tuple(re.compile(pattern) for pattern in json.loads(text))
    except (ValueError, TypeError, re.error) as error:
        raise ValueError(f"TORCHYARD_METRIC_PATTERNS must be a JSON list of regular expressions: {error}") from None
    for pattern in patterns:
        if not pattern.groupindex:
            raise ValueError(f"TORCHYARD_METRIC_PATTERNS: `{pattern.pattern}` has no named group, as in `(?P<loss>..)`")
    return patterns


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address of this machine that others cannot reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
