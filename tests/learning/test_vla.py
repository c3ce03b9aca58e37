"""Behaviour cloning really learns: preset tiny, models of 0.3 to 0.8 million parameters, from images."""

import pytest


def test_a_policy_reaches_the_object_that_the_instruction_names_with_every_seed(reach):
    reach("vla")


@pytest.mark.parametrize("head", ["act"])
def test_other_heads_reach_an_object_with_every_seed(reach, head):
    reach(f"vla-{head}")
