"""Objectives of preference learning, loss and gradient, against their definitions written as loops."""

import math
import sys

import pytest
import torch

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.lm.data.datasets import Datasets
from torchyard_trainers.lm.methods.objectives.dpo import Dpo
from torchyard_trainers.lm.methods.objectives.kto import Kto
from torchyard_trainers.lm.methods.objectives.objective import Answers
from torchyard_trainers.lm.methods.objectives.orpo import Orpo, log1mexp
from torchyard_trainers.lm.methods.objectives.own import Own
from torchyard_trainers.lm.methods.objectives.simpo import Simpo
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.tokens import character_tokenizer

# Three pairs, the chosen answers first; of labelled answers, the first and the last two are right.
NOW = [-3.0, -5.0, -0.7, -4.0, -2.0, -9.0]
KNOWN = [-3.5, -5.0, -0.9, -3.0, -3.0, -8.0]
TOKENS = [2, 5, 1, 4, 1, 3]
RIGHT = [True, False, False, False, True, True]


def answers(right=None, divergence=None):
    now = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
    known = torch.tensor(KNOWN, dtype=torch.float64)
    rights = torch.tensor(right or [True] * 3 + [False] * 3)
    return Answers(now, torch.tensor(TOKENS), known, rights, divergence)


def log_sigmoid(value):
    return -math.log1p(math.exp(-value))


def dpo(now, pair, *, normalized=False):
    gains = [(now[at] - KNOWN[at]) / (TOKENS[at] if normalized else 1) for at in (pair, pair + 3)]
    return -log_sigmoid(0.1 * (gains[0] - gains[1]))


def simpo(now, pair):
    chosen, rejected = (now[at] / TOKENS[at] for at in (pair, pair + 3))
    return -log_sigmoid(2.0 * (chosen - rejected) - 0.5)


def orpo(now, pair):
    means = [now[at] / TOKENS[at] for at in (pair, pair + 3)]
    odds = [math.log(math.exp(mean) / (1 - math.exp(mean))) for mean in means]
    return -means[0] - 0.2 * log_sigmoid(odds[0] - odds[1])


def kto(now, at):
    gain = 0.1 * (now[at] - KNOWN[at] - 0.3)
    sign, weight = (1, 2.0) if RIGHT[at] else (-1, 0.5)
    return weight * (1 - 1 / (1 + math.exp(-sign * gain)))


@pytest.mark.parametrize(
    ("objective", "of_sample", "reward"),
    [
        (Dpo(0.1), dpo, lambda at: 0.1 * (NOW[at] - KNOWN[at])),
        (
            Dpo(0.1, length_normalized=True),
            lambda now, pair: dpo(now, pair, normalized=True),
            lambda at: 0.1 * (NOW[at] - KNOWN[at]) / TOKENS[at],
        ),
        (Simpo(2.0, 0.5), simpo, lambda at: 2.0 * NOW[at] / TOKENS[at]),
        (Orpo(0.2), orpo, lambda at: 0.2 * NOW[at] / TOKENS[at]),
        (Kto(0.1, 2.0, 0.5), kto, lambda at: 0.1 * (NOW[at] - KNOWN[at])),
    ],
    ids=["dpo", "dpo-normalized", "simpo", "orpo", "kto"],
)
def test_loss_gradient_and_rewards_are_their_definitions(objective, of_sample, reward):
    right = [True] * 3 + [False] * 3 if objective.paired else RIGHT
    given = answers(right, torch.tensor(0.3, dtype=torch.float64))
    found = objective(given)
    count = 3 if objective.paired else 6
    assert found.loss.tolist() == pytest.approx([of_sample(NOW, each) for each in range(count)], rel=1e-9)
    found.loss.sum().backward()
    for at in range(6):
        sums = []
        for step in (-1e-6, 1e-6):
            moved = [*NOW[:at], NOW[at] + step, *NOW[at + 1 :]]
            sums.append(sum(of_sample(moved, each) for each in range(count)))
        assert given.log_probability.grad[at].item() == pytest.approx((sums[1] - sums[0]) / 2e-6, abs=1e-8)
    rewards = [reward(each) for each in range(6)]
    assert found.reward.tolist() == pytest.approx(rewards)
    if objective.paired:
        expected = [float(rewards[each] > rewards[each + 3]) for each in range(3)]
    else:
        expected = [float((rewards[each] > 0.1 * 0.3) == RIGHT[each]) for each in range(6)]
    assert found.accuracy.tolist() == expected


def test_an_answer_that_is_certain_has_finite_odds_and_gradients():
    values = torch.tensor([-1e-7, -1e-3, -0.6931, -0.6932, -5.0, -90.0], dtype=torch.float64, requires_grad=True)
    found = log1mexp(values)
    assert found.tolist() == pytest.approx([math.log(-math.expm1(each)) for each in values.tolist()], rel=1e-12)
    found.sum().backward()
    assert torch.isfinite(values.grad).all()
    certain = Answers(torch.zeros(2, requires_grad=True), torch.ones(2), None, torch.tensor([True, False]))
    loss = Orpo(0.1)(certain).loss
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(certain.log_probability.grad).all()


def test_an_objective_of_the_user_gets_log_probabilities_of_pairs(tmp_path, monkeypatch):
    (tmp_path / "own_objectives.py").write_text(
        "def ipo(chosen, rejected, reference_chosen, reference_rejected, chosen_tokens, rejected_tokens, beta):\n"
        "    gain = (chosen - reference_chosen) - (rejected - reference_rejected)\n"
        "    return (gain - 1 / (2 * beta)).square()\n"
        "def too_few(chosen): return chosen\n"
        "def one_number(chosen, *others): return chosen.mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = answers()
    found = Own("own_objectives:ipo", 0.1)(given)
    gains = [NOW[each] - KNOWN[each] - NOW[each + 3] + KNOWN[each + 3] for each in range(3)]
    assert found.loss.tolist() == pytest.approx([(each - 5) ** 2 for each in gains])
    assert found.accuracy.tolist() == [float(each > 0) for each in gains]
    with pytest.raises(TrainerError, match=r"objective: own_objectives:too_few is called as f\(chosen, rejected"):
        Own("own_objectives:too_few", 0.1)(given)
    with pytest.raises(TrainerError, match=r"the loss of each of 3 pairs, .* returned a tensor of shape \(\)"):
        Own("own_objectives:one_number", 0.1)(given)
    with pytest.raises(ConfigError, match=r"objective: 'own_objectives:none', but own_objectives has no function none"):
        Own("own_objectives:none", 0.1)
    del sys.modules["own_objectives"]
    with pytest.raises(ConfigError, match=r"there is no module 'no_such_module'; set workingDir"):
        Own("no_such_module:f", 0.1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "orpo", "objective": "a:b"}, "objective: is of method dpo, not orpo"),
        ({"method": "dpo", "objective": "a:b", "lengthNormalized": True}, "gets the numbers of tokens; remove one"),
        ({"method": "dpo", "targetMargin": 1}, "targetMargin: is of method simpo, not dpo"),
        ({"method": "kto", "batch": 1}, "batch: 1, but kto compares with the answers of other samples"),
        ({"method": "kto", "data": ["a"], "trainOn": "all"}, "trainOn: all, but kto compares answers"),
    ],
)
def test_parameters_of_other_objectives_are_rejected(params, message):
    with pytest.raises(ConfigError, match=message):
        resolve_params(params, Parallelism())


def test_records_of_kto_are_exchanged_between_prompts(tmp_path):
    rows = [("p", "right", "true"), ("question", "no", "false"), ("asked", "yes", "true")]
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "{p}", "completion": "{c}", "label": {label}}}\n' for p, c, label in rows)
    )
    tokenizer, file = character_tokenizer(), [str(tmp_path / "rows.jsonl")]
    settings = resolve_params({"method": "kto", "data": file, "validation": file, "maxLength": 9}, Parallelism())
    data = Datasets(settings, tokenizer, len(tokenizer), tokens_of="characters")
    assert data.rated([0, 1])["right"].tolist() == [True, False]
    made = data.exchanged([0, 1], [2, 0])
    shown = []
    for tokens, labels in zip(made["tokens"], made["labels"], strict=True):
        answer = labels[labels != -100].tolist()
        shown.append((tokenizer.decode(tokens.tolist()).rstrip("\0"), tokenizer.decode(answer)))
    end = tokenizer.eos_token
    assert [answer for _, answer in shown] == [f"yes{end}", "ri"], "no longer than maxLength"
    assert (data.answers([0, 1]).labels != -100).sum(1).tolist() == [6, 0], "wrong answers are no right ones"
    assert data.has_answers
    assert len(data.asking) == 2
