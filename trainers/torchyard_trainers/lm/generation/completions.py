"""Completions of held-out prompts in evaluation: their rewards, and a table of some of them."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.metrics.curves import markdown
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.data.prompts import Prompts
from torchyard_trainers.lm.data.records import Prompt
from torchyard_trainers.lm.functions.rewards import Rewards
from torchyard_trainers.lm.generation.engine import Completions, Engine, Sampling, texts_of
from torchyard_trainers.lm.settings import Settings

# Rewards by name; anything else is MODULE:FUNCTION.
BUILT_IN = {"exact": "torchyard_trainers.lm.tasks:exact_match", "shaped": "torchyard_trainers.lm.tasks:shaped"}
TRANSCRIPT = "transcript"  # the column with all turns of a completion that calls tools
SHOWN = 32  # completions of a table
_LONGEST = 2000  # characters of a cell


class Judge:
    """The reward functions of a run; their processes start at the first call."""

    def __init__(self, settings: Settings, decode: Callable[[Sequence[int]], str]) -> None:
        """Judge texts that `decode` makes of tokens."""
        self._settings, self._decode = settings, decode
        self._rewards: list[Rewards] = []

    def texts(self, completions: Completions) -> list[str]:
        """Return the texts of completions."""
        return texts_of(completions, self._decode, self._settings.stop)

    def __call__(self, prompts: Sequence[Prompt], completions: Completions) -> list[list[float]]:
        """Return the rewards of each completion: a list for each function.

        Raises:
            RewardError: the function fails, hangs, or returns anything but a number for each completion.
        """
        settings, texts = self._settings, self.texts(completions)
        if not self._rewards:
            seconds, workers = settings.reward_seconds, settings.reward_workers
            self._rewards = [
                Rewards(BUILT_IN.get(name, name), seconds=seconds, workers=workers) for name, _ in settings.rewards
            ]
        # Answers of records are without the space around them, so what is compared with them is, too.
        stripped = [text.strip() for text in texts] if settings.reads_files else texts
        asked, rows = [prompt.text for prompt in prompts], [prompt.row for prompt in prompts]
        if settings.tools:
            whole = texts_of(completions._replace(generated=None), self._decode)
            rows = [{**row, TRANSCRIPT: text} for row, text in zip(rows, whole, strict=True)]
        for (name, _), each in zip(settings.rewards, self._rewards, strict=True):
            each.begin(asked, stripped if name in BUILT_IN else texts, rows)
        return [each.results() for each in self._rewards]

    def sums(self, prompts: Sequence[Prompt], completions: Completions) -> list[float]:
        """Return the weighted sum of the rewards of each completion."""
        weights = [each.weight for each in self._settings.rewards]
        return [
            math.fsum(weight * value for weight, value in zip(weights, each, strict=True))
            for each in zip(*self(prompts, completions), strict=True)
        ]


class Completed(NamedTuple):
    """A held-out prompt, its most probable completion, and a sampled one."""

    prompt: str
    answer: str | None  # the right one, where it is known
    greedy: str
    reward: float
    sampled: str
    sampled_reward: float

    @property
    def exact(self) -> bool:
        """Whether the most probable completion is the right answer, but for the space around it."""
        return self.answer is not None and self.greedy.strip() == self.answer


def complete(
    session: Session,
    settings: Settings,
    prompts: Prompts,
    *,
    engine: Engine,
    judge: Judge,
    samplings: tuple[Sampling, Sampling],
    count: int,
) -> list[Completed]:
    """Complete the first `count` held-out prompts; every rank gets all of them. Collective.

    Args:
        session: the model in training.
        settings: of the run.
        prompts: of the evaluation set.
        engine: generates with the model in training.
        judge: returns rewards.
        samplings: of the most probable completion, and of the sampled one.
        count: prompts.
    """
    world, mine = session.world, {}
    for slots in split(count, world.size, world.rank, settings.eval_batch):
        positions = list(slots.positions)
        asked = prompts.held_out(positions)
        judged = []
        for sampling in samplings:
            with engine.on_current_weights():
                found = engine.generate([each.tokens for each in asked], torch.tensor(positions), sampling)
            texts = judge.texts(found)
            judged.append((texts, judge.sums(asked, found)))
            session.reporter.goes_on()
        (greedy, rewards), (sampled, sampled_rewards) = judged
        for number, position in enumerate(positions):
            mine[position] = Completed(
                asked[number].text,
                asked[number].row.get("answer"),
                greedy[number],
                rewards[number],
                sampled[number],
                sampled_rewards[number],
            )
    every = {position: each for part in world.gather(mine) for position, each in part.items()}
    return [every[position] for position in range(count)]


def means(found: Sequence[Completed]) -> dict[str, float]:
    """Return the mean rewards, and the share of right answers where answers are known."""
    count = len(found)
    if not count:
        return {}
    metrics = {
        "evalReward": sum(each.reward for each in found) / count,
        "evalRewardSampled": sum(each.sampled_reward for each in found) / count,
    }
    if all(each.answer is not None for each in found):
        metrics["exactMatch"] = sum(each.exact for each in found) / count
    return metrics


def rows_of_table(found: Sequence[Completed]) -> list[dict[str, str | float]]:
    """Return the first completions as rows of a table."""
    rows: list[dict[str, str | float]] = []
    known = any(each.answer is not None for each in found)
    for each in found[:SHOWN]:
        row: dict[str, str | float] = {"prompt": each.prompt[-_LONGEST:]}
        if known:
            row["answer"] = (each.answer or "")[:_LONGEST]
        row |= {"greedy": each.greedy[:_LONGEST], "reward": each.reward}
        row |= {"sampled": each.sampled[:_LONGEST], "sampledReward": each.sampled_reward}
        rows.append(row)
    return rows


def write_table(rows: Sequence[Mapping[str, str | float]], folder: Path) -> list[Path]:
    """Write a table as JSON lines and as Markdown; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, page = folder / "completions.jsonl", folder / "completions.md"
    write_atomically(lines, "".join(json.dumps(row) + "\n" for row in rows))
    write_atomically(page, markdown(rows))
    return [lines, page]
