"""Code of a git repository: one commit, fetched by the `git` of the image and written to a tar.

Nothing of the repository is executed: no hook, filter, submodule or helper. Files are written from the objects, not by
a checkout. git computes the name of every object that it receives, so what has the name of the commit is the commit.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

from torchyard_agent.inputs.source import FetchError, RejectedInputError
from torchyard_agent.workers.code import MAX_FETCHED_FILES, MismatchError, check

MAX_RECEIVED_BYTES = 1 << 30
MAX_TREE_BYTES = 512 << 20
SECONDS = 900.0
_CONNECT_SECONDS = 30
_SHA1_DIGITS = 40
_POLL_SECONDS = 0.2
_ERROR_BYTES = 1 << 16
_SAFE = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "submodule.recurse=false", "gc.auto=0",
    "maintenance.auto=false", "protocol.version=2", "core.attributesFile=/dev/null", "advice.graftFileDeprecated=false",
    "http.lowSpeedLimit=1", "http.lowSpeedTime=60",
)  # fmt: skip
_FINAL = re.compile(
    "authentication failed|could not read (username|password)|permission denied|host key verification failed|"
    "repository .*not found|does not appear to be a git repository|not our ref|unadvertised object|"
    "requested url returned error: 4(?!08|29)|transport .* not allowed|couldn't find remote ref|"
    "ssl certificate problem|certificate verif|cannot run ssh|ssh: not found|does not exist|no user exists for uid",
    re.IGNORECASE,
)
"""What git prints where trying again cannot help."""
_SPEAKERS = ("fatal:", "error:", "remote:", "ssh:")
_SUBMODULE, _LINK, _EXECUTABLE = "160000", "120000", "100755"
_SSH = re.compile("ssh://|[^/:]+@[^/:]+:")
_ASKPASS = """#!/bin/sh
case "$1" in
*"://$TORCHYARD_GIT_HOST'"* | *"@$TORCHYARD_GIT_HOST'"*) ;;
*) exit 1 ;;
esac
case "$1" in
Username*) printf '%s\\n' "$TORCHYARD_GIT_USER" ;;
*) printf '%s\\n' "$TORCHYARD_GIT_PASSWORD" ;;
esac
"""


class Repository(NamedTuple):
    """What is fetched, and how.

    Attributes:
        url: of the repository.
        commit: full name.
        path: folder in it; empty: all of it.
        secret: folder with the credentials; empty: none.
        own: whether this is a machine of the user, whose git is used with its credentials and settings.
    """

    url: str
    commit: str
    path: str = ""
    secret: str = ""
    own: bool = False


def fetch(repository: Repository, scratch: Path, target: Path, report: Callable[[int], None]) -> int:
    """Write the files of a commit to the tar `target`; return the number of submodules that were left out.

    Args:
        repository: where the commit is.
        scratch: folder for the repository, which is deleted.
        target: path of the tar.
        report: called with the bytes that were received.

    Raises:
        RejectedInputError: trying again cannot help; the message is git's.
        FetchError: it may work later.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        git = _Git(Path(temporary) / "repository", _environment(repository, Path(temporary)))
        # Git before 2.29 does not have the option, which SHA-1 does not need.
        form = ["--object-format=sha256"] if len(repository.commit) > _SHA1_DIGITS else []
        git.run("init", "--quiet", "--bare", "--template=", *form, ".")
        options = ("--depth=1", "--no-tags", "--no-recurse-submodules", "--no-progress")
        git.run("fetch", *options, "--", repository.url, repository.commit, report=report)
        commit = git.run("rev-parse", "--verify", f"{repository.commit}^{{commit}}").decode().strip()
        if commit != repository.commit:
            raise RejectedInputError(f"{repository.url} sent commit {commit[:12]} for {repository.commit[:12]}")
        return _write(git, repository, target)


class _Git:
    """A repository that only we have written to."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir()
        self._folder, self._environment = folder, environment

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        """Start git without a terminal that it could ask at."""
        settings = [word for setting in _SAFE for word in ("-c", setting)]
        try:
            return subprocess.Popen(
                ["git", *settings, *words],
                cwd=self._folder,
                env=dict(self._environment),
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **streams},
            )
        except FileNotFoundError:
            raise RejectedInputError(
                "git is not in the image (spec.image): add it (`apt-get install git`, for ssh openssh-client, too), or "
                "use spec.code.path or spec.code.image"
            ) from None

    def run(self, *words: str, report: Callable[[int], None] = lambda _length: None) -> bytes:
        """Return what git prints.

        Raises:
            RejectedInputError: see `fetch`.
            FetchError: see `fetch`.
        """
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self.start(*words, stdout=output, stderr=errors)
            try:
                fault = self._watch(process, report)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if fault is not None:
                raise fault
            if process.returncode:
                raise _failure(errors)
            output.seek(0)
            return output.read()

    def _watch(self, process: subprocess.Popen[bytes], report: Callable[[int], None]) -> Exception | None:
        """Wait for the end of git; return why it must be stopped before."""
        last = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
            received = _size(self._folder)
            report(received)
            if received > MAX_RECEIVED_BYTES:
                return RejectedInputError(f"the commit has more than {MAX_RECEIVED_BYTES >> 20} MiB")
            if process.returncode is not None:
                return None
            if time.monotonic() > last:
                return FetchError(f"git has not ended after {SECONDS:.0f} seconds")


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a temporary file that git has renamed
                total += Path(root, name).lstat().st_size
    return total


def _failure(errors: Any) -> Exception:
    errors.seek(0)
    text = errors.read(_ERROR_BYTES).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(_SPEAKERS) or _FINAL.search(line)] or lines or ["git failed"]
    sentence = "; ".join(dict.fromkeys(said))[:400]
    return (RejectedInputError if _FINAL.search(text) else FetchError)(f"git: {sentence}")


def _environment(repository: Repository, scratch: Path) -> Dict[str, str]:
    """Return the variables of git: none of a program's settings of git, and the credentials of the Secret."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("GIT_") or repository.own}
    for name in (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    ):
        env.pop(name, None)
    protocols = "https:ssh:file" if repository.own else "https:ssh"
    env.update(
        GIT_TERMINAL_PROMPT="0",
        SSH_ASKPASS_REQUIRE="never",
        GIT_ALLOW_PROTOCOL=protocols,
        LC_ALL="C",
        GIT_LFS_SKIP_SMUDGE="1",
    )
    if not repository.own:
        env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null", GIT_ATTR_NOSYSTEM="1", HOME=str(scratch))
        env.update(_credentials(repository, scratch))
    return env


def _credentials(repository: Repository, scratch: Path) -> Dict[str, str]:
    """Return the variables by which git uses the Secret; keys are copied, since ssh wants them to be ours alone."""
    secret = Path(repository.secret) if repository.secret else None
    values = {path.name: path.read_bytes() for path in secret.iterdir() if path.is_file()} if secret is not None else {}

    def kept(key: str) -> str:
        path = scratch / key
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(values[key].rstrip(b"\r\n") + b"\n")
        return str(path)

    variables: Dict[str, str] = {}
    if "ca.crt" in values:
        variables["GIT_SSL_CAINFO"] = kept("ca.crt")
    if repository.url.startswith("https://"):
        password = values.get("token", values.get("password"))
        if password is None and values.keys() - {"ca.crt"}:
            raise RejectedInputError("the Secret of spec.code.git.secret has neither `token` nor `password`")
        if password is not None:
            path = scratch / "askpass"
            path.write_text(_ASKPASS, encoding="utf-8")
            path.chmod(0o700)
            variables["GIT_ASKPASS"] = str(path)
            variables["TORCHYARD_GIT_HOST"] = repository.url.removeprefix("https://").partition("/")[0]
            variables["TORCHYARD_GIT_USER"] = values.get("username", b"x-access-token").decode().strip()
            variables["TORCHYARD_GIT_PASSWORD"] = password.decode().strip()
    elif _SSH.match(repository.url):
        variables["GIT_SSH_COMMAND"] = _ssh(values, kept)
    return variables


def _ssh(values: Mapping[str, bytes], kept: Callable[[str], str]) -> str:
    """Return the command by which git starts ssh: with the key of the Secret, and only to hosts that it knows."""
    missing = [key for key in ("ssh-privatekey", "known_hosts") if key not in values]
    if missing:
        what = f"has no `{missing[0]}`" if values else "is not named"
        raise RejectedInputError(f"the Secret of spec.code.git.secret {what}; ssh needs ssh-privatekey and known_hosts")
    words = ["ssh", "-F", "/dev/null", "-i", kept("ssh-privatekey"), "-o", f"UserKnownHostsFile={kept('known_hosts')}"]
    options = ("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={_CONNECT_SECONDS}")
    return shlex.join([*words, *(word for option in options for word in ("-o", option))])


def _write(git: _Git, repository: Repository, target: Path) -> int:
    """Write the files of the commit, without times and owners; return the submodules that were left out."""
    try:
        listed = git.run("ls-tree", "-r", "-z", "-l", "--full-tree", f"{repository.commit}:{repository.path}")
    except RejectedInputError:
        raise
    except FetchError as error:
        raise RejectedInputError(
            f"the commit {repository.commit[:12]} has no folder {repository.path} ({error})"
        ) from error
    entries, submodules = _entries(listed)
    blobs = git.start("cat-file", "--batch", stdin=subprocess.PIPE)
    assert blobs.stdin is not None
    assert blobs.stdout is not None
    try:
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            files = []
            for name, mode, identity, size in entries:
                blobs.stdin.write(identity.encode() + b"\n")
                blobs.stdin.flush()
                header = blobs.stdout.readline().split()
                data = blobs.stdout.read(size + 1)[:size]
                if header != [identity.encode(), b"blob", str(size).encode()] or len(data) != size:
                    raise FetchError(f"git: the object of {name} cannot be read")
                entry = tarfile.TarInfo(name)
                entry.mode = 0o755 if mode == _EXECUTABLE else 0o644
                if mode == _LINK:
                    entry.type, entry.linkname = tarfile.SYMTYPE, data.decode("utf-8", "surrogateescape")
                else:
                    entry.size = size
                files.append((name, "link" if mode == _LINK else "file", entry.linkname))
                tar.addfile(entry, None if mode == _LINK else io.BytesIO(data))
            check(files)
    except MismatchError as error:
        raise RejectedInputError(f"{repository.url}: {error}") from error
    finally:
        blobs.kill()
        blobs.stdin.close()
        blobs.stdout.close()
        blobs.wait()
    return submodules


def _entries(listed: bytes) -> Tuple[List[Tuple[str, str, str, int]], int]:
    """Return name, mode, object and bytes of each file of a tree, and the number of submodules.

    Raises:
        RejectedInputError: it is too large, or has a name that is not UTF-8.
    """
    entries, submodules = [], 0
    for record in listed.split(b"\0")[:-1]:
        head, _, name = record.partition(b"\t")
        mode, _, identity, size = head.decode().split()
        if mode == _SUBMODULE:
            submodules += 1
            continue
        try:
            entries.append((name.decode(), mode, identity, int(size)))
        except UnicodeDecodeError:
            raise RejectedInputError(f"the name {name!r} is not UTF-8") from None
    total = sum(size for *_, size in entries)
    if len(entries) > MAX_FETCHED_FILES or total > MAX_TREE_BYTES:
        limits = f"{MAX_FETCHED_FILES:,} files or {MAX_TREE_BYTES >> 20} MiB"
        raise RejectedInputError(
            f"the commit has {len(entries):,} files of {total >> 20:,} MiB, more than {limits}; name a folder in "
            "spec.code.git.path"
        )
    if not entries:
        raise RejectedInputError("the commit has no file there")
    return entries, submodules
