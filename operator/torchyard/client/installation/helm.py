"""The chart of this package, installed by the Helm on PATH."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.shipped import chart

Document = dict[str, Any]
LINK = "https://helm.sh/docs/intro/install"
_MAX_LINES = 20


class Values(NamedTuple):
    """What a user sets of the chart."""

    sets: Sequence[str] = ()
    """As Helm's --set takes them."""
    files: Sequence[Path] = ()
    texts: Sequence[str] = ()
    """As Helm's --set-string takes them."""

    @property
    def options(self) -> list[str]:
        """The options of a Helm command."""
        named = [word for file in self.files for word in ("--values", str(file))]
        texts = [word for text in self.texts for word in ("--set-string", text)]
        return [*named, *texts, *(word for text in self.sets for word in ("--set", text))]


class Helm(NamedTuple):
    """A release of a cluster.

    Attributes:
        program: path of helm.
        context: of the kubeconfig; None: its current one.
        namespace: of the release.
        release: its name.
    """

    program: str
    context: str | None
    namespace: str
    release: str

    def upgrade(self, values: Values, *, take: bool, force: bool) -> None:
        """Install or upgrade the release; values of earlier calls stay in force.

        Args:
            values: to set.
            take: whether objects that Helm did not create become part of the release.
            force: whether fields that another program manages are taken over; before version 4, Helm always does that.

        Raises:
            TorchYardError: Helm fails.
        """
        options = ["--install", "--create-namespace", "--reset-then-reuse-values", *values.options]
        options += ["--take-ownership"] if take else []
        options += ["--force-conflicts"] if force and not self._version().startswith("v3.") else []
        self._run("upgrade", *options, self.release, str(chart()))

    def uninstall(self) -> None:
        """Remove the release; the chart keeps the custom resources and the CA.

        Raises:
            TorchYardError: Helm fails.
        """
        self._run("uninstall", self.release)

    def rendered(self, values: Values) -> list[Document]:
        """Return the objects that an installation would have, without its CA, whose key is secret. No cluster is asked.

        Raises:
            TorchYardError: the values are invalid.
        """
        text = self._run("template", "--no-hooks", *values.options, self.release, str(chart()))
        return _objects(text)

    def objects(self) -> list[Document]:
        """Return the objects of the release as Helm applied them, without its CA.

        Raises:
            TorchYardError: Helm fails.
        """
        return _objects(self._run("get", "manifest", self.release))

    def _version(self) -> str:
        return self._run("version", "--template", "{{.Version}}").strip()

    def _run(self, verb: str, *words: str) -> str:
        context = ["--kube-context", self.context] if self.context is not None else []
        argv = [self.program, verb, *words, "--namespace", self.namespace, *context]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "HELM_DEBUG": ""})
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-_MAX_LINES:]) or f"exit code {done.returncode}"
            raise TorchYardError(f"helm {verb} failed: {said.removeprefix('Error: ')}", code=FAILED)
        return done.stdout


def program() -> str | None:
    """Return the path of the Helm on PATH; None: there is none."""
    return shutil.which("helm")


def _objects(text: str) -> list[Document]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = yaml.load_all(text, Loader=loader)
    return [document for document in documents if document and document["kind"] != "Secret"]
