"""Each message in the situation that produces it: situation -> what a user reads."""

import re

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, fail, of, recover
from tests.support.reconcile.world import START, World

from torchyard.api.exit_codes import EXIT_REASONS
from torchyard.api.reasons import Reason
from torchyard.api.spec_reliability import Health, Restart
from torchyard.api.status import ImagePull
from torchyard.api.values import Duration
from torchyard.reconcile.actions import WriteStatus
from torchyard.reconcile.observed import Refusal
from torchyard.reconcile.plan import plan


def pending(reason="", message="", node=""):
    """A job of one pod that waits for longer than its time limit."""
    world = World(1, health=Health(pending_timeout=Duration("10m")))
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], reason=reason, message=message, node=node)
    world.now += 601
    world.settle()
    return world


def refused(reason, message):
    world = World(1, health=Health(pending_timeout=Duration("10m")))
    world.room = 0
    world.refusal = Refusal(reason=Reason(reason), message=message, since=world.now, until=world.now + 1e6)
    world.settle()
    world.now += 601
    world.settle()
    return world


RAISE = "raise spec.health.pendingTimeout"


FIX_IMAGE = "correct spec.image or add spec.imagePullSecrets; suspend the job to change them"


@pytest.mark.parametrize(
    ("world", "evidence", "advice"),
    [
        (lambda: pending(node="n1"), "node n1 pulls its images and creates its containers", ""),
        (lambda: pending("ImagePullFailed", "not found: x:1", "n1"), "ImagePullFailed: not found: x:1", FIX_IMAGE),
        (lambda: pending("InsufficientGPU", "it needs 8"), "InsufficientGPU: it needs 8", "free some or request less"),
        (pending, "no scheduler has assigned a node yet", ""),
        (lambda: refused("QuotaExceeded", "team"), "QuotaExceeded: team", "free some or raise it; the pods then start"),
    ],
    ids=["pulls its image", "image not there", "no room", "not placed", "quota"],
)
def test_pods_that_did_not_start_in_time(world, evidence, advice):
    ended = world()
    assert (ended.status.state, ended.status.reason) == ("Failed", "PendingTimeout")
    assert ended.status.message.startswith("the pods did not start in time (")
    assert f"10m, {evidence}); {advice}{', or ' if advice else ''}{RAISE}" in ended.status.message


@pytest.mark.parametrize(
    ("saved", "stays", "message"),
    [
        (True, True, "its checkpoint of step 5 is kept"),
        (True, False, "note that its files are lost with its pods, since spec.checkpoint.volume names no claim"),
        (False, True, "no checkpoint was saved"),
    ],
)
def test_a_deadline_says_what_is_left_of_the_work(saved, stays, message):
    world = World(1, active_deadline=Duration("1h")).to_running()
    world.files_stay = stays
    world.advance_training(4, save=saved)
    world.settle()
    world.now += 3600
    world.settle()
    assert world.status.message == (
        f"spec.activeDeadline has passed (after 1h); raise it and run the job again; {message}"
    )


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (59, "the workers train"),
        (61, "the workers train (the last step, 6, was made more than 1m ago)"),
        (301, "the workers train (the last step, 6, was made more than 5m ago)"),
        (7300, "the workers train (the last step, 6, was made more than 2h ago)"),
    ],
)
def test_the_message_of_a_job_that_trains_carries_the_age_of_its_last_step(seconds, message):
    world = World(1).to_running()
    world.advance_training(5)
    world.settle()
    world.now += seconds
    world.agents[world.at(0)] = replace(world.agents[world.at(0)], seen=world.now)
    world.settle()
    assert world.status.message == message


def test_a_rank_that_evaluates_is_said_to():
    world = World(1).to_running()
    uid = world.at(0)
    (report,) = world.agents[uid].reports
    world.agents[uid] = replace(world.agents[uid], reports=(replace(report, phase="eval"),))
    world.now += 121
    world.settle()
    assert "was made more than 2m ago, rank 0 is in phase eval" in world.status.message


@pytest.mark.parametrize(
    "reason", ["QuotaExceeded", "AdmissionDenied", "WebhookUnavailable", "MissingServiceAccount", "Forbidden"]
)
def test_a_job_whose_pods_are_rejected_is_not_admitted(reason):
    world = World(1)
    world.refusal = Refusal(reason=Reason(reason), message="why", since=world.now, until=world.now + 1e6)
    world.settle()
    admitted = condition(world, "Admitted")
    assert (admitted.status, admitted.reason) == ("False", reason)
    assert "(why)" in admitted.message


def test_a_job_whose_pods_wait_for_room_is_admitted():
    world = World(1)
    world.room = 0
    world.settle()
    assert (world.status.reason, condition(world, "Admitted").status) == ("InsufficientGPU", "True")


@pytest.mark.parametrize("code", [0, 64])
def test_a_finished_job_has_no_nodes_ready(code):
    world = World(1).to_running()
    world.end_workers(world.at(0), code)
    world.settle()
    assert (world.status.nodes.desired, world.status.nodes.ready) == (1, 0)


def test_a_slow_pull_of_an_image_is_named_and_counted():
    world = World(2)
    world.settle()
    world.place()
    uid, image = world.at(1), "registry/train:1"
    world.pods[uid] = replace(world.pods[uid], pulling=image, pulling_since=world.now)
    world.settle()
    assert world.status.reason == "WaitingForPods", "an image that is nearly there is no news"
    world.now += 30
    world.settle()
    assert (world.status.state, world.status.reason) == ("Pending", "PullingImage")
    assert world.status.message == "nodes pull an image (registry/train:1, for 1 of 2 pods)"
    world.now += 40
    pulled = ImagePull(image=image, seconds=70)
    world.pods[uid] = replace(world.pods[uid], pulling="", pulling_since=None, pulled=pulled)
    world.start_pods()
    world.settle()
    assert world.status.goodput.seconds["pull"] == pytest.approx(70)
    assert world.status.image_pull == pulled


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (1, "see `torchyard logs`"),
        (74, "check free space and health of the checkpoint volume"),
        (137, "check the memory of the node"),
    ],
)
def test_the_end_of_a_budget_gives_the_advice_of_its_last_cause(code, advice):
    world = World(1, restart=Restart(no_progress_limit=1)).to_running()
    for number in range(2):
        fail(world, 0, code, exception="Error", message=f"number {number}")
        recover(world, 1)
    assert world.status.reason == "NoProgress"
    assert world.status.message.endswith(f"; {advice}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "exit code 1; no exception was reported"),
        (3, "exit code 3, whose meaning only the program knows; no exception was reported"),
        (75, "exit code 75, whose meaning only the program knows; no exception was reported"),
        (127, "exit code 127 (of a shell: a command was not found); no exception was reported"),
    ],
)
def test_an_exit_code_of_a_program_that_raised_nothing_is_said_once_and_plainly(code, said):
    shell = " (of a shell: a command was not found)" if code == 127 else ""
    world = World(1, restart=Restart(policy="Never")).to_running()
    fail(
        world, 0, code, rank=0, exception="", exit_code_only=True, message=f"exit code {code}{shell}", classified=False
    )
    world.settle()
    assert f"last cause WorkerFailed, rank 0, pod job-0-0, node node-0, {said})" in world.status.message


def test_pods_whose_creation_is_not_answered_are_not_silent():
    world = World(2)
    world.apply(replace(world.step(), actions=()))
    world.pods.clear()
    for seconds, reason in ((1, "WaitingForPods"), (25, "PodsNotCreated")):
        world.now = START + seconds
        decided = plan(world.view())
        (write,) = of(WriteStatus, decided) or [None]
        if write is not None:
            world.carry_out(write)
        assert world.status.reason == reason
    assert "an admission webhook may hang or fail" in world.status.message
    world.settle()
    world.start_pods()
    world.settle()
    assert world.status.state == "Starting"


FAILURES = [code for code, known in EXIT_REASONS.items() if known.counted]


@pytest.mark.parametrize("code", FAILURES)
def test_a_failure_of_a_program_names_the_fix(code):
    """What comes from outside (an interrupt, a termination) leaves nothing to be done about the program."""
    known = EXIT_REASONS[code]
    assert known.next_step or known in {Reason.INTERRUPTED, Reason.TERMINATED}


@pytest.mark.parametrize("code", sorted(Reason))
def test_a_message_is_plain_present_tense_without_private_words(code):
    words = f"{Reason(code).sentence} {Reason(code).next_step}"
    assert not re.search(r"\b(anew|told|nobody|somebody|mend|meanwhile|let go|lets go|called in|would do)\b", words)
    assert not words.rstrip().endswith(".")
