"""Fine-tuning of a language model really learns: preset tiny, 75,000 parameters, letters reversed."""

import pytest


def test_supervised_fine_tuning_reverses_letters_with_every_seed(learn):
    found = learn("lm")
    for summary in found:
        assert summary["exactMatchUntrained"] < 0.05, found
        assert summary["exactMatch"] >= 0.95, found


@pytest.mark.parametrize(("method", "threshold"), [("grpo", 0.95), ("ppo", 0.9)])
def test_rewards_of_sampled_completions_teach_what_supervised_steps_left_open_with_every_seed(learn, method, threshold):
    found = learn("lm", method=method)
    for summary in found:
        assert summary["exactMatchSupervised"] < threshold - 0.1, found
        assert summary["exactMatch"] >= threshold, found


def test_preferences_are_learned_with_every_seed(learn):
    found = learn("lm", method="dpo")
    for summary in found:
        assert summary["preferenceAccuracy"] >= 0.95, found
        assert summary["rewardAccuracy"] >= 0.95, found
        assert summary["rewardMargin"] > 0, found
