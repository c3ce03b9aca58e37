"""Which pods are forked from which template: those for which torch would be imported in the same way.

What a process has from its parent has to be equal, and what an import may read: interpreter, environment, modules, and
the working directory where a path of the environment is relative to it. Everything else is set in the fork.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchyard.api import launch
from torchyard.api.resource import TrainingJob
from torchyard.api.values import WITH_TRANSFORMERS
from torchyard.local import shared_templates
from torchyard.local.template import Imports, Template, begun

_MOST_LOST = 3  # templates that are killed; after that many there is no other one
# A shell changes them all the time, and no import reads them. `zygote` of the agent leaves out the same.
_OF_A_SHELL = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})
_PATHS = re.compile(r"(^|_|^PYTHON)(CACHE|DIR|FILE|FOLDER|HOME|PATH|ROOT)$|^LD_PRELOAD$")


class Templates:
    """The templates of one process that controls runs.

    Args:
        for_any: also for the first job of one node: others like it will follow.
        unused: seconds after which one ends that no pod asks for; 0: never.

    Raises:
        ValueError: TORCHYARD_TEMPLATE_OWNER holds no process id.
    """

    def __init__(self, *, for_any: bool = False, unused: float = 0) -> None:
        self._owner = shared_templates.owner_above(os.environ)
        self._for_any, self._unused = for_any or self._owner is not None, unused
        self._first: dict[str, str] = {}  # uid of the first job of one node, by what its template would be made for
        self._found: dict[str, asyncio.Task[Template | None]] = {}
        self._lost = 0

    async def of(
        self, job: TrainingJob, agent: Path, command: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> Template | None:
        """Return the template of the pods of a job, once its imports are done; None: they are started without one.

        Args:
            job: the job.
            agent: the agent's archive.
            command: of the workers.
            env: environment of one of the pods.
            cwd: working directory of the pods.
        """
        if not launch.is_warm(job.spec) or job.spec.gpus_per_node:
            return None  # with GPUs each pod sees other devices, and what is imported may look at them
        in_folder = cwd if job.spec.preload or _has_relative_path(env) else None
        imports = Imports(agent, command, env, in_folder, _read_of_config(job))
        key = _key(imports)
        task = self._found.get(key)
        if task is None and job.spec.nodes == 1 and not self._for_any:
            uid = job.metadata.uid
            if self._first.setdefault(key, uid) == uid:
                return None
        found = await asyncio.shield(task) if task is not None else None
        if task is self._found.get(key) and (task is None or (found is not None and self._lose(found))):
            self._found[key] = asyncio.create_task(self._started(imports, key))
        found = await asyncio.shield(self._found[key])
        return found if found is not None and found.alive else None

    def _lose(self, found: Template) -> bool:
        """Return whether another template is worth starting in the place of one: it has ended, and few were killed."""
        if found.alive or self._lost == _MOST_LOST:
            return False
        self._lost += not found.ended_by_itself
        return True

    async def _started(self, imports: Imports, key: str) -> Template | None:
        starting = asyncio.create_task(asyncio.to_thread(self._begun, imports, key))
        served = False
        try:
            template = await asyncio.shield(starting)
            served = await template.imported()
        except (OSError, ValueError):
            return None
        finally:
            if not served and self._owner is None:  # also when this is cancelled
                with contextlib.suppress(OSError, ValueError):
                    await asyncio.to_thread((await starting).close)
        return template if served else None

    def _begun(self, imports: Imports, key: str) -> Template:
        if self._owner is None:
            return begun(imports, unused=self._unused)
        return shared_templates.find_or_start(imports, key, self._owner)

    async def close(self) -> None:
        """End all of them that are not shared. Their pods go on."""
        for task in self._found.values():
            task.cancel()
        for ended in await asyncio.gather(*self._found.values(), return_exceptions=True):
            if isinstance(ended, Template) and self._owner is None:
                await asyncio.to_thread(ended.close)
        self._found.clear()


def _read_of_config(job: TrainingJob) -> dict[str, Any]:
    """Return what `torchyard_trainers.preload` reads of a job; workloads that import the same look alike."""
    trainer = job.spec.trainer
    if trainer is None:
        return {}
    name = WITH_TRANSFORMERS[0] if trainer.name in WITH_TRANSFORMERS else ""
    return {"trainer": {"name": name}, "parallelism": {"compile": job.spec.parallelism.compile}}


def _has_relative_path(env: Mapping[str, str]) -> bool:
    """Return whether a variable seems to hold a path that is relative to the working directory."""
    return any(
        not entry.startswith("/") and "://" not in value and ("/" in entry or _PATHS.search(name) is not None)
        for name, value in _shared(env).items()
        for entry in (value.split(os.pathsep) if value else ())
    )


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on which imports may depend: all but those by which pods differ."""
    kept = {name: value for name, value in env.items() if not name.startswith("TORCHYARD_") and name not in _OF_A_SHELL}
    return {**kept, "TORCHYARD_PRELOAD": env.get("TORCHYARD_PRELOAD", "")}


def _key(imports: Imports) -> str:
    parts: list[Any] = [imports.agent, imports.command[0], _shared(imports.env), imports.cwd, imports.config]
    parts.append(shared_templates.inherited())
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()[:16]
