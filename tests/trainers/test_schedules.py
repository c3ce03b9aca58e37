"""Learning-rate schedules are pure functions of the step."""

import pytest

from torchyard_trainers.core.schedules import factor


def rates(kind, total, **more):
    return [factor(kind, step, total, **more) for step in range(total)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060, 0]),
    ],
)
def test_a_rate_warms_up_to_its_peak_and_falls_to_the_last_step(kind, expected):
    assert rates(kind, 11, warm_up=2) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("decay", [0.4, 4])
def test_wsd_stays_at_the_peak_and_falls_over_the_last_steps(decay):
    assert rates("wsd", 10, warm_up=1, decay=decay) == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
def test_a_rate_ends_at_its_final_factor_and_stays_there(kind):
    assert factor(kind, 99, 100, final=0.1) == pytest.approx(0.1)
    assert factor(kind, 500, 100, final=0.1) == pytest.approx(0.1)
    assert all(0.1 <= each <= 1 for each in rates(kind, 100, final=0.1))


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "wsd"])
def test_a_run_of_one_step_has_the_peak_rate(kind):
    assert factor(kind, 0, 1) == 1


def test_a_warm_up_longer_than_the_run_is_an_error():
    with pytest.raises(ValueError, match="a warm-up of 8 steps and decay of 4 does not fit into 10 steps"):
        factor("wsd", 0, 10, warm_up=8, decay=4)
