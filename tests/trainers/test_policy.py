"""The policy: likelihoods are right, nothing depends on batch neighbours, baselines are per instance."""

import pytest
import torch

from torchyard_trainers.core.config import Config, Parallelism, Trainer
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.core.world import World
from torchyard_trainers.cvrp import params
from torchyard_trainers.cvrp.baseline import shared_baseline, significantly_shorter, t_quantile
from torchyard_trainers.cvrp.evaluation import EVALUATION, make
from torchyard_trainers.cvrp.instances import generate
from torchyard_trainers.cvrp.policy import Policy
from torchyard_trainers.cvrp.task import Cvrp


def task(**given) -> Cvrp:
    small = {"customers": 5, "batch": 8, "embedding": 16, "heads": 2, "layers": 1, "baselineInstances": 64}
    config = Config(trainer=Trainer(name="cvrp", params=small | given))
    return Cvrp(params.settle(params.read(config.trainer.params), Parallelism()))


def session_of(work: Cvrp) -> Session:
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    model = work.build()
    precision = Precision("fp32", world.device, sharded=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    return Session(Parallel("single", model, model), precision, world, reporter, None)


@pytest.mark.parametrize("model", ["am", "gt"])
def test_a_sample_is_routed_the_same_in_any_batch(model):
    torch.manual_seed(1)
    policy = Policy(model, 16, 2, 2)
    ids = torch.arange(24)
    keys = split_keys(sample_keys(9, ids), 3)
    together = policy(generate(1, "t", ids, customers=6, capacity=20), keys)
    part = policy(generate(1, "t", ids[5:9], customers=6, capacity=20), keys[5:9])
    steps = min(together.moves.shape[2], part.moves.shape[2])
    assert torch.equal(together.moves[5:9, :, :steps], part.moves[..., :steps])
    assert torch.allclose(together.log_likelihood[5:9], part.log_likelihood, atol=1e-5)


@pytest.mark.parametrize("model", ["am", "gt"])
def test_likelihoods_of_all_routes_of_a_small_instance_sum_to_one(model):
    torch.manual_seed(2)
    policy = Policy(model, 16, 2, 1)
    instances = generate(1, "t", torch.arange(1), customers=2, capacity=20)
    with torch.no_grad():
        routes = policy(instances, split_keys(torch.arange(1), 512))
    found = {}
    for moves, likelihood in zip(routes.moves[0].tolist(), routes.log_likelihood[0].exp().tolist(), strict=True):
        found[tuple(moves)] = likelihood
    assert len(found) == 4  # 1-2, 2-1, 1-0-2, 2-0-1, each sampled many times
    assert sum(found.values()) == pytest.approx(1, abs=1e-4)


def test_greedy_takes_the_most_likely_node_and_needs_no_noise():
    policy = Policy("am", 16, 2, 1)
    instances = generate(1, "t", torch.arange(8), customers=6, capacity=20)
    first, second = policy(instances), policy(instances)
    assert torch.equal(first.moves, second.moves)
    assert first.cost.shape == (8, 1)


def test_the_shared_baseline_is_a_mean_over_samples_of_one_instance():
    cost = torch.tensor([[1.0, 3.0], [10.0, 30.0]])
    assert shared_baseline(cost).tolist() == [[2.0], [20.0]]


def test_the_rollout_baseline_gives_each_instance_its_own_greedy_cost():
    work = task(baseline="rollout")
    session = session_of(work)
    instances = generate(1, "t", torch.arange(6), customers=5, capacity=20)
    baseline = work._baseline(instances)
    assert baseline.shape == (6, 1)
    assert len(baseline.unique()) == 6
    with torch.no_grad():
        assert torch.equal(baseline, session.parallel.module(instances).cost)


def test_the_baseline_is_renewed_only_by_a_better_policy_and_then_judged_on_fresh_instances():
    work = task(baseline="rollout")
    session = session_of(work)
    work._baseline.begin(session)
    before = work._baseline.state()
    costs, weights = before["costs"].clone(), {k: v.clone() for k, v in before["frozen"].items()}
    assert work._baseline.challenge(session)["baselineRenewals"] == 0
    assert torch.equal(work._baseline.state()["costs"], costs)
    before["costs"] += 1.0  # as if the copy were worse by one everywhere
    with torch.no_grad():
        session.parallel.module.glimpse.weight.mul_(1.01)
    assert work._baseline.challenge(session)["baselineRenewals"] == 1
    after = work._baseline.state()
    assert not torch.equal(after["frozen"]["glimpse.weight"], weights["glimpse.weight"])
    assert torch.equal(after["frozen"]["glimpse.weight"], session.parallel.module.glimpse.weight)
    assert not torch.allclose(after["costs"], costs)


def test_the_paired_t_test_is_one_sided_at_five_percent():
    torch.manual_seed(0)
    current = torch.rand(1000, dtype=torch.float64) * 5
    noise = torch.randn(1000, dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()
    error = 1 / 1000**0.5
    assert significantly_shorter(current + noise - 1.66 * error, current)
    assert not significantly_shorter(current + noise - 1.63 * error, current)
    assert not significantly_shorter(current + noise + 5 * error, current)


@pytest.mark.parametrize(("freedom", "published"), [(30, 1.69726), (60, 1.67065), (120, 1.65765), (9999, 1.64501)])
def test_critical_values_are_those_of_the_tables(freedom, published):
    assert t_quantile(0.05, freedom) == pytest.approx(-published, abs=2e-5)


@pytest.mark.parametrize("baseline", ["shared", "rollout"])
def test_the_loss_is_reinforce_by_hand_and_padding_weighs_nothing(baseline):
    work = task(baseline=baseline)
    session = session_of(work)
    batch = MicroBatch(torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    terms = work.loss(session, batch)
    ids = torch.arange(3)
    instances = make(work.settings, "train", ids)
    keys = split_keys(sample_keys(stream_key(work.settings.seed, "routes"), ids), work.settings.samples)
    policy = session.parallel.module
    cost, log_likelihood, _ = policy(instances, keys)
    others = policy(instances).cost[:, 0] if baseline == "rollout" else cost.mean(1)  # the copy is still the policy
    loss = sum(
        (cost[i, s] - others[i]).item() * log_likelihood[i, s].item() / cost.shape[1]
        for i in range(3)
        for s in range(cost.shape[1])
    )
    assert abs(loss) > 1e-3
    assert terms.loss.item() == pytest.approx(loss, rel=1e-4)
    assert terms.statistics["trainCost"].item() == pytest.approx(cost.mean(1).sum().item(), rel=1e-5)


def test_a_loss_refuses_weights_of_another_shape():
    work = task()
    session = session_of(work)
    with pytest.raises(AssertionError):
        work.loss(session, MicroBatch(torch.tensor([0, 1]), torch.ones(2, 1)))


def test_one_step_makes_good_routes_more_likely():
    work = task(model="gt", lr=1e-2)
    session = session_of(work)
    optimizer = work.optimizer(session.parallel.module.parameters())
    batch = MicroBatch(torch.arange(8), torch.ones(8))
    instances = generate(1, "train", batch.ids, customers=5, capacity=20)
    keys = split_keys(torch.arange(8), 32)
    before = session.parallel.module(instances, keys).cost.mean()
    for _ in range(30):
        optimizer.zero_grad()
        work.loss(session, batch).loss.backward()
        optimizer.step()
    assert session.parallel.module(instances, keys).cost.mean() < before - 0.05


def test_the_evaluation_set_is_one_and_the_same_for_every_seed():
    first, second = task(seed=1), task(seed=2)
    ids = torch.arange(4)
    assert torch.equal(make(first.settings, EVALUATION, ids).xy, make(second.settings, EVALUATION, ids).xy)
    assert not torch.equal(make(first.settings, "train", ids).xy, make(second.settings, "train", ids).xy)


def test_what_a_checkpoint_cannot_be_resumed_with_is_part_of_the_identity():
    assert task(heads=4).identity != task(heads=2).identity
    first, second = (task(baseline="rollout", baselineInstances=count).identity for count in (64, 128))
    assert first != second
    assert task(baselineInstances=64).identity == task(baselineInstances=128).identity
