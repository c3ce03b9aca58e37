"""Code in a git repository: the commit that a branch or tag is now, and its files where another machine runs them."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from torchyard.api import code_source
from torchyard.api.spec_code import COMMIT_PATTERN, Code, GitCode
from torchyard.client.errors import TorchYardError
from torchyard.interpreter import own_environment, own_python

_SECONDS = 60
_FETCH_SECONDS = 1000
_SAID = re.compile(r"^(fatal|remote|ssh):|Permission denied|Host key verification failed")
"""Lines of git and ssh that say why."""
_FETCH = "from torchyard_agent.inputs.fetch import main; main()"
_HEAD = "HEAD"


def pinned(code: Code) -> Code:
    """Return code of a repository with the commit that its `ref` is now; a full commit is not looked up.

    Raises:
        TorchYardError: git cannot reach the repository, or it has no such branch or tag.
    """
    assert code.git is not None, "of a repository"
    ref = code.git.ref
    if re.fullmatch(COMMIT_PATTERN, ref):
        return replace(code, commit=ref, branch=None)
    if code.commit is not None and code.branch == ref:  # of a job that was printed: it runs what it ran
        return code
    return replace(code, commit=_resolved(code.git), branch=ref)


def _resolved(repository: GitCode) -> str:
    """Return the commit of a branch or tag, asked for with the user's own git."""
    names = [repository.ref] if repository.ref == _HEAD or repository.ref.startswith("refs/") else [
        f"refs/heads/{repository.ref}", f"refs/tags/{repository.ref}",
    ]  # fmt: skip
    listed = _ls_remote(repository, [*names, *(f"{name}^{{}}" for name in names)])
    refs = {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}
    commits = {name: refs.get(f"{name}^{{}}", refs[name]) for name in names if name in refs}
    if not commits:
        what = f"code: {repository.url} has no branch or tag {repository.ref}"
        raise TorchYardError(what, f"`git ls-remote {repository.url}` lists them; correct spec.code.git.ref")
    if len(commits) > 1:
        fix = f"set spec.code.git.ref to {names[0]} or {names[1]}"
        raise TorchYardError(f"code: {repository.ref} is a branch and a tag of {repository.url}", fix)
    return next(iter(commits.values()))


def _ls_remote(repository: GitCode, names: list[str]) -> str:
    fix = "correct spec.code.git or the credentials of your git, or set ref to a full commit, which is not looked up"
    settings = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh:file", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--", repository.url, *names],
            cwd="/",  # no settings of a repository around the current folder
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise TorchYardError("code: git is not installed on this machine", "install it, or " + fix) from None
    except subprocess.TimeoutExpired:
        raise TorchYardError(f"code: {repository.url} has not answered for {_SECONDS} seconds", fix) from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if _SAID.search(line)]
        why = "; ".join(lines or done.stderr.strip().splitlines()[-1:])[:400]
        raise TorchYardError(f"code: {repository.url} cannot be read ({why})", fix)
    return done.stdout


def fetched(code: Code, into: Path, cache: Path) -> Path:
    """Return a folder with the files of a pinned commit, as the agent of a pod fetches them.

    Args:
        code: of a repository, with its commit.
        into: folder of this machine, for this call alone.
        cache: folder in which a commit is fetched once.

    Raises:
        TorchYardError: they cannot be had; the sentence is git's.
    """
    assert code.git is not None, "of a repository"
    place = code_source.settings(  # the caller compares the digest
        replace(code, digest=None), root=str(into), folder="", cache=str(cache), secret="", own=True
    )
    with tempfile.TemporaryFile() as reports:  # no pipe: reports of a slow server would fill it
        number = reports.fileno()
        try:
            done = subprocess.run(
                own_python("-c", f"import sys; sys.argv[1:] = [{str(number)!r}]; {_FETCH}"),
                env=own_environment(os.environ, **place),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                pass_fds=[number],
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TorchYardError(f"code: {code.git.url} has not sent its files for {_FETCH_SECONDS} seconds") from None
        reports.seek(0)
        lines = reports.read().splitlines()
    last: dict[str, Any] = json.loads(lines[-1]) if lines else {"message": done.stderr.strip()[-400:]}
    if last.get("exit") != 0:
        raise TorchYardError(f"code: {last['message']}", "correct spec.code.git, or the credentials of your git")
    states = [json.loads(line)["inputs"] for line in lines[:-1]]
    return into / str(states[-1][0]["revision"])
