"""The condition ExportVerified says what the comparison of exported formats with the model found."""

import pytest

from torchyard.api.status import Artifact, State, TrainingJobStatus
from torchyard.reconcile.plan import with_conditions

WEIGHTS = Artifact(name="model.safetensors", sha256="0" * 64)


def export(name, verified):
    return Artifact(name=f"export/{name}", verified=verified)


@pytest.mark.parametrize(
    ("artifacts", "holds", "reason"),
    [
        ([], "False", "NoExport"),
        ([WEIGHTS], "False", "NoExport"),
        ([WEIGHTS, export("onnx/policy.onnx", True), export("pt2/policy.pt2", True)], "True", "ExportVerified"),
        ([export("onnx/policy.onnx", None)], "False", "ExportNotVerified"),
        ([export("onnx/policy.onnx", True), export("pt2", False)], "False", "ExportRefused"),
    ],
)
def test_export_verified(artifacts, holds, reason):
    status = with_conditions(TrainingJobStatus(state=State("Running"), artifacts=artifacts), 1.0, generation=1)
    (found,) = (each for each in status.conditions if each.type == "ExportVerified")
    assert (found.status, found.reason) == (holds, reason)
    assert found.message
