"""For every test: hypothesis never judges by the clock, since a busy machine is no defect."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # a failed assertion in there shows its values, too
settings.register_profile("torchyard", deadline=None)
settings.load_profile("torchyard")
