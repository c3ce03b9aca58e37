"""Environments do what their definitions say, copy by copy, and nothing depends on the neighbours."""

import math

import pytest
import torch

from torchyard_trainers.core.randomness import sample_keys, split_keys, uniform
from torchyard_trainers.vecrl.bandit import Bandit
from torchyard_trainers.vecrl.cartpole import LIMIT, CartPole
from torchyard_trainers.vecrl.snake import START_LENGTH, Snake

CPU = torch.device("cpu")


def numbers(environment, copies, step):
    return uniform(split_keys(sample_keys(step, torch.arange(copies)), environment.draws))


def play(environment, copies, steps, seed=0):
    """Random actions; gives what was before a step, the actions, and what came of it."""
    generator = torch.Generator().manual_seed(seed)
    state = environment.reset(numbers(environment, copies, 1))
    for step in range(2, steps + 2):
        actions = torch.randint(environment.actions, (copies, environment.agents), generator=generator)
        outcome = environment.step(state, actions, numbers(environment, copies, step))
        yield state, actions, outcome
        state = outcome.state


def gymnasium_step(state, action):
    """CartPole-v1 as gymnasium computes it, in double precision: the new state, and whether the pole is down."""
    x, speed, angle, spin = state
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
    spin_rate = (9.8 * math.sin(angle) - math.cos(angle) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * math.cos(angle) ** 2 / 1.1)
    )
    speed_rate = temp - 0.05 * spin_rate * math.cos(angle) / 1.1
    new = (x + 0.02 * speed, speed + 0.02 * speed_rate, angle + 0.02 * spin, spin + 0.02 * spin_rate)
    return new, not (-2.4 <= new[0] <= 2.4 and -0.2095 <= new[2] <= 0.2095)


def test_ten_thousand_steps_of_cartpole_are_those_of_gymnasium():
    for state, actions, outcome in play(CartPole(), 20, 500):
        for copy in range(20):
            expected, down = gymnasium_step(state["physics"][copy].tolist(), int(actions[copy, 0]))
            assert outcome.final["physics"][copy].tolist() == pytest.approx(expected, abs=1e-6)
            assert bool(outcome.terminated[copy, 0]) == down
        assert bool((outcome.reward == 1).all())


def test_a_pole_that_falls_ends_an_episode_and_the_limit_cuts_one_off():
    environment = CartPole()
    steady = torch.zeros(1, 4)
    state = {"physics": steady, "steps": torch.tensor([LIMIT - 1], dtype=torch.int32)}
    cut = environment.step(state, torch.ones(1, 1, dtype=torch.int64), torch.full((1, 4), 0.5))
    assert (cut.terminated.item(), cut.truncated.item()) == (False, True)
    assert cut.state["steps"].item() == 0
    assert torch.equal(cut.state["physics"], steady)  # the next episode has begun
    assert not torch.equal(cut.final["physics"][:1], steady)  # what the cut-off one came to
    falling = {"physics": torch.tensor([[0.0, 0.0, 0.3, 0.0]]), "steps": torch.tensor([LIMIT - 1], dtype=torch.int32)}
    fallen = environment.step(falling, torch.ones(1, 1, dtype=torch.int64), torch.full((1, 4), 0.5))
    assert (fallen.terminated.item(), fallen.truncated.item()) == (True, False)


def test_cartpole_starts_within_a_twentieth_of_upright():
    start = CartPole().reset(numbers(CartPole(), 4000, 1))["physics"]
    assert start.abs().max() < 0.05
    assert start.mean(0).abs().max() < 0.003
    assert start.std(0).tolist() == pytest.approx([0.1 / math.sqrt(12)] * 4, rel=0.05)


def test_a_bandit_pays_for_the_arm_it_shows():
    environment = Bandit(4)
    state = environment.reset(numbers(environment, 4000, 1))
    seen = environment.observe(state)
    assert seen.sum(0).flatten().tolist() == pytest.approx([1000] * 4, abs=150)
    shown = seen.argmax(-1)
    assert bool((environment.step(state, shown, numbers(environment, 4000, 2)).reward == 1).all())
    assert bool((environment.step(state, (shown + 1) % 4, numbers(environment, 4000, 2)).reward == 0).all())


def check_torus(environment, state):
    """What is true of every torus at any time."""
    body, head, food = state["body"], state["head"], state["food"]
    occupied = body > 0
    assert int(occupied.sum(1).max()) <= 1, "two bodies in one cell"
    assert torch.equal(body.gather(-1, head[..., None])[..., 0].long(), state["length"]), "a head says the length"
    timers = body.long().sort(-1, descending=True).values[..., : int(state["length"].max())]
    steps = timers[..., :-1] - timers[..., 1:]
    assert bool(((steps == 1) | (timers[..., 1:] == 0)).all()), "segments leave one after the other"
    assert bool((occupied.sum(-1) <= state["length"]).all())
    present = food < environment.cells
    on_food = torch.cat([occupied.any(1), torch.zeros(len(food), 1, dtype=torch.bool)], 1).gather(1, food)
    assert not bool((on_food & present).any()), "food under a snake"
    for row in food.tolist():
        real = [cell for cell in row if cell < environment.cells]
        assert len(real) == len(set(real)), "two pieces of food in one cell"


@pytest.mark.parametrize(("grid", "agents", "food"), [(12, 4, 4), (7, 3, 9), (6, 4, 5), (5, 1, 5)])
def test_snakes_and_food_never_overlap_and_a_body_is_as_long_as_it_says(grid, agents, food):
    environment = Snake(grid, agents, food, 5, CPU)
    ate = died = 0
    for state, _, outcome in play(environment, 16, 300):
        check_torus(environment, outcome.state)
        lives = ~outcome.terminated
        grown = (outcome.state["length"] - state["length"])[lives]
        assert torch.equal(grown.float(), outcome.reward[lives])
        assert bool((outcome.reward[outcome.terminated] == -1).all())
        assert bool((outcome.state["length"][outcome.terminated] == START_LENGTH).all())
        assert not bool(outcome.truncated.any())
        ate, died = ate + int((grown == 1).sum()), died + int(outcome.terminated.sum())
    assert ate > 20
    assert died > 20


def test_a_crowded_torus_without_room_for_food_waits_and_never_places_two_things_in_one_cell():
    environment = Snake(4, 2, 2, 3, CPU)
    # 15 of 16 cells hold snakes; one of them dies and leaves a single cell.
    body = torch.zeros(1, 2, 16, dtype=torch.int16)
    body[0, 0, :14] = torch.arange(14, 0, -1)
    body[0, 1, 14] = 3
    state = {
        "body": body,
        "head": torch.tensor([[0, 14]]),
        "heading": torch.zeros(1, 2, dtype=torch.int64),
        "length": torch.tensor([[14, 3]]),
        "food": torch.tensor([[16, 16]]),
    }
    state = environment._spawn(state, torch.zeros(1, 2, dtype=torch.bool), torch.full((1, environment.draws), 0.9))
    assert sorted(state["food"][0].tolist()) == [15, 16]
    check_torus(environment, state)


def scene(cells, *snakes, food=(99,), grid=5):
    """A torus drawn by hand: each snake is its cells from head to tail, and a heading."""
    environment = Snake(grid, len(snakes), len(food), 3, CPU)
    body = torch.zeros(1, len(snakes), environment.cells, dtype=torch.int16)
    for number, (places, _) in enumerate(snakes):
        for back, cell in enumerate(places):
            body[0, number, cell] = len(places) - back
    state = {
        "body": body,
        "head": torch.tensor([[places[0] for places, _ in snakes]]),
        "heading": torch.tensor([[heading for _, heading in snakes]]),
        "length": torch.tensor([[len(places) for places, _ in snakes]]),
        "food": torch.tensor([[min(cell, environment.cells) for cell in food]]),
    }
    actions = torch.tensor([cells])
    return environment, state, environment.step(state, actions, torch.full((1, environment.draws), 0.5))


UP, RIGHT, DOWN, LEFT = range(4)
TURN_LEFT, STRAIGHT, TURN_RIGHT = range(3)


@pytest.mark.parametrize(
    ("heading", "turn", "cell"),
    [(UP, STRAIGHT, 7), (UP, TURN_LEFT, 11), (UP, TURN_RIGHT, 13), (LEFT, STRAIGHT, 11), (DOWN, TURN_LEFT, 13)],
)
def test_a_snake_turns_relative_to_where_it_looks(heading, turn, cell):
    _, _, outcome = scene([turn], ([12], heading))
    assert outcome.state["head"].item() == cell


def test_a_torus_has_no_edge():
    _, _, outcome = scene([STRAIGHT], ([2], UP))
    assert outcome.state["head"].item() == 22


def test_a_tail_that_leaves_is_no_obstacle_but_one_that_stays_is():
    square = ([6, 7, 12, 11], LEFT)  # the head follows its own tail
    _, _, outcome = scene([TURN_LEFT], square)
    assert not outcome.terminated.item()
    _, _, outcome = scene([TURN_LEFT, STRAIGHT], square, ([20, 21], UP), food=[15])
    assert outcome.reward.tolist() == [[0.0, 1.0]]
    longer = ([6, 7, 12, 11, 10], LEFT)
    _, _, outcome = scene([TURN_LEFT], longer)
    assert outcome.terminated.item()


def test_two_heads_in_one_cell_both_die_and_the_food_there_stays():
    _, _, outcome = scene([STRAIGHT, STRAIGHT], ([11, 10], RIGHT), ([13, 14], LEFT), food=[12])
    assert outcome.terminated.tolist() == [[True, True]]
    assert outcome.reward.tolist() == [[-1.0, -1.0]]
    assert outcome.state["food"].tolist() == [[12]]


def test_two_snakes_that_swap_places_both_die():
    _, _, outcome = scene([STRAIGHT, STRAIGHT], ([11, 10], RIGHT), ([12, 13], LEFT))
    assert outcome.terminated.tolist() == [[True, True]]


def test_a_snake_sees_the_square_around_its_head_turned_to_where_it_looks():
    # Looking right from the middle: above is the cell to the right, to the right is the cell below.
    environment, state, _ = scene([STRAIGHT, STRAIGHT], ([12, 11], RIGHT), ([18, 19], LEFT), food=[13])
    planes = environment.observe(state)[0, 0, :-2].reshape(4, 3, 3).tolist()
    own, bodies, heads, food = planes
    assert own == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert bodies == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert heads == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert food == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("head", "heading", "cell", "signs"),
    [
        (12, UP, 2, [1, 0]),
        (12, RIGHT, 2, [0, -1]),
        (12, DOWN, 14, [0, -1]),
        (12, LEFT, 18, [-1, -1]),
        (2, UP, 22, [1, 0]),
        (10, RIGHT, 4, [-1, -1]),
    ],
)
def test_a_snake_smells_where_the_nearest_food_is_also_across_the_edge(head, heading, cell, signs):
    environment, state, _ = scene([STRAIGHT], ([head], heading), food=[cell])
    assert (environment.observe(state)[0, 0, -2:].int() - 1).tolist() == signs


def test_of_two_pieces_of_food_the_nearer_is_smelled_and_food_that_waits_is_not_seen():
    environment, state, _ = scene([STRAIGHT], ([12], UP), food=[13, 0])
    assert environment.observe(state)[0, 0, -2:].tolist() == [1, 2]
    state["food"] = torch.full((1, 2), environment.cells)
    assert not environment.observe(state)[0, 0, :-2].reshape(4, 9)[3].any()


def test_a_length_is_where_a_snake_starts_and_what_it_ate():
    returns, died = torch.tensor([4.0, 5.0]), torch.tensor([True, False])
    assert Snake(5, 1, 1, 3, CPU).quality(returns, died).tolist() == [START_LENGTH + 5, START_LENGTH + 5]


@pytest.mark.parametrize(
    "environment", [CartPole(), Bandit(3), Snake(8, 2, 2, 5, CPU)], ids=lambda each: type(each).__name__
)
def test_a_copy_plays_the_same_in_any_company(environment):
    rows = torch.tensor([7, 2])
    noise = numbers(environment, 12, 1)
    whole, part = environment.reset(noise), environment.reset(noise[rows])
    for step in range(2, 40):
        noise = numbers(environment, 12, step)
        actions = environment.observe(whole).float().sum(-1).long().abs() % environment.actions
        taken = environment.observe(part).float().sum(-1).long().abs() % environment.actions
        whole = environment.step(whole, actions, noise).state
        part = environment.step(part, taken, noise[rows]).state
    for name, tensor in part.items():
        assert torch.equal(tensor, whole[name][rows]), name
