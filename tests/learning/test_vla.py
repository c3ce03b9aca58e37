"""Behaviour cloning really learns: preset tiny, a pi0 of 0.31 million parameters, from images and instructions."""


def test_a_policy_reaches_the_object_that_the_instruction_names_with_every_seed(reach):
    reach("vla")
