"""DPO, GRPO and PPO: what their steps compute, and that no distribution of the samples changes it."""

import pytest
import torch
from little_rl import session_of
from tests.support.trainers.gangs import Yard
from tests.trainers.test_lm_equality import settings

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.optimizers import as_one
from torchyard_trainers.core.step import set_learning_rate
from torchyard_trainers.core.workload import MicroBatch
from torchyard_trainers.lm.generation.completions import Judge
from torchyard_trainers.lm.generation.engine import Completions
from torchyard_trainers.lm.generation.rollouts import rows_of_samples, samples_of_rank
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

LEARNED = {
    *("loss", "gradNorm", "reward", "rewardDeviation", "completionTokens", "truncatedFraction", "degenerateGroups"),
    *("entropy", "approxKl", "clipFraction", "kl", "valueLoss", "rewardMargin", "rewardAccuracy"),
    *("preferenceAccuracy", "evalLoss", "exactMatch", "chosenReward", "rejectedReward"),
    *("evalRewardAccuracy", "evalRewardMargin"),
}
METHODS = {
    "dpo": {"sftSteps": 1},
    "kto": {"sftSteps": 1},
    "grpo": {"group": 5, "sftSteps": 2, "minibatches": 2, "klCoefficient": 0.1, "reward": "shaped"},
    "ppo": {"sftSteps": 2, "minibatches": 2, "klCoefficient": 0.1, "reward": "shaped"},
}


# A rate that does not depend on the number of steps, so that a shorter run is the beginning of a longer one.
SAME_RATE = {"schedule": "constant", "warmupSteps": 0}


def of_method(method, steps=6, **sections):
    return settings(steps, params={"method": method, "batch": 10, **SAME_RATE, **METHODS[method]}, **sections)


def resolved(**params):
    return resolve_params(params, Parallelism())


@pytest.mark.parametrize("world", [1, 2, 3, 12])
def test_every_completion_of_a_rollout_is_generated_by_the_rank_that_trains_on_it(world):
    chosen = resolved(method="grpo", batch=10, group=5, minibatches=2, sftSteps=0)
    seen = []
    for rank in range(world):
        positions, real = samples_of_rank(chosen, world, rank)
        seen += [position for position, counts in zip(positions, real, strict=True) if counts]
        for minibatch in range(2):
            (slots,) = split(10, world, rank)
            rows = rows_of_samples(chosen, world, rank, minibatch, torch.tensor(slots.positions))
            for row, position, weight in zip(rows.tolist(), slots.positions, slots.weights, strict=True):
                if weight:
                    assert positions[row] == minibatch * 10 + position
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "sft", "group": 4}, "trainer.params.group: is of method grpo, not sft; remove it"),
        ({"method": "grpo", "beta": 0.1}, "trainer.params.beta: is of method dpo and orpo and simpo and kto, not grpo"),
        ({"method": "grpo", "batch": 10, "group": 4}, "batch: 10 completions are not groups of 4"),
        ({"method": "ppo", "sftSteps": 3, "minibatches": 2}, "sftSteps: 3 is not a multiple of the 2 steps"),
        ({"method": "dpo", "steps": 5, "sftSteps": 5}, "steps: 5, and sftSteps 5 of them leave none for dpo"),
        ({"method": "grpo", "reward": "no function"}, "trainer.params.reward"),
        ({"method": "grpo", "valueLrScale": 2}, "trainer.params.valueLrScale: is of method ppo, not grpo"),
        ({"method": "ppo", "ratioLevel": "sequence"}, "trainer.params.ratioLevel: is of method grpo, not ppo"),
        ({"method": "sft", "maskTruncated": True}, "trainer.params.maskTruncated: is of method grpo and ppo, not sft"),
        ({"reward": "a:b", "rewards": [{"reward": "exact"}]}, "reward: a:b, but trainer.params.rewards are set"),
        ({"rewards": [{"reward": "exact"}] * 2}, "rewards: exact is there twice; add up its weights"),
        ({"rewards": [{"reward": "exact", "weight": 0}]}, "exact has the weight 0, expected a number that is not 0"),
        ({"rewards": [{"reward": "a.py:f"}]}, "reward: a.py:f names a file; write its module: a:f"),
        ({"rewards": [{"name": "exact"}]}, "trainer.params.rewards"),
        ({"method": "sft", "optimizer": "adam"}, "trainer.params.optimizer: 'adam' is not known"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        resolved(**params)


def test_a_group_shares_one_prompt_and_the_first_ratio_is_one():
    work = LanguageModeling(
        resolved(method="grpo", batch=10, group=5, minibatches=2, sftSteps=0, steps=4, warmupSteps=0)
    )
    session = session_of(work)
    metrics = work.prepare(session, 0)
    rollout = work._reinforcement._held
    assert len(rollout.tokens) == 20
    prompts = [
        tuple(row[: int((labels != IGNORE).int().argmax()) + 1].tolist())
        for row, labels in zip(rollout.tokens, rollout.labels, strict=True)
    ]
    for group in range(4):
        assert len(set(prompts[group * 5 : group * 5 + 5])) == 1
    assert len(set(prompts)) > 1
    assert 0 <= metrics["degenerateGroups"] <= 1
    found = work.loss(session, MicroBatch(torch.arange(10), torch.ones(10), step=0))
    tokens = found.statistics["approxKl"].count
    assert found.statistics["approxKl"].total / tokens < 1e-6
    assert found.statistics["clipFraction"].total == 0


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "muon"])
def test_each_optimizer_learns_and_the_value_head_has_a_rate_of_its_own(optimizer):
    if optimizer == "adamw8bit":
        pytest.importorskip("torchao", reason="torchao is not installed: pip install torchyard[lowbit]")
    work = LanguageModeling(resolved(method="ppo", optimizer=optimizer, valueLrScale=4.0, batch=16, sftSteps=4))
    session = session_of(work)
    made = as_one(work.optimizer(session.parallel.module))
    scales = {
        name: group["lr_scale"]
        for group in made.param_groups
        for name, each in session.parallel.module.named_parameters()
        if any(each is other for other in group["params"])
    }
    assert {name for name, scale in scales.items() if scale == 4.0} == {
        name for name in scales if name.startswith("value_head.")
    }
    set_learning_rate(made, 3e-3)
    batch = MicroBatch(torch.arange(16), torch.ones(16), step=0)
    losses = []
    with torch.compiler.set_stance("force_eager"):  # torchao compiles an update for every shape
        for _ in range(4):
            found = work.loss(session, batch)
            mean = found.loss / found.count
            mean.backward()
            made.step()
            made.zero_grad()
            losses.append(mean.item())
    assert losses[-1] < 0.98 * losses[0], losses


def test_the_reward_of_a_completion_is_the_weighted_sum_of_several():
    rewards = [{"reward": "shaped", "weight": 0.5}, {"reward": "exact", "weight": 2}]
    work = LanguageModeling(resolved(method="grpo", batch=10, group=5, sftSteps=0, rewards=rewards))
    session = session_of(work)
    prompts = work._prompts.of_ids([0, 1])
    answers = [each.row["answer"] for each in prompts]
    said = torch.tensor([work.tokenizer.encode(each) for each in (f"{answers[0]}<eos>", f"{answers[1]}x")])
    completions = Completions(said, torch.ones_like(said, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    assert work._judge.sums(prompts, completions) == pytest.approx([2.5, 0.5 * 0.5 * 4 / 5])
    metrics = work.prepare(session, 0)
    assert metrics["reward"] == pytest.approx(0.5 * metrics["reward1"] + 2 * metrics["reward2"])


def test_truncated_completions_are_no_part_of_the_loss():
    params = {"method": "grpo", "batch": 12, "group": 4, "sftSteps": 0, "maxNewTokens": 6, "klCoefficient": 0.1}
    stop = [chr(ord("a") + number) for number in range(8)]
    work = LanguageModeling(resolved(**params, reward="shaped", maskTruncated=True, stop=stop))
    session = session_of(work)
    metrics = work.prepare(session, 0)
    rollout = work._reinforcement._held
    learned = [row[row != IGNORE].tolist() for row in rollout.labels]
    assert 0 < metrics["truncatedFraction"] < 1
    assert metrics["truncatedFraction"] == pytest.approx(sum(not row for row in learned) / 12)
    ends = {work.tokenizer.eos_token_id, *work.tokenizer.convert_tokens_to_ids(stop)}
    assert all(row[-1] in ends for row in learned if row)
    found = work.loss(session, MicroBatch(torch.arange(12), torch.ones(12), step=0))
    assert found.count == (rollout.labels != IGNORE).sum()


def test_a_step_whose_completions_are_all_truncated_changes_nothing():
    params = {"method": "grpo", "batch": 4, "group": 2, "sftSteps": 0, "maxNewTokens": 1, "maskTruncated": True}
    work = LanguageModeling(resolved(**params))
    session = session_of(work)
    assert work.prepare(session, 0)["truncatedFraction"] == 1
    found = work.loss(session, MicroBatch(torch.arange(4), torch.ones(4), step=0))
    assert (found.loss, found.count) == (0, 4)
    found.loss.backward()
    gradients = [each.grad for each in session.parallel.module.parameters()]
    assert all(each is not None and not each.any() for each in gradients)


def test_a_completion_ends_at_a_stop_text_which_is_not_judged():
    letters = [chr(ord("a") + number) for number in range(8)]
    work = LanguageModeling(resolved(method="grpo", batch=16, group=4, sftSteps=0, stop=letters, maxNewTokens=12))
    session = session_of(work)
    work.prepare(session, 0)
    rollout = work._reinforcement._held
    completions = [tokens[labels != IGNORE] for tokens, labels in zip(rollout.labels, rollout.labels, strict=True)]
    texts = [work.tokenizer.decode(each.tolist(), skip_special_tokens=True) for each in completions]
    assert any(texts)
    assert all(sum(text.count(each) for each in letters) <= 1 for text in texts), texts
    judged = Judge(work.settings, work.tokenizer.decode).texts(
        Completions(rollout.labels.clamp(min=0), rollout.labels != IGNORE, torch.ones(16, dtype=torch.bool))
    )
    assert not any(each in text for text in judged for each in letters)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    """What one process measured that was never stopped."""
    measured = {}
    for method in METHODS:
        yard = Yard(fork_server, tmp_path_factory.mktemp(method))
        yard.train(of_method(method))
        measured[method] = yard.metrics()
    return measured


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("method", "ranks", "parallelism"),
    [
        *((method, (2, 1), {"strategy": "ddp", "microBatchSize": 3}) for method in METHODS),
        *((method, (2, 1), {"strategy": "fsdp"}) for method in ("dpo", "grpo")),
        *((method, (3, 1), {"strategy": "fsdp", "microBatchSize": 2}) for method in METHODS),
        *((method, (4, 2), {"strategy": "hsdp"}) for method in ("dpo", "grpo")),
    ],
)
def test_every_strategy_is_the_same_run_with_and_without_accumulation(yard, undisturbed, method, ranks, parallelism):
    world, nodes = ranks
    yard.train(of_method(method, parallelism=parallelism), world, nodes=nodes)
    yard.assert_learned(undisturbed[method], LEARNED, rel=1e-4)
    losses = {line["step"]: line["loss"] for line in undisturbed[method]}
    assert yard.losses() == pytest.approx(losses, abs=1e-5, rel=1e-5)


@pytest.mark.e2e
def test_a_run_that_stopped_after_a_rollout_continues_bit_identically(yard, undisturbed):
    yard.train(of_method("grpo", 4))
    yard.train(of_method("grpo", 6))
    assert yard.metrics()[-1]["loss"] == undisturbed["grpo"][-1]["loss"]


@pytest.mark.e2e
@pytest.mark.parametrize(("log_every", "interval"), [(4, 100), (100, 4)])
def test_a_line_of_the_curves_has_what_was_measured_since_the_line_before(yard, undisturbed, log_every, interval):
    rare = of_method("grpo", checkpoint={"interval": {"steps": interval}})
    rare["trainer"]["params"]["logEvery"] = log_every
    yard.train(rare)
    every, lines = ({line["step"]: line for line in each} for each in (undisturbed["grpo"], yard.metrics()))
    assert list(lines) == [4, 6], "one every logEvery steps, one with a checkpoint, and the last"
    # Rollouts precede steps 3 and 5; evaluations follow steps 3 and 6.
    measured = {4: {"reward": 3, "completionTokens": 3, "exactMatch": 3}, 6: {"reward": 5, "exactMatch": 6}}
    for step, origins in measured.items():
        expected = {name: every[origin][name] for name, origin in origins.items()}
        assert {name: lines[step].get(name) for name in origins} == expected
