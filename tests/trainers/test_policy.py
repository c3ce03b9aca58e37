"""The policy: likelihoods are right, nothing depends on batch neighbours, baselines are per instance."""

import pytest
import torch

from torchyard_trainers.core.config import Config, Parallelism, Trainer
from torchyard_trainers.core.device import as_on_gpu
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.core.world import World
from torchyard_trainers.cvrp import baselines, params, report, tours
from torchyard_trainers.cvrp.baselines import DECAY, Shared, significantly_shorter, t_quantile
from torchyard_trainers.cvrp.decoding import SYMMETRIES
from torchyard_trainers.cvrp.evaluation import EVALUATION, make, tour_lengths
from torchyard_trainers.cvrp.instances import generate
from torchyard_trainers.cvrp.policy import Policy, Routes, draw
from torchyard_trainers.cvrp.task import Cvrp, critic_loss

MODELS = ("am", "gat", "gt", "dgt")
MEANS = {"trainCost": 5.0, "advantage": 0.0}
BASELINES = ("shared", "rollout", "ema", "critic")


def task(*, compiled: bool = False, **given) -> Cvrp:
    small = {"customers": 5, "batch": 8, "embedding": 16, "heads": 2, "layers": 1, "baselineInstances": 64}
    config = Config(trainer=Trainer(name="cvrp", params=small | given))
    return Cvrp(params.resolve_params(config.trainer.params, Parallelism(compile=compiled)))


def session_of(work: Cvrp) -> Session:
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    model = work.build()
    precision = Precision("fp32", world.device, sharded=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    return Session(Parallel("single", model, model), precision, world, reporter, None)


@pytest.mark.parametrize("model", MODELS)
def test_a_sample_is_routed_the_same_in_any_batch(model):
    torch.manual_seed(1)
    policy = Policy(model, 16, 2, 2)
    ids = torch.arange(24)
    keys = split_keys(sample_keys(9, ids), 3)
    together = policy(generate(1, "t", ids, customers=6, capacity=20), keys, likelihood=True)
    part = policy(generate(1, "t", ids[5:9], customers=6, capacity=20), keys[5:9], likelihood=True)
    steps = min(together.moves.shape[2], part.moves.shape[2])
    assert torch.equal(together.moves[5:9, :, :steps], part.moves[..., :steps])
    assert torch.allclose(together.log_likelihood[5:9], part.log_likelihood, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_likelihoods_of_all_routes_of_a_small_instance_sum_to_one(model):
    torch.manual_seed(2)
    policy = Policy(model, 16, 2, 1)
    instances = generate(1, "t", torch.arange(1), customers=2, capacity=20)
    with torch.no_grad():
        routes = policy(instances, split_keys(torch.arange(1), 512), likelihood=True)
    found = {}
    for moves, likelihood in zip(routes.moves[0].tolist(), routes.log_likelihood[0].exp().tolist(), strict=True):
        found[tuple(moves)] = likelihood
    assert len(found) == 4  # 1-2, 2-1, 1-0-2, 2-0-1, each sampled many times
    assert sum(found.values()) == pytest.approx(1, abs=1e-4)


def test_a_route_begins_with_the_customer_that_is_given_and_that_is_no_choice_of_the_policy():
    torch.manual_seed(3)
    policy = Policy("am", 16, 2, 1)
    instances, starts = generate(1, "t", torch.arange(4), customers=6, capacity=20), torch.tensor([2, 5, 1])
    keys = split_keys(sample_keys(9, torch.arange(4)), 3)
    routes = policy(instances, keys, likelihood=True, starts=starts)
    assert torch.equal(routes.moves[..., 0], starts.expand(4, 3))
    tours.check(instances, routes.moves, routes.cost)
    assert torch.equal(policy(instances, starts=starts).moves[..., 0], starts.expand(4, 3))
    one = generate(1, "t", torch.arange(1), customers=6, capacity=20)
    free = policy(one, keys[:1], likelihood=True)
    again = policy(one, keys[:1], likelihood=True, starts=free.moves[0, :, 0])
    assert torch.equal(again.moves, free.moves)
    memory = policy.decoder.remember(policy.encoder(one))
    scores = policy.decoder(memory, one, tours.depart(one, 3)).log_softmax(-1)
    first = scores.gather(-1, free.moves[..., :1])[..., 0]
    assert torch.allclose(again.log_likelihood, free.log_likelihood - first, atol=1e-5)


def test_greedy_takes_the_most_likely_node_and_needs_no_noise():
    policy = Policy("am", 16, 2, 1)
    instances = generate(1, "t", torch.arange(8), customers=6, capacity=20)
    first, second = policy(instances), policy(instances)
    assert torch.equal(first.moves, second.moves)
    assert first.cost.shape == (8, 1)


def test_the_shared_baseline_is_a_mean_over_samples_of_one_instance():
    routes = Routes(torch.tensor([[1.0, 3.0], [10.0, 30.0]]), torch.zeros(2, 2, 1, dtype=torch.int64))
    assert Shared()(None, routes).tolist() == [[2.0], [20.0]]


def warmed(**given) -> tuple[Cvrp, Session]:
    """A task whose rollout baseline has had its first challenge."""
    work = task(baseline="rollout", baselineEvery=1, **given)
    session = session_of(work)
    work.begin(session)
    work.after_step(session, 1, MEANS)
    return work, session


def test_the_rollout_baseline_gives_each_instance_its_own_greedy_cost():
    work, session = warmed()
    instances = generate(1, "t", torch.arange(6), customers=5, capacity=20)
    with torch.no_grad():
        routes = session.parallel.module(instances)
    baseline = work.baseline(instances, routes)
    assert baseline.shape == (6, 1)
    assert len(baseline.unique()) == 6
    assert torch.equal(baseline, routes.cost)  # the copy is still the policy


def test_where_blocks_are_compiled_those_of_the_frozen_copy_are_too(monkeypatch):
    asked = []
    monkeypatch.setattr(baselines, "compile_blocks", asked.extend)
    work = task(baseline="rollout", compiled=True)
    policy = work.build()
    assert len(asked) == len(work.blocks(policy))
    assert not set(asked) & set(policy.modules())
    task(baseline="rollout").build()
    assert len(asked) == len(work.blocks(policy)), "only where it is asked for"


def test_until_the_first_challenge_the_moving_average_stands_in_for_the_rollout():
    work = task(baseline="rollout", baselineEvery=2)
    session = session_of(work)
    work.begin(session)
    instances = generate(1, "t", torch.arange(6), customers=5, capacity=20)
    routes = session.parallel.module(instances)
    assert len(work.baseline(instances, routes).unique()) == 1
    work.after_step(session, 1, MEANS)
    assert len(work.baseline(instances, routes).unique()) == 1
    work.after_step(session, 2, MEANS)
    assert len(work.baseline(instances, routes).unique()) == 6


def test_the_baseline_is_renewed_only_by_a_better_policy_and_then_judged_on_fresh_instances():
    work, session = warmed()
    before = work.baseline.state()
    costs, weights = before["costs"].clone(), {k: v.clone() for k, v in before["frozen"].items()}
    assert work.after_step(session, 2, MEANS)["baselineRenewals"] == 0
    assert torch.equal(work.baseline.state()["costs"], costs)
    before["costs"] += 1.0  # as if the copy were worse by one everywhere
    with torch.no_grad():
        session.parallel.module.decoder.glimpse.weight.mul_(1.01)
    assert work.after_step(session, 3, MEANS)["baselineRenewals"] == 1
    after = work.baseline.state()
    assert not torch.equal(after["frozen"]["decoder.glimpse.weight"], weights["decoder.glimpse.weight"])
    assert torch.equal(after["frozen"]["decoder.glimpse.weight"], session.parallel.module.decoder.glimpse.weight)
    assert not torch.allclose(after["costs"], costs)


def test_the_moving_average_follows_the_batches():
    work = task(baseline="ema")
    session = session_of(work)
    work.begin(session)
    start = float(work.baseline.state()["mean"])
    instances = generate(1, "t", torch.arange(6), customers=5, capacity=20)
    with torch.no_grad():
        routes = session.parallel.module(instances)
    for step in (1, 2):
        above = start - 1 - float(work.baseline(instances, routes)[0, 0])  # every route was 1 shorter than at first
        work.after_step(session, step, {"trainCost": start - 1, "advantage": above})
    baseline = work.baseline(instances, routes)
    assert baseline.shape == (6, 1)
    assert torch.allclose(baseline, torch.tensor(start - 1 + DECAY**2, dtype=torch.float32))


def test_the_baseline_includes_what_samples_cost_more_than_the_greedy_copy_on_average():
    work, session = warmed(baselineInstances=32)
    instances = generate(1, "t", torch.arange(6), customers=5, capacity=20)
    with torch.no_grad():
        routes = session.parallel.module(instances)
    for step in range(2, 40):
        above = 0.5 + float((routes.cost - work.baseline(instances, routes)).mean())
        work.baseline.after_step(session, step, {"trainCost": 5.0, "advantage": above})
    assert torch.allclose(work.baseline(instances, routes), routes.cost + 0.5, atol=1e-3)


def test_the_critic_learns_what_an_instance_costs_and_moves_no_other_weight():
    work = task(baseline="critic", lr=1e-2)
    policy = work.build()
    instances = generate(1, "t", torch.arange(64), customers=5, capacity=12)
    keys = split_keys(torch.arange(64), 16)
    optimizer = torch.optim.Adam(policy.critic.parameters(), lr=1e-2)
    errors = []
    for _ in range(150):
        routes = policy(instances, keys, likelihood=True)
        loss = critic_loss(routes.expected, routes.cost).mean()
        errors.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spread = critic_loss(routes.cost.mean().expand(64, 1), routes.cost).mean().item()
    assert errors[-1] < spread / 2 < errors[0]  # better than one number for all instances
    assert all(weight.grad is None for weight in policy.encoder.parameters())


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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_loss_is_reinforce_by_hand_and_padding_weighs_nothing(model, baseline):
    work = task(model=model, baseline=baseline)
    session = session_of(work)
    work.begin(session)
    batch = MicroBatch(torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    terms = work.loss(session, batch)
    ids = torch.arange(3)
    instances = make(work.settings, "train", ids)
    keys = split_keys(sample_keys(stream_key(work.settings.seed, "routes"), ids), work.settings.samples)
    routes = session.parallel.module(instances, keys, likelihood=True)
    others = work.baseline(instances, routes)[:, 0]
    loss = sum(
        (routes.cost[i, s] - others[i]).item() * routes.log_likelihood[i, s].item() / routes.cost.shape[1]
        for i in range(3)
        for s in range(routes.cost.shape[1])
    )
    assert abs(loss) > 1e-3
    if baseline == "critic":
        loss += critic_loss(routes.expected, routes.cost).sum().item()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-4)
    assert terms.statistics["trainCost"].item() == pytest.approx(routes.cost.mean(1).sum().item(), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_the_likelihood_of_all_choices_at_once_is_that_of_choosing_one_after_the_other(model):
    torch.manual_seed(3)
    policy = Policy(model, 16, 2, 2)
    instances = generate(1, "t", torch.arange(5), customers=7, capacity=20)
    routes = policy(instances, split_keys(torch.arange(5), 4), likelihood=True)
    memory, state, total = policy.decoder.remember(policy.encoder(instances)), tours.depart(instances, 4), 0
    for node in routes.moves.unbind(-1):
        chances = policy.decoder(memory, instances, state).log_softmax(-1)
        total = total + chances.gather(-1, node[..., None])[..., 0]
        state = tours.visit(instances, state, node)
    assert torch.allclose(routes.log_likelihood, total, atol=1e-5)
    weights = list(policy.parameters())
    at_once = torch.autograd.grad(routes.log_likelihood.sum(), weights, retain_graph=True)
    in_turn = torch.autograd.grad(total.sum(), weights)
    for first, second in zip(at_once, in_turn, strict=True):
        assert torch.allclose(first, second, atol=1e-3, rtol=1e-3)


def test_drawing_follows_the_softmax_and_never_takes_what_is_masked():
    logits = torch.tensor([0.0, -torch.inf, 1.0, 2.0, -torch.inf])
    noise = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    taken = draw(logits.expand(1, 100_000, 5), noise[None])
    assert torch.allclose(taken[0].bincount(minlength=5) / 100_000, logits.softmax(0), atol=2e-5)
    ends = torch.tensor([[2.0**-24, 1 - 2.0**-24]], dtype=torch.float64)
    assert draw(logits.expand(1, 2, 5), ends).tolist() == [[0, 3]]


def test_a_loss_refuses_weights_of_another_shape():
    work = task()
    session = session_of(work)
    with pytest.raises(AssertionError):
        work.loss(session, MicroBatch(torch.tensor([0, 1]), torch.ones(2, 1)))


def test_one_step_makes_good_routes_more_likely():
    work = task(model="gt", lr=1e-2)
    session = session_of(work)
    optimizer = work.optimizer(session.parallel.module)
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


def test_a_long_evaluation_is_seen_to_move_with_every_batch():
    work = task(evalInstances=12, evalBatch=2, decoding="augmented")
    session = session_of(work)
    before = session.reporter.facts["counter"]
    work.evaluate(session)
    # 6 batches each of greedy routes, of nearest neighbour and of savings; 12 of eight pictures.
    assert session.reporter.facts["counter"] - before == 3 * 6 + 12


def test_plots_of_tours_need_no_larger_batch_than_the_evaluation():
    work = task(evalInstances=4, evalBatch=1, decoding="augmented")
    session = session_of(work)
    batches = []
    session.parallel.module.register_forward_pre_hook(lambda _module, given: batches.append(len(given[0].xy)))
    pictures = report.draw(session, work.settings)
    assert max(batches) == SYMMETRIES
    lengths = tour_lengths(session, session.parallel.module, work.settings, EVALUATION, 4, how="augmented")
    assert [each.title for each in pictures] == [f"instance {n}: {cost:.3f}" for n, cost in enumerate(lengths)]


def test_what_a_checkpoint_cannot_be_resumed_with_is_part_of_the_identity():
    assert task(heads=4).identity != task(heads=2).identity
    first, second = (task(baseline="rollout", baselineInstances=count).identity for count in (64, 128))
    assert first != second
    assert task(baselineInstances=64).identity == task(baselineInstances=128).identity


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_no_number_of_the_loop_is_read_by_the_host(model, baseline):
    """Tensors without values (device meta) cannot be read; what runs on them never waits for a device."""
    work = task(model=model, baseline=baseline, baselineEvery=1)
    session = session_of(work)
    work.begin(session)
    work.after_step(session, 1, MEANS)
    policy = session.parallel.module.to("meta")
    batch = MicroBatch(torch.arange(8, device="meta"), torch.ones(8, device="meta"))
    work.loss(session, batch).loss.backward()
    assert all(weight.grad is not None for weight in policy.parameters())
    instances = make(work.settings, "t", batch.ids)
    routes = policy(instances)
    assert routes.moves.shape == (8, 1, 10)  # as many moves as a tour can need: nobody looked whether all are home


@pytest.mark.parametrize("model", ["am", "gt", "dgt"])
def test_the_code_path_for_gpus_computes_what_the_one_for_cpus_computes(model):
    found = []
    for gpu in (False, True):
        work = task(model=model)
        policy = work.build()
        instances = make(work.settings, "train", torch.arange(8))
        with as_on_gpu(wanted=gpu):
            routes = policy(instances, split_keys(torch.arange(8), 4), likelihood=True)
            routes.log_likelihood.sum().backward()
        found.append((routes.moves, routes.log_likelihood, [each.grad for each in policy.parameters()]))
    (moves, likelihood, gradients), (others, another, slopes) = found
    assert torch.equal(moves, others)
    assert torch.allclose(likelihood, another, rtol=1e-5)
    assert all(
        torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4) for mine, theirs in zip(gradients, slopes, strict=True)
    )
