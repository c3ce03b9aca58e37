"""One import of torch for the pods of many tests, whose subject is not how processes start, own or kill others."""

import contextlib
import os

from torchyard.local import shared_templates
from torchyard.local.keeper import stat_fields
from torchyard.local.process import identify

SHARED = {
    shared_templates.OWNER: str(os.getpid()),
    "KUBECONFIG": "/nonexistent/kubeconfig",  # tests never use the cluster of the user who runs them
    "OMP_NUM_THREADS": "1",
    "TERM": "xterm",
}
"""In the environment of `torchyard run`: it uses the templates of this pytest process, and starts those it lacks.

A template serves jobs with one environment, so that of all tests is the same.
"""


@contextlib.contextmanager
def without_pytest():
    """Take the variables of pytest out of the environment: they differ from test to test, and no user has them."""
    own = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PYTEST_")}
    try:
        yield
    finally:
        os.environ.update(own)


def template_pids():
    """Return the templates that end with this pytest process although it is not their parent."""
    owner = identify(os.getpid())
    templates = []
    with contextlib.suppress(OSError):  # their folder cannot be used: then there are none
        templates = shared_templates.of_owner(owner)
    return [each.pid for each in templates if stat_fields(each.pid)[1:2] != [str(owner.pid)]]
