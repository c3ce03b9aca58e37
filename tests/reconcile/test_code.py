"""A job whose code travels with it: no pod exists before the code has arrived, and rounds name it."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.exit_codes import ExitCode
from torchyard.api.names import CODE_ARRIVED
from torchyard.api.spec_code import ClaimCode, Code, GitCode
from torchyard.api.spec_workload import EnvVar
from torchyard.reconcile.observed import InputReport

DIGEST = "ab" * 32


def arrive(world, digest=DIGEST):
    metadata = replace(world.job.metadata, annotations={CODE_ARRIVED: digest})
    world.job = replace(world.job, metadata=metadata)
    world.settle()


def test_no_pod_is_created_before_the_code_has_arrived():
    world = World(2, code=Code(digest=DIGEST, commit="c" * 40, branch="main", diff="-1\n+2\n"))
    world.settle()
    assert (world.status.state, world.status.reason, world.pods) == ("Pending", "CodeMissing", {})
    arrive(world, "cd" * 32)
    assert (world.status.reason, world.pods) == ("CodeMissing", {})
    arrive(world)
    assert len(world.pods) == 2
    world.to_running()
    commands = {command.verb: command for command in world.commands.values()}
    assert commands["run"].bundle == {"digest": DIGEST, "commit": "c" * 40, "branch": "main", "diff": "-1\n+2\n"}
    assert (world.status.code.digest, world.status.code.branch, world.status.code.changed) == (DIGEST, "main", True)


def test_a_folder_that_only_exists_elsewhere_is_named():
    world = World(1, code=Code(path="src"))
    world.settle()
    assert "spec.code.path is src, a folder of the machine that the job was written on" in world.status.message


FORMER, NEW = "a" * 64, "b" * 64


def running(nodes=2, **spec):
    world = World(nodes, command=["torchrun", "train.py"], **spec)
    world.edit_code(FORMER)
    world.to_running()
    world.advance_training(5, save=True)
    return world


def test_edited_code_runs_in_the_same_pods_after_a_save():
    world = running()
    gang = {pod.uid for pod in world.pods.values()}
    world.push(NEW)
    world.edit_code(NEW, command=["torchrun", "other.py"], args=["--lr", "1"])
    world.step()
    assert {command.verb for command in world.commands.values()} == {"save-and-stop"}
    world.settle()
    assert {pod.uid for pod in world.pods.values()} == gang
    assert world.status.round == 2
    assert world.ran == dict.fromkeys(gang, (NEW, ["torchrun", "other.py", "--lr", "1"]))
    assert [each.code for each in world.status.attempts] == ["a" * 12, "b" * 12]
    assert (world.status.code.digest, world.status.attempts[0].reason) == (NEW, "ProgramChanged")
    assert (world.status.restarts.total, world.status.restarts.counted) == (0, 0)


def test_pods_that_did_not_receive_the_code_are_replaced():
    world = running()
    gang = {pod.uid for pod in world.pods.values()}
    kept = min(gang)
    world.push(NEW, [kept])
    world.edit_code(NEW)
    world.settle()
    world.finish_deletions()
    world.to_running()
    assert gang & {*world.pods} == {kept}
    assert {world.ran[uid][0] for uid in world.pods} == {NEW}


def test_a_round_goes_on_until_its_new_code_has_arrived():
    world = running()
    world.edit_code(NEW, arrived=False)
    world.settle()
    assert (world.status.state, world.status.round) == ("Running", 1)
    world.push(NEW)
    world.edit_code(NEW)
    world.settle()
    assert world.status.round == 2


def test_a_new_operator_keeps_pods_with_pushed_code_until_their_agents_call_in():
    world = running()
    gang = {pod.uid for pod in world.pods.values()}
    world.push(NEW)
    world.edit_code(NEW)
    agents, world.agents = world.agents, {}
    world.restart_operator()
    world.settle()
    world.now += 5
    world.settle()
    assert {pod.uid for pod in world.pods.values() if not pod.deleting} == gang
    world.agents = {uid: replace(agent, seen=world.now) for uid, agent in agents.items()}
    for uid in gang:
        world.obey(uid)
    world.settle()
    assert (world.status.round, {pod.uid for pod in world.pods.values()}) == (2, gang)


def test_edited_code_is_tried_at_once_after_a_failure():
    world = running(nodes=1)
    for code in (137, 139):  # the first failure after progress is not delayed
        for uid in [*world.training]:
            world.end_workers(uid, code, rank=0)
        world.now += 3
        world.settle()
    (uid, former) = (*world.pods, world.status.round)
    assert (world.status.rendezvous.next_round_time or 0) > world.now
    world.push(NEW)
    world.edit_code(NEW)
    world.settle()
    assert (world.status.round, world.ran[uid][0]) == (former + 1, NEW)


def test_a_variable_that_is_added_needs_new_pods_and_one_with_another_value_does_not():
    world = running(nodes=1, env=[EnvVar(name="LR", value="1")])
    (uid,) = world.pods
    world.edit_code(FORMER, env=[EnvVar(name="LR", value="2")])
    world.settle()
    assert (world.status.round, [*world.pods]) == (2, [uid])
    assert world.commands[uid].program["env"] == {"LR": "2"}
    world.edit_code(FORMER, env=[EnvVar(name="LR", value="2"), EnvVar(name="SEED", value="1")])
    world.settle()
    assert world.pods[uid].deleting


COMMIT = "c" * 40
PINNED = Code(git=GitCode(url="https://host/code", ref="main", secret="s"), commit=COMMIT, branch="main")


def have(world, *reports):
    """Return the status once each agent has reported its code."""
    for index, report in enumerate(reports):
        uid = world.at(index)
        state = "ready" if report.is_ready else "starting"
        world.agents[uid] = replace(world.agents[uid], state=state, inputs=(report,))
    world.settle()
    return world.status


def code(state, digest=""):
    return InputReport(name="spec.code", state=state, revision=digest, bytes=1 << 20, total_bytes=1 << 20)


def test_a_branch_that_no_submission_has_resolved_gets_no_pods():
    world = World(1, code=replace(PINNED, commit=None))
    world.settle()
    assert (world.status.reason, world.pods) == ("CodeMissing", {})
    assert "spec.code.git.ref is main, which no submission has resolved to a commit" in world.status.message
    full = World(1, code=Code(git=GitCode(url="https://host/code", ref=COMMIT)))
    full.settle()
    assert len(full.pods) == 1


def test_a_round_names_the_digest_that_all_its_members_have_computed():
    world = World(2, code=PINNED)
    world.settle()
    world.start_pods()
    status = have(world, code("fetching"), code("waiting"))
    assert (status.state, status.reason) == ("Starting", "FetchingCode")
    world.now += 30
    status = have(world, code("ready", DIGEST), code("ready", DIGEST))
    assert status.goodput.seconds["code"] == 30
    commands = {command.verb: command for command in world.commands.values()}
    source = "https://host/code at main"
    assert commands["run"].bundle == {"digest": DIGEST, "commit": COMMIT, "branch": "main", "source": source}
    assert (status.code.digest, status.code.commit, status.code.source) == (DIGEST, COMMIT, source)


def test_members_with_different_code_do_not_train_together():
    world = World(2, code=Code(claim=ClaimCode(name="data")))
    world.settle()
    world.start_pods()
    status = have(world, code("ready", DIGEST), code("ready", "cd" * 32))
    assert (status.round, status.reason) == (0, "GangDiffers")
    assert "job-0-0 has code at abababababab, job-0-1 at cdcdcdcdcdcd" in status.message


def test_code_that_cannot_be_had_ends_the_job_at_once():
    world = World(1, code=PINNED)
    world.settle()
    world.start_pods()
    world.end_pod(world.at(0), ExitCode.CODE_REJECTED, "", "git: fatal: Authentication failed")
    world.settle()
    status = world.status
    assert (status.state, status.reason, status.exit_code) == ("Failed", "CodeRejected", ExitCode.CODE_REJECTED)
    assert "Authentication failed" in status.message
