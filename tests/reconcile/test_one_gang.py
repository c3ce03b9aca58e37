"""One gang, one configuration: what members of a round must have in common, and what happens where they do not."""

from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, of, recover
from tests.support.reconcile.world import World

from torchyard.api.spec_workload import Trainer
from torchyard.api.status import Images
from torchyard.api.values import Duration
from torchyard.reconcile.actions import DeletePod

OLD, NEW = Images(trainer="trainer:1", agent="agent:1"), Images(trainer="trainer:2", agent="agent:2")


def cvrp(**params):
    return Trainer(name="cvrp", params=params)


def lose(world, index):
    world.vanish(world.at(index))
    world.settle()


def test_parameters_edited_while_a_round_is_open_change_nothing_until_it_has_ended_and_then_the_whole_gang():
    world = World(2, trainer=cvrp(lr=0.1)).to_running()
    members = world.status.rendezvous.members
    world.edit(trainer=cvrp(lr=0.2))
    plans = world.settle()
    assert (world.status.state, world.status.rendezvous.members) == ("Running", members)
    assert [each for decided in plans for each in of(DeletePod, decided)] == []
    (event,) = (each for each in world.events if each.reason == "ConfigurationChanged")
    assert "(pods job-0-0, job-0-1)" in event.message
    lose(world, 1)
    world.finish_deletions()
    recover(world, 3)
    assert world.status.state == "Running"
    assert not set(members) & set(world.status.rendezvous.members), "the pod that was not lost is replaced, too"
    assert len({world.pods[uid].configuration for uid in world.status.rendezvous.members}) == 1


def test_an_edit_of_what_pods_need_not_follow_replaces_none():
    world = World(2).to_running()
    world.edit(active_deadline=Duration("9h"), grace_period=Duration("90s"), ttl_after_finished=Duration("1h"))
    kept = world.at(0)
    lose(world, 1)
    recover(world, 3)
    assert kept in world.status.rendezvous.members
    assert "ConfigurationChanged" not in {each.reason for each in world.events}


def test_more_nodes_leave_the_pods_that_are_there():
    world = World(1, suspend=False).to_running()
    kept = world.at(0)
    world.edit(nodes=2)
    world.end_workers(kept, 1, exception="ValueError", message="x")
    recover(world, 3)
    assert kept in world.status.rendezvous.members


def test_a_gang_keeps_its_images_across_an_upgrade_and_takes_new_ones_after_a_suspend():
    world = World(2).to_running()
    assert world.status.images == OLD
    world.images = NEW
    world.restart_operator()
    lose(world, 1)
    recover(world, 3)
    assert {each.images for each in world.created} == {OLD}
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (world.status.state, world.status.images) == ("Suspended", None)
    world.edit(suspend=False)
    world.settle()
    assert (world.created[-1].images, world.status.images) == (NEW, NEW)


def test_pods_of_the_former_gang_that_are_still_listed_do_not_decide_the_images_after_a_suspend():
    world = World(1).to_running()
    former = world.pods[world.at(0)]
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert world.status.state == "Suspended"
    world.images = NEW
    world.pods[former.uid] = replace(former, phase="Succeeded", exit_code=75, deleting=True, finished=world.now)
    world.edit(suspend=False)
    world.settle()
    assert (world.created[-1].images, world.status.images) == (NEW, NEW)


def test_a_job_of_an_operator_that_noted_no_images_keeps_those_of_its_pods():
    world = World(2).to_running()
    world.job = replace(world.job, status=replace(world.status, images=None))
    world.images = NEW
    lose(world, 0)
    recover(world, 3)
    assert {each.images for each in world.created} == {OLD}
    assert world.status.images == OLD


def test_an_image_of_the_spec_goes_before_that_of_the_installation():
    world = World(1, image="mine:1")
    world.settle()
    assert world.created[0].images == Images(trainer="mine:1", agent="agent:1")


def test_a_config_map_edited_between_two_pods_replaces_the_whole_gang_once():
    world = World(2).to_running()
    kept = world.at(0)
    world.content = "content-2"
    lose(world, 1)
    world.now += 5
    world.settle()
    world.start_pods()
    world.settle()
    assert (world.status.state, world.status.reason) == ("Recovering", "GangDiffers")
    assert "job-0-0 and job-1-1 read different config maps, secrets, script or configuration" in world.status.message
    world.finish_deletions()
    recover(world, 3)
    assert world.status.state == "Running"
    assert kept not in world.status.rendezvous.members
    assert [each.reason for each in world.status.attempts] == ["PodLost", "GangDiffers", ""]
    assert world.status.restarts.counted == 0


def test_an_image_whose_name_means_different_things_to_the_nodes_fails_the_job_after_three_gangs():
    world = World(2)
    world.settle()
    for _ in range(3):
        world.start_pods()
        for uid, pod in world.pods.items():
            digest = f"sha256:{pod.index}{'a' * 63}"
            world.pods[uid] = replace(pod, image_digest=f"docker.io/me/train@{digest}")
        world.settle()
        world.finish_deletions()
        world.now += 130
        world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "GangDiffers")
    assert "job-2-0 has image docker.io/me/train@sha256:0aaaaaaaaaaa, job-2-1 has sha256:1aaaaaaaaaaa" in (
        world.status.message
    )
    assert condition(world, "Stalled").status == "True"


def test_images_from_different_registries_cannot_be_compared():
    world = World(2)
    world.settle()
    world.start_pods()
    for uid, pod in world.pods.items():
        world.pods[uid] = replace(pod, image_digest=f"mirror-{pod.index}/train@sha256:{pod.index}")
    world.settle()
    assert world.status.round == 1
