"""The summary of an `lm` run: its metrics, and a sentence."""

from collections.abc import Mapping
from typing import Any

from torchyard_trainers.lm.settings import Settings

# Metrics of the summary, and those that its text names.
_SUMMARY = (
    *("exactMatch", "exactMatchUntrained", "exactMatchSupervised", "evalLoss", "evalLossUntrained", "perplexity"),
    *("evalReward", "evalRewardSampled", "reward", "completionTokens"),
    *("evalRewardAccuracy", "evalRewardMargin", "preferenceAccuracy", "rewardAccuracy", "rewardMargin"),
)
_WORDS = {
    "exactMatch": "exact match",
    "evalLoss": "loss of right answers",
    "evalRewardAccuracy": "accuracy of the implied rewards",
    "preferenceAccuracy": "preference accuracy",
    "evalReward": "reward of held-out prompts",
    "reward": "reward",
}


def summary_of(settings: Settings, metrics: Mapping[str, float], *, steps: int, count: int) -> dict[str, Any]:
    """Return the summary of a run that has made so many steps, evaluated on `count` held-out samples."""
    of_task = not settings.reads_files
    what = f"{settings.task} by {settings.method}" if of_task else settings.method
    parts = []
    for name, words in _WORDS.items():
        if name in metrics:
            before = f", untrained {metrics[f'{name}Untrained']:.3f}" if f"{name}Untrained" in metrics else ""
            parts.append(f"{words} {metrics[name]:.3f}{before}")
    return {
        "trainer": "lm",
        "method": settings.method,
        **({"task": settings.task} if of_task else {}),
        "steps": steps,
        **{name: metrics[name] for name in _SUMMARY if name in metrics},
        "text": f"{what}: {'; '.join(parts)}; after {steps} steps, on {count} held-out samples",
    }
