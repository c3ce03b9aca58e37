"""The environment of a pod: this machine's, without variables of other launchers, and the protocol's."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from torchyard.api import code_source, inputs, launch
from torchyard.api.launch import local_procs
from torchyard.api.names import PROGRAM_FOLDER, SOURCE_FOLDER
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_placement import Input
from torchyard.interpreter import own_environment
from torchyard.local.gang_share import GangShare
from torchyard.local.record import POD_MARK, PodRecord
from torchyard.local.run import RunFolder
from torchyard.local.user_environment import THREADS, THREADS_SET, users_environment

if TYPE_CHECKING:
    from torchyard.sweeps.resource import TrainingSweep

OWN_PROGRAMS = Path(sys.executable).parent
"""Folder of the `torchrun` and `python` of the environment that TorchYard is installed in."""

_Resource = TypeVar("_Resource", bound="TrainingJob | TrainingSweep")


def programs_of_shell(path: str | None = None) -> Path:
    """Return the folder of the `torchrun` that the shell would start; TorchYard's own where it would start none.

    TorchYard may be installed in another environment than the active one, which has the user's libraries.

    Args:
        path: of the shell; by default the one of this process.
    """
    found = shutil.which("torchrun", path=path)
    return Path(found).absolute().parent if found else OWN_PROGRAMS


def with_programs(resource: _Resource, folder: Path) -> _Resource:
    """Return the job or sweep, whose commands are looked up in `folder` first."""
    annotations = {**resource.metadata.annotations, PROGRAM_FOLDER: str(folder)}
    metadata = msgspec.structs.replace(resource.metadata, annotations=annotations)
    return msgspec.structs.replace(resource, metadata=metadata)


def search_path(job: TrainingJob, shell: str) -> str:
    """Return the `PATH` of a pod: that of the shell, in its order, where it leads to the programs of the job."""
    programs = _programs(job)
    named = job.metadata.annotations.get(PROGRAM_FOLDER) == str(programs)
    found = named and shutil.which("torchrun", path=shell) is not None and programs_of_shell(shell) == programs
    return os.pathsep.join([*([] if found else [str(programs)]), shell, str(OWN_PROGRAMS)])


def worker_python(job: TrainingJob) -> str:
    """Return the Python of the workers of a job: the one beside its torchrun, or else the one of TorchYard."""
    found = shutil.which("torchrun", path=search_path(job, os.environ.get("PATH", os.defpath)))
    beside = Path(found).with_name("python") if found else Path(sys.executable)
    return str(beside) if os.access(beside, os.X_OK) else sys.executable


def _programs(job: TrainingJob) -> Path:
    """Return where the job's commands are looked up first; Python functions and older runs name no folder."""
    if job.spec.trainer is not None:
        return OWN_PROGRAMS
    return Path(str(job.metadata.annotations.get(PROGRAM_FOLDER) or OWN_PROGRAMS))


def pod_environment(
    inherited: Mapping[str, str],
    job: TrainingJob,
    pod: PodRecord,
    folder: RunFolder,
    cores: int,
    *,
    share: GangShare | None = None,
) -> dict[str, str]:
    """Return the environment of the agent of one pod.

    Args:
        inherited: the user's environment.
        job: the job.
        pod: the pod.
        folder: of the run.
        cores: of this machine; the pods share them.
        share: the part of the gang that is on this machine; None: all of it.
    """
    spec, share = job.spec, share or GangShare()
    home = folder.pods / pod.name
    procs = local_procs(spec)
    env = users_environment(inherited)
    if not launch.imports_own_code(spec):
        # What lies in the folder, `json.py` for instance, is no part of the job: the agent and the workers import it
        # only where the job names its own code.
        env = own_environment(env, PYTHONSAFEPATH="1")
    # Every pod believes it has the machine to itself; without this each would start a thread a core.
    if THREADS not in env:
        env[THREADS] = env[THREADS_SET] = str(max(1, cores // (len(share.pods(job)) * procs)))
    # As on a cluster, a pod sees the GPUs it asked for and no others.
    env["CUDA_VISIBLE_DEVICES"] = ",".join(pod.gpus)
    env["PATH"] = search_path(job, env.get("PATH", os.defpath))
    contract = {
        POD_MARK: pod.uid,
        "TORCHYARD_HOME": str(folder.home),  # of the runs that the program starts
        "TORCHYARD_JOB": job.metadata.name,
        "TORCHYARD_NAMESPACE": job.metadata.namespace,
        "TORCHYARD_JOB_UID": job.metadata.uid,
        "TORCHYARD_POD_NAME": pod.name,
        "TORCHYARD_POD_INDEX": str(pod.index),
        "TORCHYARD_OPERATOR_URL": pod.url,
        "TORCHYARD_TOKEN_FILE": str(home / "token"),
        "TORCHYARD_RUN_DIR": str(home / "run"),
        "TORCHYARD_LOG_DIR": str(home / "logs"),
        "TORCHYARD_TERMINATION_LOG": str(home / "termination.json"),
        "TORCHYARD_CONFIG": str(home / "config.json"),
        "TORCHYARD_CHECKPOINT_DIR": str(share.checkpoints or folder.checkpoints),
        "TORCHYARD_CACHE_DIR": str(folder.cache),
        "TORCHYARD_POD_ADDRESS": pod.address,
        # Decided here: NVML would count the GPUs that other pods have, too.
        "TORCHYARD_PROCS": str(procs),
    }
    if spec.code is not None:
        contract |= {"TORCHYARD_CODE_ROOT": str(folder.code), "TORCHYARD_CODE_MOUNT": str(folder.archives)}
        contract["TORCHYARD_WORKING_DIR"] = spec.working_dir or ""
        contract |= code_source.settings(
            spec.code,
            root=str(folder.code),
            folder=str(image_folder(folder.home, spec.code.image or "")),
            cache=str(fetched_folder(folder.home)),
            secret="",
            own=True,
        )
    contract |= inputs.requirements(spec, str(folder.home / "requirements"))
    contract |= inputs.variables(spec, lambda each: input_folder(folder, each))
    contract |= inputs.settings(job, str(folder.home / "inputs"), str(folder.path / "inputs"))
    return launch.DEFAULT_ENV | dict(share.variables) | env | launch.own_env(spec) | launch.agent_env(spec) | contract


def input_folder(folder: RunFolder, each: Input) -> str:
    """Return where the pods of a run find an input."""
    return str(folder.path / "inputs" / each.name)


def image_folder(home: Path, image: str) -> Path:
    """Return where the code of an image is on this machine, once it is pulled."""
    return images_folder(home) / image.rpartition(":")[2]


def images_folder(home: Path) -> Path:
    """Return where the code of images is on this machine, by digest, for all runs."""
    return home / "code-images"


def fetched_folder(home: Path) -> Path:
    """Return where the code of repositories is on this machine, by commit, for all runs."""
    return home / "fetched-code"


def working_folder(job: TrainingJob, folder: RunFolder) -> Path:
    """Return where workers start: `spec.workingDir`, relative to the folder of the job file.

    A round enters its code, where the job has some; then this is only where its agent is.
    """
    if job.spec.code is not None:
        return folder.path
    return Path(str(job.metadata.annotations.get(SOURCE_FOLDER) or folder.path)) / (job.spec.working_dir or "")
