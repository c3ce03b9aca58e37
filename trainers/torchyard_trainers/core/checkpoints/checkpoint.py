"""Checkpoints of a gang: save, restore, identity. Collective; rank 0 decides for all ranks."""

import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.checkpoints.files import read_record
from torchyard_trainers.core.checkpoints.shards import Shards, reader_of, shards_for
from torchyard_trainers.core.exits import CheckpointError, DataMismatchError
from torchyard_trainers.core.json_text import json_of, number_of
from torchyard_trainers.core.world import World, retried

SAVE_ATTEMPTS = 4
CODE = "TORCHYARD_CODE"
"""Variable of the agent: digest, commit, branch and changes of the code that travelled with the job, as JSON."""
BEST = "best"
MODEL_SHAPE = "model shape"  # in an identity: a digest of names and shapes of all weights
FROZEN_BASE = "frozen base"  # in an identity: a digest of the values of all frozen weights
GEOMETRY = "model geometry"  # in an identity: a digest of the config that a model is built from
PROMPT = "prompt tokens"  # in an identity: a digest of the tokens that texts of the workload are encoded to
HEAD = "action head"  # in an identity: what a head computes, where its weights do not show it
# What runs of earlier versions do not record: it is compared where both do.
_OPTIONAL = frozenset({GEOMETRY, PROMPT})


class Saved(NamedTuple):
    """A committed checkpoint; the names are those of the report."""

    step: int
    time: float
    path: str
    bytes: int
    seconds: float
    untidy: str = ""  # an error while retiring older checkpoints; the next save repeats it

    def report(self) -> dict[str, Any]:
        """Return the report's `checkpoint` block."""
        return {
            "step": self.step,
            "time": self.time,
            "path": self.path,
            "bytes": self.bytes,
            "saveSeconds": self.seconds,
        }


class Restored(NamedTuple):
    """The restored record of `state.json` (None: start at step 0), and every skipped folder with the reason."""

    record: dict[str, Any] | None
    folder: Path | None
    skipped: list[str]


class Checkpoints:
    """The checkpoint folder as one gang sees it during one round."""

    def __init__(
        self, root: Path, world: World, *, round_number: int | None, job: str, shards: Shards | None = None
    ) -> None:
        """Take the folder for this round.

        Raises:
            SupersededError: a newer round owns it.
        """
        self.root = root
        self._world = world
        self._job = job

        def claim() -> int:
            root.mkdir(parents=True, exist_ok=True)
            return commits.claim_round(root, round_number, job)

        self.round_number = world.from_leader(claim)
        self.shards = shards or shards_for(root, world)

    def identify(self, config: dict[str, Any], identity: dict[str, Any]) -> None:
        """Write run.json at the first start; later starts must be the same run.

        Raises:
            DataMismatchError: naming the fields that differ.
        """
        path = self.root / "run.json"

        def check_or_write() -> None:
            if path.exists():
                compare_identity(path, identity)
            else:
                record = {"schema": 1, "identity": identity, "config": config, "workingDir": str(Path.cwd())}
                record |= {"code": json.loads(os.environ[CODE])} if CODE in os.environ else {}  # of a bundle
                commits.write_atomically(path, json.dumps(record | _inputs(), indent=1))

        self._world.from_leader(check_or_write)

    def note_origin(self, origin: dict[str, Any]) -> None:
        """Write into run.json which weights the run begins with."""
        path = self.root / "run.json"

        def add() -> None:
            self._check_round()
            commits.write_atomically(path, json.dumps(read_record(path) | {"initFrom": origin}, indent=1))

        self._world.from_leader(add)

    def save(self, step: int, state: dict[str, Any], record: dict[str, Any], *, keep: int, best: int = 0) -> Saved:
        """Write and commit a checkpoint, then retire old ones; storage errors are retried with back-off.

        The newest `keep` stay, and the `best` ones by the `score` of their record.

        Raises:
            SupersededError: a newer round owns the folder; nothing was committed.
            StorageError: storage kept failing.
        """
        return retried(
            lambda: self._save_or_step_down(step, state, record, keep, best),
            attempts=SAVE_ATTEMPTS,
            pause=lambda attempt: time.sleep(0.5 * 2**attempt),
            what=f"checkpoint of step {step} in {self.root}",
        )

    def restore(
        self, fill: Callable[[Shards, Path], None], *, also: Path | None = None, before: int | None = None
    ) -> Restored:
        """Load the newest complete checkpoint, else an older one, else one from `also`, which must then exist.

        Args:
            fill: loads a folder's shards into the model; called on every rank with the same folder.
            also: checkpoints to start from otherwise; see `resolve`.
            before: only checkpoints of earlier steps count; None: all.

        Raises:
            CheckpointError: there are committed checkpoints but none can be read.
        """
        found = read_newest(self.root, self._world, self.shards, fill, before=before)
        if found.record is not None:
            self._world.from_leader(lambda step=found.record["step"]: self._disown(step))
        if found.record is not None or also is None:
            return found
        elsewhere = read_newest(also, self._world, reader_of(resolve(also).root, self._world), fill)
        if elsewhere.record is None:
            passed = f" ({'; '.join(elsewhere.skipped)})" if elsewhere.skipped else ""
            raise CheckpointError(
                f"checkpoint.resumeFrom: {also} holds no readable checkpoint{passed}; name a job that has trained "
                "here, or the checkpoint folder of one"
            )
        return elsewhere

    def exist(self) -> bool:
        """Return whether there is a complete checkpoint. Collective."""
        return self._world.from_leader(lambda: any(not each.fault for each in commits.candidates(self.root)))

    def scores(self) -> list[float]:
        """Return the scores of all complete checkpoints that have one. Collective."""

        def read() -> list[float]:
            found = (commits.read_score(each.folder) for each in commits.candidates(self.root) if not each.fault)
            return [score for score in found if score is not None]

        return self._world.from_leader(read)

    def sweep(self) -> None:
        """Remove the remains of killed saves."""

        def sweep() -> None:
            self._check_round()
            commits.sweep(self.root, self.round_number, self._job)

        self._world.from_leader(sweep)

    def _check_round(self) -> None:
        commits.check_round(self.root, self.round_number, self._job)

    def _disown(self, newer_than: int) -> None:
        self._check_round()
        commits.disown(self.root, newer_than)

    def _save_or_step_down(
        self, step: int, state: dict[str, Any], record: dict[str, Any], keep: int, best: int
    ) -> Saved:
        try:
            return self._save_once(step, state, record, keep, best)
        except Exception:
            self._check_round()  # a newer round removes the files that this one was writing
            raise

    def _save_once(self, step: int, state: dict[str, Any], record: dict[str, Any], keep: int, best: int) -> Saved:
        started = time.monotonic()
        folder = commits.step_folder(self.root, step)
        unfinished = commits.unfinished_folder(self.root, step, self.round_number, self._job)
        shard_folder = unfinished / commits.SHARDS

        def prepare() -> None:
            self._check_round()
            commits.remove(folder)
            commits.remove(unfinished)
            shard_folder.mkdir(parents=True)

        self._world.from_leader(prepare)
        self.shards.save(state, shard_folder)

        def seal_own_files() -> dict[str, Any]:
            files = self.shards.written_by(self._world.rank, shard_folder)
            if self._world.is_main:
                commits.write_atomically(unfinished / commits.STATE, json_of(record, indent=1))
                files.append(unfinished / commits.STATE)
            return {str(path.relative_to(unfinished)): commits.digest(path) for path in files}

        sealed = {name: facts for part in self._world.agree(seal_own_files) for name, facts in part.items()}

        def publish() -> Saved:
            commits.sync_folder(shard_folder)
            size = sum(facts["bytes"] for facts in sealed.values())
            saved = Saved(step, time.time(), str(folder), size, round(time.monotonic() - started, 4))
            commits.commit(
                unfinished,
                sealed,
                {"step": step, "round": self.round_number, "time": saved.time, "saveSeconds": saved.seconds},
            )
            self._check_round()
            commits.publish(unfinished, folder)
            return saved._replace(untidy=self._tidy(folder, step, keep, best))

        return self._world.from_leader(publish)

    def _tidy(self, folder: Path, step: int, keep: int, best: int) -> str:
        """Update `latest` and retire old checkpoints after a commit; return the error, if any.

        An error must not repeat the save: that would delete the new checkpoint while older ones may be gone.
        """
        try:
            commits.write_atomically(self.root / "latest", f"{folder.name}\n")
            commits.retire(self.root, keep, saved=step, best=best)
        except OSError as error:
            return f"step {step} is saved; tidying up after it failed, so older checkpoints may stay: {error}"
        return ""


def read_newest(
    path: Path, world: World, storage: Shards, fill: Callable[[Shards, Path], None], *, before: int | None = None
) -> Restored:
    """Load the newest complete checkpoint of a folder (see `resolve` for others), else an older one. Collective.

    Raises:
        CheckpointError: there are committed checkpoints but none can be read.
    """
    skipped = []
    found = world.from_leader(lambda: [each for each in _candidates_at(path) if before is None or each.step < before])
    for candidate in found:
        fault = candidate.fault or _damage(candidate.folder, world, shared=storage.shared)
        if fault:
            skipped.append(f"{candidate.folder.name}: {fault}")
            continue
        record = world.from_leader(lambda found=candidate: _record_of(found))
        fill(storage, candidate.folder / commits.SHARDS)
        return Restored(record, candidate.folder, skipped)
    if any(candidate.committed for candidate in found):
        raise CheckpointError(f"{path}: no checkpoint is readable ({'; '.join(skipped)}); repair or empty the folder")
    return Restored(None, None, skipped)


def _record_of(candidate: commits.Candidate) -> dict[str, Any]:
    """Read `state.json` of a checkpoint.

    Raises:
        CheckpointError: it is not the record of this step.
    """
    path = candidate.folder / commits.STATE
    try:
        record = read_record(path)
    except (ValueError, FileNotFoundError) as error:
        raise CheckpointError(f"{path}: unreadable ({error}); remove {candidate.folder} or repair it") from error
    step, metrics = record.get("step"), record.get("metrics", {})
    numbers = isinstance(metrics, dict) and all(
        each is None or number_of(each) is not None for each in metrics.values()
    )
    if step != candidate.step or not numbers:
        raise CheckpointError(
            f"{path}: is not the record of step {candidate.step} (step: {str(step)[:40]}); remove {candidate.folder} "
            "or repair it"
        )
    return record


def _damage(folder: Path, world: World, *, shared: bool) -> str:
    if shared:
        parts = world.agree(lambda: commits.damaged(folder, world.rank, world.size))
    else:
        parts = [world.from_leader(lambda: commits.damaged(folder, 0, 1))]
    names = sorted(name for part in parts for name in part)
    return f"{', '.join(names)}: digest differs from COMMIT" if names else ""


def _inputs() -> dict[str, Any]:
    """Return sources and revisions of the inputs that were fetched for the job, as a part of run.json."""
    try:
        return {"inputs": json.loads(Path(os.environ.get("TORCHYARD_RUN_DIR", "."), "inputs.json").read_text())}
    except (OSError, ValueError):
        return {}


def compare_identity(path: Path, identity: dict[str, Any], *, only: Collection[str] | None = None) -> None:
    """Compare a run with the run.json of earlier ones.

    Args:
        path: of the run.json.
        identity: of this run.
        only: names to compare; None: all of them.

    Raises:
        DataMismatchError: naming the fields that differ, both values and the way out.
    """
    try:
        run = read_record(path)
        before, params = run["identity"], run.get("config", {}).get("trainer", {}).get("params")
        known = before.keys() | identity.keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: unreadable ({error}); repair it or use another checkpoint folder") from error
    changed = [
        _difference(name, identity, before, params)
        for name in sorted(known if only is None else known & set(only))
        if identity.get(name) != before.get(name)
        and not (name in _OPTIONAL and (name not in before or name not in identity))
    ]
    if changed:
        raise DataMismatchError(
            f"{', '.join(changed)} in the run of {path.parent}; set it back or use another checkpoint folder"
        )


# What it means that a value of an identity differs, where its name does not tell.
_MEANINGS = {
    FROZEN_BASE: "the frozen weights are other ones",
    GEOMETRY: "the config of the model is another one, with which the same weights compute something else",
    PROMPT: "texts are encoded to other tokens",
    HEAD: "the head computes something else with the same weights",
}


def _difference(name: str, identity: dict[str, Any], before: dict[str, Any], params: Any) -> str:
    """Describe how a value of an identity differs from that of the earlier run, whose `params` are given."""
    if name == MODEL_SHAPE:
        return f"the weights have other shapes (trainer.params was {json.dumps(params)})"
    if name in _MEANINGS:
        return f"{_MEANINGS[name]} ({name} is {identity.get(name)}, was {before.get(name, 'not recorded')})"
    return f"{name} is {identity.get(name)!r} but was {before.get(name)!r}"


class Source(NamedTuple):
    """A checkpoint folder, and the selected checkpoints: all, one `step` folder, or the `best` ones first."""

    root: Path
    step: Path | None
    best: bool


def resolve(path: Path) -> Source:
    """Resolve a path: a checkpoint folder, one of its step folders, or `best` below the former."""
    if commits.is_step(path):
        return Source(path.parent, path, best=False)
    if path.name == BEST and not path.is_dir():
        return Source(path.parent, None, best=True)
    return Source(path, None, best=False)


def _candidates_at(path: Path) -> list[commits.Candidate]:
    place = resolve(path)
    found = commits.candidates(place.root)
    if place.step is not None:
        return [candidate for candidate in found if candidate.folder == place.step]
    if place.best:
        scored = [(score, each) for each in found if (score := commits.read_score(each.folder)) is not None]
        return [each for _, each in sorted(scored, key=lambda pair: (pair[0], -pair[1].step))]
    return found
