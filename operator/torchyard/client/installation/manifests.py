"""The objects of an installation without Helm."""

import base64
import datetime as dt
from typing import Any, NamedTuple

import yaml

from torchyard.api.crd import crd
from torchyard.api.profiles.crd import profile_crd
from torchyard.shipped import plain_manifests
from torchyard.sweeps.crd import sweep_crd

Document = dict[str, Any]
NAMESPACE = "torchyard-system"
RELEASE = "torchyard"
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "torchyard-install"
INSTANCE = "app.kubernetes.io/instance"
AUTHORITY = f"{RELEASE}-ca"
AUTHORITY_DAYS = 3650
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def definitions() -> list[Document]:
    """Return the custom resources."""
    return [crd(), sweep_crd(), profile_crd()]


class Images(NamedTuple):
    """Images that replace those of the chart; empty: none does."""

    operator: str = ""
    """Also brings the agent."""
    trainer: str = ""
    """Of jobs without an image."""

    @property
    def values(self) -> list[str]:
        """The values of the chart, as Helm's --set-string takes them."""
        found = [f"trainerImage={self.trainer}"] if self.trainer else []
        if not self.operator:
            return found
        repository, tag, digest = _parts(self.operator)
        return [f"image.repository={repository}", f"image.tag={tag}", f"image.digest={digest}", *found]


def _parts(image: str) -> tuple[str, str, str]:
    """Return repository, tag and digest of an image; a digest takes precedence over a tag."""
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{folder}{slash}{repository}", "" if digest else tag or "latest", digest


DEFAULT_IMAGES = Images()


def operator_objects(namespace: str, images: Images = DEFAULT_IMAGES) -> list[Document]:
    """Return everything of the operator but its namespace and its CA.

    Args:
        namespace: of the operator. The file names the default one, and nothing else in it contains that text.
        images: to use instead of those of the file.
    """
    text = plain_manifests().read_text(encoding="utf-8").replace(NAMESPACE, namespace)
    documents = [_ours(document) for document in yaml.load_all(text, Loader=_LOADER) if document]
    for document in documents:
        if document["kind"] == "Deployment":
            _set_images(document["spec"]["template"]["spec"], images)
    return documents


def _set_images(pod: Document, images: Images) -> None:
    repository, tag, digest = _parts(images.operator)
    operator = images.operator and (f"{repository}@{digest}" if digest else f"{repository}:{tag}")
    given = {"--agent-image": operator, "--trainer-image": images.trainer}
    for container in (*pod["initContainers"], *pod["containers"]):
        container["image"] = operator or container["image"]
        words = [(word, word.partition("=")[0]) for word in container["args"]]
        container["args"] = [f"{name}={given[name]}" if given.get(name) else word for word, name in words]


def namespace_object(namespace: str) -> Document:
    """Return the operator's namespace, in which no pod may run that could harm its node."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return _ours({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})


def authority_secret(namespace: str) -> Document:
    """Return a new CA, by which agents verify the operator, in the Secret that the chart has, too."""
    from torchyard.app.certificate import new_authority  # needs cryptography, and printing the objects does not

    data = new_authority(AUTHORITY, dt.timedelta(days=AUTHORITY_DAYS))
    return _ours(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": AUTHORITY,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/name": RELEASE, INSTANCE: RELEASE},
                "annotations": {"helm.sh/resource-policy": "keep"},  # a Helm release may take the installation over
            },
            "type": "kubernetes.io/tls",
            "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
        }
    )


def _ours(document: Document) -> Document:
    metadata = document["metadata"]
    return document | {"metadata": metadata | {"labels": {**metadata.get("labels", {}), MANAGED_BY: MANAGER}}}
