"""The objects of an installation without Helm."""

import base64
import datetime as dt
from typing import Any

import yaml

from torchyard.api.crd import crd
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
    return [crd(), sweep_crd()]


def operator_objects(namespace: str) -> list[Document]:
    """Return everything of the operator but its namespace and its CA.

    Args:
        namespace: of the operator. The file names the default one, and nothing else in it contains that text.
    """
    text = plain_manifests().read_text(encoding="utf-8").replace(NAMESPACE, namespace)
    return [_ours(document) for document in yaml.load_all(text, Loader=_LOADER) if document]


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
