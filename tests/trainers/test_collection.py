"""Exemptions from garbage collections: of a process's own modules, and never of those that forks share."""

import subprocess
import sys

IMPORTS = """
import gc
from torchyard_trainers.core.collection import exempt_all, exemptions, no_collections
"""
FRESH = """
with exemptions():
    with no_collections():
        import decimal
    assert gc.isenabled()
    imported = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    exempt_all()
    print(imported > 0, gc.get_freeze_count() >= imported + 1000)
print(gc.get_freeze_count())
"""
FORKED = """
import os
gc.freeze()
if os.fork():
    os.wait()
else:
    shared = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    with exemptions():
        with no_collections():
            import decimal
        exempt_all()
    print(shared - 100 < gc.get_freeze_count() <= shared)
"""


def printed(program):
    done = subprocess.run([sys.executable, "-c", IMPORTS + program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_process_exempts_its_modules_and_what_stays_until_its_end():
    assert printed(FRESH) == ["True", "True", "0"]


def test_a_fork_leaves_what_its_parent_has_exempted():
    assert printed(FORKED) == ["True"]
