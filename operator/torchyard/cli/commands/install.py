"""`torchyard install` and `torchyard uninstall`."""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.api.names import MAX_NAME
from torchyard.api.values import DNS_LABEL_PATTERN
from torchyard.cli import arguments as common
from torchyard.cli.errors import INVALID, SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say

if TYPE_CHECKING:
    from torchyard.client.installation.apply import Applied
    from torchyard.client.installation.helm import Helm, Values
    from torchyard.client.installation.manifests import Images

NAMESPACE = "torchyard-system"
RELEASE = "torchyard"
TIMEOUT = 300


def install_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `install`."""
    _place_options(parser)
    parser.add_argument("--no-helm", dest="helm", action="store_false", help="do not use Helm, even if it is on PATH")
    parser.add_argument(
        "--set",
        dest="sets",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a value of the chart (needs Helm), as in --set replicas=2 --set 'watchNamespaces={red,blue}'",
    )
    parser.add_argument(
        "--values",
        "-f",
        dest="files",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="file with values of the chart (needs Helm)",
    )
    parser.add_argument("--image", default="", metavar="IMAGE", help="image of the operator, from a registry of yours")
    parser.add_argument(
        "--trainer-image", default="", metavar="IMAGE", help="image of jobs that name none, from a registry of yours"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the objects as YAML and change nothing")
    parser.add_argument(
        "--force-conflicts", action="store_true", help="take over fields that another program manages, such as kubectl"
    )
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="do not wait until the operator leads")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=common.counted,
        default=TIMEOUT,
        help=f"how long to wait; by default {TIMEOUT}",
    )
    common.output(parser, "json", "yaml", help="print the objects that are installed")


def install(
    *,
    context: str | None,
    namespace: str,
    release: str,
    helm: bool,
    sets: list[str],
    files: list[Path],
    image: str,
    trainer_image: str,
    dry_run: bool,
    force_conflicts: bool,
    wait: bool,
    timeout: int,
    output: Format | None,
) -> int:
    """Carry out `torchyard install`.

    torchyard install
    torchyard install --set replicas=2 --set 'watchNamespaces={research}'
    torchyard install --image registry.example.com/operator:0.1.0 --trainer-image registry.example.com/trainer:0.1.0
    torchyard install --dry-run >operator.yaml

    With Helm on PATH, this installs the chart of this version as a release, or upgrades it; values of earlier calls
    stay in force. Without Helm, it applies the objects of the chart with its default values. Jobs continue during an
    upgrade.

    The user of the kubeconfig needs the rights of ClusterRole cluster-admin.

    Exit codes: 0 the operator leads, 1 it does not, 64 invalid.
    """
    from torchyard.client.installation.helm import LINK, Values
    from torchyard.client.installation.lifecycle import with_helm, without_helm
    from torchyard.client.installation.manifests import Images
    from torchyard.client.installation.rollout import rollout
    from torchyard.client.remote.session import Remote, ask

    images, release_of_helm = Images(image, trainer_image), _helm(context, namespace, release, helm)
    values = Values(sets, files, images.values)
    if release_of_helm is None and (sets or files or release != RELEASE):
        option = "--set" if sets else "--values" if files else "--release"
        why = "which is not on PATH" if helm else "which --no-helm forbids"
        raise RefusalError(f"{option} needs Helm, {why}", f"install Helm ({LINK}), or omit {option}")
    for file in files:
        if not file.is_file():
            raise RefusalError(f"--values {file}: there is no such file", "give the path of a YAML file")
    if dry_run:
        _print_objects(release_of_helm, values, images, namespace, release)
        return SUCCEEDED

    async def work(remote: Remote) -> int:
        if release_of_helm is not None:
            installed = await with_helm(remote.api, release_of_helm, values, force=force_conflicts, notice=say)
        else:
            installed = await without_helm(remote.api, namespace, images, force=force_conflicts, notice=say)
        if output is not None:
            emit({"namespace": namespace, "release": release, "objects": list(map(_row, installed.objects))}, output)
        if wait:
            async for progress in rollout(remote.api, namespace, installed.deployment, timeout):
                say(progress.state + (f"; {progress.problem}" if progress.problem else ""))
        say(f"TorchYard is installed in namespace {namespace}; `torchyard doctor` checks it from a pod")
        return SUCCEEDED

    return ask(work, context, None)


def uninstall_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `uninstall`."""
    _place_options(parser)
    parser.add_argument(
        "--delete-jobs",
        action="store_true",
        help="also delete all jobs and sweeps of the cluster with their pods, the custom resources and the CA",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="delete jobs without asking")


def uninstall(*, context: str | None, namespace: str, release: str, delete_jobs: bool, yes: bool) -> int:
    """Carry out `torchyard uninstall`.

    Removes the operator. Jobs, the custom resources and the CA remain: pods continue to train, and an operator that is
    installed again continues with them.

    Exit codes: 0 removed, 1 failed, 64 invalid or not confirmed.
    """
    from torchyard.client.installation.existing import by_namespace, objects_of_users
    from torchyard.client.installation.lifecycle import delete_resources, delete_users_objects, existing, remove
    from torchyard.client.remote.session import Remote, ask

    async def work(remote: Remote) -> int:
        found, others = await existing(remote.api, namespace, release)
        if found is None and not delete_jobs:
            where = "; ".join(f"-n {each.namespace} --release {each.release}" for each in others)
            fix = (
                f"name the one to remove: {where}" if others else "`torchyard uninstall --delete-jobs` deletes the rest"
            )
            raise RefusalError(f"no operator {release} is installed in namespace {namespace}", fix)
        objects = await objects_of_users(remote.api)
        if delete_jobs and others:
            where = ", ".join(sorted(each.namespace for each in others))
            raise RefusalError(f"--delete-jobs: the operator in namespace {where} uses the same resources", "omit it")
        if delete_jobs and objects and not yes and not _confirmed(f"Delete {by_namespace(objects)}, with all pods?"):
            return INVALID
        if delete_jobs and objects:
            await delete_users_objects(remote.api, objects)
            say(f"{by_namespace(objects)}: deleted, with all pods")
        if found is not None:
            await remove(remote.api, found, _helm(context, namespace, release, allowed=True))
            say(f"the operator in namespace {namespace} is removed")
        if delete_jobs:
            remaining = await delete_resources(remote.api, namespace, release)
            say("the custom resources and the CA are deleted")
            if remaining is not None:
                say(f"namespace {namespace} remains; `kubectl delete namespace {namespace}` deletes it")
            return SUCCEEDED
        say(f"what remains: the custom resources, the CA (Secret {release}-ca) and namespace {namespace}")
        if objects:
            say(f"what remains: {by_namespace(objects)}; their pods continue to train")
        if not others:
            say("`torchyard uninstall --delete-jobs` deletes these, too")
        return SUCCEEDED

    return ask(work, context, None)


def _place_options(parser: ArgumentParser) -> None:
    parser.add_argument("--context", metavar="CONTEXT", help="context of the kubeconfig; by default its current one")
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        type=_label,
        default=NAMESPACE,
        help=f"of the operator; by default {NAMESPACE}",
    )
    parser.add_argument(
        "--release",
        metavar="NAME",
        type=_label,
        default=RELEASE,
        help=f"name of the Helm release; by default {RELEASE}",
    )


def _label(text: str) -> str:
    """Return a name that Kubernetes accepts; others would become parts of paths and of YAML."""
    if not re.fullmatch(DNS_LABEL_PATTERN, text) or len(text) > MAX_NAME:
        raise ArgumentTypeError(f"{text!r} is not a valid name: use lower-case letters, digits and hyphens")
    return text


def _helm(context: str | None, namespace: str, release: str, allowed: bool) -> "Helm | None":
    """Return the release for the Helm on PATH; None: there is none, or it must not be used."""
    from torchyard.client.installation.helm import Helm, program

    path = program() if allowed else None
    return None if path is None else Helm(path, context, namespace, release)


def _print_objects(helm: "Helm | None", values: "Values", images: "Images", namespace: str, release: str) -> None:
    from torchyard.api.yaml_text import comment, dumped
    from torchyard.client.installation import manifests

    objects = [*manifests.definitions(), *manifests.operator_objects(namespace, images)]
    if helm is not None:
        objects = helm.rendered(values)
    note = f"`torchyard install` also creates the CA of the operator (Secret {release}-ca), unless it exists."
    sys.stdout.write(comment(note) + "---\n".join(map(dumped, [manifests.namespace_object(namespace), *objects])))


def _row(applied: "Applied") -> dict[str, Any]:
    document = applied.document
    metadata = document["metadata"]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "change": applied.change,
    }


def _confirmed(question: str) -> bool:
    """Ask on the terminal.

    Raises:
        RefusalError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise RefusalError("--delete-jobs deletes jobs, and there is no terminal to ask on", "add --yes to confirm")
    say(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return True
    say("nothing is deleted")
    return False
