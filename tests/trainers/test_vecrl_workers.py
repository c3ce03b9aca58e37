"""Environments in worker processes, frame stacks and pictures."""

import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from little_rl import session_of, settled

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.policy import Brightness, Frames, Picture
from torchyard_trainers.vecrl.task import VecRL

CPU = torch.device("cpu")
HILL = {"environment": "outside_worlds:Hill", "maxEpisodeSteps": 9}


def walked(environment, steps=25, state=None):
    draw = torch.Generator().manual_seed(3)
    state = environment.reset(torch.rand(5, 1, generator=draw)) if state is None else state
    found = []
    for _ in range(steps):
        outcome = environment.step(state, torch.randint(3, (5, 1), generator=draw), torch.rand(5, 1, generator=draw))
        state = outcome.state
        found.append(outcome)
    return found


@pytest.mark.parametrize("workers", [2, 64])
def test_workers_play_the_same_as_the_trainer_itself(workers):
    alone, spread = (build_environment(settled(**HILL, environmentWorkers=each), CPU) for each in (0, workers))
    ours, theirs = walked(alone), walked(spread)
    assert len(spread._copies._workers) == min(workers, 5)
    ours += walked(alone, state={name: each.clone() for name, each in ours[3].state.items()})
    theirs += walked(spread, state={name: each.clone() for name, each in theirs[3].state.items()})
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(each, other.state[name]) for name, each in one.state.items())
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.final["observation"], other.final["observation"])


def test_workers_end_with_their_environment():
    environment = build_environment(settled(**HILL, environmentWorkers=2), CPU)
    walked(environment, 1)
    pids = [each.pid for each in environment._copies._workers]
    del environment
    gc.collect()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_with_a_trainer_that_is_killed():
    program = """
        import os, signal, torch
        from little_rl import settled
        from torchyard_trainers.vecrl.environments import build_environment
        environment = build_environment(settled(environment="CartPole-v1", environmentWorkers=2), torch.device("cpu"))
        state = environment.reset(torch.rand(4, 1))
        environment.step(state, torch.zeros(4, 1, dtype=torch.int64), torch.rand(4, 1))
        print(*(each.pid for each in environment._copies._workers), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    # This waits until the pipe of its output is closed, which the workers have as well: they have ended.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(done.stdout.split()) == 2


def test_errors_of_workers_are_those_of_the_environment():
    shorter = build_environment(settled(**HILL | {"environment": "outside_worlds:Shorter"}, environmentWorkers=2), CPU)
    with pytest.raises(ConfigError, match=r"step\(action\) raised ValueError: not enough values to unpack"):
        shorter._bring(shorter.reset(torch.rand(4, 1))) and walked(shorter, 1)


def test_a_worker_that_is_killed_is_named(monkeypatch):
    environment = build_environment(settled(**HILL, environmentWorkers=2), CPU)
    walked(environment, 1)
    os.kill(environment._copies._workers[1].pid, signal.SIGKILL)
    environment._copies._workers[1].join()
    with pytest.raises(
        TrainerError, match="a process of environments ended with exit code -9; if it was killed for me"
    ):
        walked(environment, 1)


@pytest.mark.parametrize(
    ("given", "planes", "kind"),
    [
        ({"environment": "outside_worlds:Catch", "model": "cnn"}, (3, 8, 8), Picture),
        ({"environment": "outside_worlds:Catch", "model": "cnn", "frameStack": 2}, (6, 8, 8), Picture),
        ({"environment": "outside_worlds:WideCatch", "model": "nature", "frameStack": 4}, (4, 44, 44), Frames),
    ],
)
def test_pictures_stay_pictures_and_newest_frames_come_last(given, planes, kind):
    environment = build_environment(settled(**given, maxEpisodeSteps=99), CPU)
    assert environment.planes == planes
    outcome = walked(environment, 3)[-1]
    assert outcome.state["observation"].dtype == torch.uint8
    seen = outcome.state["observation"].view(5, -1, *planes[1:])
    colours = 3 if "WideCatch" not in given["environment"] else 1
    for age, frame in enumerate(reversed(seen.split(colours, 1))):
        assert (frame[:, 0, 3 - age].sum(-1) == 255).all(), "the ball falls by one row a step"
    work = VecRL(settled(**given, maxEpisodeSteps=99))
    policy = session_of(work).parallel.module
    assert [type(layer) for layer in policy.actor[:2]] == [Brightness, kind]
    logits, value = policy(outcome.state["observation"][:, None])
    assert (logits.shape, value.shape) == ((5, 1, 3), (5, 1))
    assert policy.values(outcome.state["observation"][:0, None]).shape == (0, 1), "of steps none of which is cut off"


def test_the_convolutions_of_dqn_are_those_of_plain_layers():
    torch.manual_seed(2)
    frames, seen = Frames((4, 84, 84), 1), torch.rand(2, 1, 4 * 84 * 84)
    plain = torch.nn.Sequential(*(each for layer in frames.convolutions for each in (layer, torch.nn.ReLU())))
    assert frames.features == 64 * 7 * 7
    torch.testing.assert_close(frames(seen)[:, 0], plain(seen.view(2, 4, 84, 84)).flatten(1))
