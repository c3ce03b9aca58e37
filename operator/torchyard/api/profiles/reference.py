"""`docs/reference/trainingprofile.md`, as `make generate` writes it."""

from torchyard.api.profiles.effective import FIELDS
from torchyard.api.profiles.resource import KIND, spec_schema
from torchyard.api.reference import sections
from torchyard.api.resource import API_VERSION

_INTRODUCTION = f"""\
# TrainingProfile

`apiVersion: {API_VERSION}`, `kind: {KIND}`, short name `tp`, of the whole cluster. Generated from the models; every
field is listed. A job names a profile in `spec.profile`: see [profiles.md](../profiles.md).
`torchyard validate profile.yaml job.yaml` checks both files.
"""
_FILLED_IN = f"""\
## Fields of a job that a profile may set

{", ".join(f"`spec.{field}`" for field in FIELDS)}.
`status.profile` of the job shows the values that it has taken.
"""


def reference_markdown() -> str:
    """Return the whole page: one table a section."""
    schema = spec_schema()
    return "\n".join([_INTRODUCTION, f"## Spec\n\n{schema['description']}\n", *sections("spec", schema), _FILLED_IN])
