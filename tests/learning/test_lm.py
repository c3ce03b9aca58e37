"""Fine-tuning of a language model really learns: preset tiny, 75,000 parameters, letters reversed."""

import pytest


def test_supervised_fine_tuning_reverses_letters_with_every_seed(reach):
    reach("lm-sft")


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_rewards_of_sampled_completions_teach_what_supervised_steps_left_open_with_every_seed(reach, method):
    for summary in reach(f"lm-{method}"):
        assert summary["exactMatchSupervised"] < summary["exactMatch"], summary


def test_preferences_are_learned_with_every_seed(reach):
    reach("lm-dpo")
