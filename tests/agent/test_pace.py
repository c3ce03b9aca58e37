"""How long steps take, and how much of that is a wait for other ranks."""

from torchyard_agent.telemetry.pace import Step, figures


def steps(count, *, seconds=0.125, compute=0.06, every=1):
    return [Step(number * every, number * seconds * every, seconds, compute) for number in range(count)]


def test_figures_are_of_the_newest_half_minute():
    slow_before = [Step(0, 0.0, 9.0, 9.0)] * 50
    made = [*slow_before, *(Step(number, 100 + number * 0.125, 0.125, 0.06) for number in range(400))]
    assert figures(made, made[-1].end) == {
        "windowSteps": 241,
        "stepSeconds": 0.125,
        "computeSeconds": 0.06,
        "computeLowSeconds": 0.06,
    }


def test_steps_that_are_not_measured_count():
    made = steps(350, every=5)
    assert figures(made, made[-1].end)["windowSteps"] == 241


def test_nothing_is_said_of_less_than_a_window():
    made = steps(200)
    assert figures(made, made[-1].end) == {}
    long = steps(11, seconds=20.0)
    assert figures(long, long[-1].end) == {}


def test_long_steps_have_a_window_of_twelve():
    made = steps(20, seconds=20.0, compute=15.0)
    found = figures(made, made[-1].end)
    assert (found["windowSteps"], found["computeSeconds"]) == (12, 15.0)


def test_an_unknown_wait_makes_the_compute_time_unknown():
    made = steps(400)
    made[-7] = made[-7]._replace(compute=None)
    assert figures(made, made[-1].end) == {"windowSteps": 241, "stepSeconds": 0.125}


def test_the_lower_quartile_shows_whether_most_steps_are_slow():
    made = [step._replace(compute=0.09 if step.number % 3 else 0.06) for step in steps(400)]
    found = figures(made, made[-1].end)
    assert (found["computeSeconds"], found["computeLowSeconds"]) == (0.09, 0.06)
