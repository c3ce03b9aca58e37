"""Behaviour cloning really learns: preset tiny, a pi0 of 0.31 million parameters, from images and instructions."""

import pytest

pytestmark = pytest.mark.learning


def test_a_policy_reaches_the_object_that_the_instruction_names_with_every_seed(learn):
    found = learn("vla")
    for summary in found:
        assert summary["successRateUntrained"] < 0.2, found
        assert summary["flowLoss"] <= 0.2, found
        assert summary["successRate"] >= 0.85, found
        assert summary["wrongObjectRate"] <= 0.1, found
