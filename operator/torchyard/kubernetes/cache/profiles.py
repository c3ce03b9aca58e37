"""The TrainingProfiles of the cluster: followed by an informer, so that no plan asks the API server for one."""

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from torchyard.api.profiles.resource import PATH, TrainingProfile, read_profile
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.cache.informer import Informer
from torchyard.kubernetes.cache.jobs import Handler
from torchyard.kubernetes.client.api import Api, version
from torchyard.reconcile.profile import ProfileVerdict, apply_profile

SOON_SECONDS = 0.5
LISTING = "the profiles of the cluster are being listed"


class ProfileRecord(Struct, frozen=True, kw_only=True):
    """A profile, as it was last seen."""

    uid: str
    version: int
    profile: TrainingProfile
    whole: bool = True


class Profiles:
    """The profiles, by name.

    Args:
        api: the server.
        jobs: that may name one.
        changed: called with the key of each job whose profile appears, changes or goes.
    """

    def __init__(self, api: Api, jobs: Iterable[TrainingJob], *, changed: Handler) -> None:
        self._jobs, self._changed = jobs, changed
        self._by_name: dict[str, TrainingProfile] = {}
        self.informer: Informer[Any, ProfileRecord] = Informer(
            api, PATH, of=dict[str, Any], read=_record, changed=self._take
        )

    async def run(self) -> None:
        """Follow the profiles until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            group.create_task(self._announce())

    def effect_on(self, job: TrainingJob) -> ProfileVerdict:
        """Return what the profile of a job, as its user wrote it, means for it."""
        name = job.spec.profile
        unknown = "" if self.informer.synced.is_set() else (self.informer.trouble or LISTING)
        return apply_profile(job, self._by_name.get(name) if name is not None else None, unknown)

    async def _announce(self) -> None:
        """Notify the jobs that waited for the first list: a profile that does not exist has no event."""
        await self.informer.synced.wait()
        self._notify(None)

    def _take(self, before: ProfileRecord | None, after: ProfileRecord | None) -> None:
        newest = after or before
        if newest is None:
            return
        name = newest.profile.name
        if after is not None:
            self._by_name[name] = after.profile
        elif name in self._by_name and self._by_name[name].uid == newest.uid:
            del self._by_name[name]
        if before is None or after is None or before.profile != after.profile:
            self._notify(name)

    def _notify(self, name: str | None) -> None:
        """Notify the jobs of a profile; None: of any."""
        for job in self._jobs:
            if job.spec.profile is not None and name in {None, job.spec.profile} and not job.is_over:
                self._changed(job.key, SOON_SECONDS)


def _record(document: dict[str, Any]) -> ProfileRecord | None:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("uid"):
        return None
    newest = version(str(metadata.get("resourceVersion", "")))
    return ProfileRecord(uid=str(metadata["uid"]), version=newest, profile=read_profile(document))
