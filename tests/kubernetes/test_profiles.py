"""The cache of profiles: jobs are notified of theirs alone, and what is not known yet is said."""

import json

from msgspec.structs import replace

from torchyard.api.resource import read_job
from torchyard.api.status import State
from torchyard.kubernetes.cache.profiles import LISTING, Profiles


def job(name, profile, state=State.NEW):
    read = read_job({"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": {"script": "1"}})
    return replace(read, spec=replace(read.spec, profile=profile), status=replace(read.status, state=state))


class Seen:
    """Profiles as a watch sends them, and the jobs that were notified."""

    def __init__(self, *jobs):
        self.news, self.version = [], 1
        self.profiles = Profiles(None, jobs, changed=lambda key, _after: self.news.append(key[1]))

    def put(self, name, uid="p", generation=1, **spec):
        self.version += 1
        metadata = {"name": name, "uid": uid, "resourceVersion": str(self.version), "generation": generation}
        self.profiles.informer.put(json.dumps({"metadata": metadata, "spec": spec}).encode())


def test_a_profile_notifies_the_jobs_that_name_it_and_have_not_ended():
    jobs = (job("a", "research"), job("b", "other"), job("c", None), job("d", "research", State.SUCCEEDED))
    seen = Seen(*jobs)
    seen.put("research")
    assert seen.news == ["a"]
    seen.put("research")
    assert seen.news == ["a"], "nothing but its version has changed"
    seen.put("research", generation=2, limits={"nodes": 1})
    seen.profiles.informer.bury("p")
    assert seen.news == ["a", "a", "a"]


def test_until_profiles_are_listed_a_new_job_waits_and_reads_why():
    seen = Seen()
    waiting = job("a", "research")
    assert seen.profiles.effect_on(waiting).evidence == LISTING
    seen.profiles.informer.trouble = "trainingprofiles is forbidden"
    assert seen.profiles.effect_on(waiting).evidence == "trainingprofiles is forbidden"
    seen.profiles.informer.synced.set()
    assert seen.profiles.effect_on(waiting).evidence == "there is no profile research"


def test_a_profile_that_was_deleted_and_created_again_is_the_new_one():
    seen = Seen()
    seen.put("research", uid="old", limits={"nodes": 1})
    seen.put("research", uid="new", limits={"nodes": 2})
    seen.profiles.informer.bury("old")
    assert seen.profiles.effect_on(job("a", "research")).pinned.uid == "new"
