"""The tabletop of reinforcement learning: its rules, the expert, and what its pictures show."""

import pytest
import torch

from torchyard_trainers.rl.tabletop import ACTIONS, SHAPING, Tabletop

TASKS = ("reach", "grasp", "pick_place")


def every_state(table):
    """Every state of a table: where gripper, can and bin are, up or down, open or closed, held or not."""
    cells = [(x, y) for x in range(table.grid) for y in range(table.grid)]
    rows = [
        (*gripper, height, closed, held, *can, *goal)
        for gripper in cells
        for height in (0, 1)
        for can in cells
        for goal in cells
        for closed, held in ((0, 0), (1, 0), (1, 1))
        if not held or gripper == can
    ]
    found = torch.tensor(rows)
    return {
        "gripper": found[:, :3],
        "closed": found[:, 3].bool(),
        "held": found[:, 4].bool(),
        "can": found[:, 5:7],
        "bin": found[:, 7:9],
        "time": torch.zeros(len(rows), dtype=torch.int64),
    }


def numbers_of(state):
    """Return a number for each state that no other has."""
    columns = [state["gripper"], state["closed"][:, None], state["held"][:, None], state["can"], state["bin"]]
    digits = torch.cat([each.long() for each in columns], 1)
    return (digits * 10 ** torch.arange(digits.shape[1])).sum(1)


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_is_as_fast_as_the_shortest_way_that_a_search_of_all_states_finds(task):
    table = Tabletop(task, 2, 8)
    state = every_state(table)
    numbers = numbers_of(state)
    place = {int(number): index for index, number in enumerate(numbers)}
    actions = range(len(ACTIONS))
    reached = [numbers_of(table.advance(state, torch.full_like(numbers, action))) for action in actions]
    following = torch.stack([torch.tensor([place[int(number)] for number in each]) for each in reached], 1)
    left = table.steps_left(state)
    shortest = torch.where(left == 0, 0, 99)
    for _ in range(40):
        shortest = torch.minimum(shortest, shortest[following].amin(1) + 1)
    assert torch.equal(left, shortest)
    chosen = following.gather(1, table.expert(state))[:, 0]
    assert (left[chosen] == left - 1)[left > 0].all()


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_of_the_expert_pays_its_way_and_success_and_another_begins_within_the_step(task):
    table = Tabletop(task, 4, 8)
    numbers = torch.rand(table.limit + 1, 64, table.draws, generator=torch.Generator().manual_seed(1))
    state = table.reset(numbers[0])
    assert not (state["gripper"][:, :2] == state["can"]).all(1).any()
    assert not (state["bin"] == state["can"]).all(1).any()
    needed = table.steps_left(state)
    total, over = torch.zeros(64), torch.zeros(64, dtype=torch.bool)
    for step in range(1, table.limit + 1):
        found = table.step(state, table.expert(state), numbers[step])
        ended = found.terminated[:, 0]
        total += found.reward[:, 0].masked_fill(over, 0)
        assert torch.equal(ended & ~over, (needed == step) & ~over)
        assert (found.state["time"][ended] == 0).all()
        over, state = over | ended, found.state
    assert over.all()
    assert torch.allclose(total, SHAPING * needed + 1)


def test_an_episode_without_success_is_cut_off_at_the_limit_and_its_last_state_is_reported():
    table = Tabletop("grasp", 4, 16)
    numbers = torch.rand(table.limit + 1, 8, table.draws, generator=torch.Generator().manual_seed(2))
    state = table.reset(numbers[0])
    for step in range(1, table.limit + 1):
        last = table.advance(state, torch.full((8,), ACTIONS.index("up")))
        found = table.step(state, torch.full((8, 1), ACTIONS.index("up")), numbers[step])
        assert not found.terminated.any()
        assert found.truncated.all() == (step == table.limit)
        state = found.state
    assert all(torch.equal(found.final[name], last[name]) for name in last)
    assert (state["time"] == 0).all()


def test_images_show_every_part_of_a_state_and_nothing_else():
    table = Tabletop("pick_place", 2, 16)
    state = every_state(table)
    pictures = table.observe(state).flatten(1)
    assert pictures.shape == (len(pictures), table.observed)
    assert 0 <= pictures.min() < pictures.max() <= 1
    numbers = numbers_of({**state, "held": torch.zeros_like(state["held"])})
    # Whether a can below a closed gripper is held is not seen.
    assert len(pictures.mul(1000).round().unique(dim=0)) == len(numbers.unique())
    later = table.observe({**state, "time": state["time"] + 3}).flatten(1)
    assert torch.equal(later, pictures)
