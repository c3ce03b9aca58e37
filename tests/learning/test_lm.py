"""Fine-tuning of a language model really learns: preset tiny, 75,000 parameters, letters reversed."""

import pytest

pytestmark = pytest.mark.learning


def test_supervised_fine_tuning_reverses_letters_with_every_seed(learn):
    found = learn("lm")
    for summary in found:
        assert summary["exactMatchUntrained"] < 0.05, found
        assert summary["exactMatch"] >= 0.95, found
