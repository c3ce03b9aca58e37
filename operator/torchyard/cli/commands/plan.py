"""`torchyard plan FILE`."""

from argparse import ArgumentParser
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchyard.api.values import plural
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob
    from torchyard.client.plans.cluster_plan import ClusterPlan

GIB = 1024**3
# About the GiB that CUDA reports for a whole device, by the names people use, from what is published of them and quoted
# in out-of-memory messages; boards and drivers differ by some 1 %. None was measured by us.
GPUS = {
    "T4-16GB": 14.6,
    "V100-16GB": 15.8,
    "V100-32GB": 31.7,
    "A10-24GB": 22.0,
    "L4-24GB": 22.0,
    "RTX4090-24GB": 23.5,
    "L40S-48GB": 44.4,
    "A100-40GB": 39.4,
    "A100-80GB": 79.2,
    "H100-80GB": 79.1,
    "H200-141GB": 139.8,
    "B200-180GB": 178.4,
}
# Older than compute capability 8.0: `precision: auto` is fp32 there.
WITHOUT_BF16 = {"T4-16GB", "V100-16GB", "V100-32GB"}

# Parts that every forecast shows, even if they are 0.
EVALUATION = "evaluation between steps"
ROLLOUT = "rollout before a step"
ALWAYS = ("parameters", "gradients", "optimizer", "activations", "total")
NOTES = {
    "buffers": "of collectives: what fsdp gathers, the buckets of ddp",
    "host": "of the above, offloaded to the host",
}


def plan_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `plan`."""
    parser.add_argument("file", metavar="FILE", type=Path, help="job file (YAML or JSON)")
    parser.add_argument(
        "--gpu", metavar="GPU", help=f"GPU that the job must fit: {', '.join(GPUS)}, or a size such as 24Gi"
    )
    common.sets(parser)
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the plan as a document")


def plan(
    *,
    file: Path,
    gpu: str | None,
    sets: list[str],
    context: str | None,
    namespace: str | None,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Carry out `torchyard plan`.

    The memory of each rank is compared with that of a GPU: the one of --gpu, else `gpu.minMemory` of the file.

    With -n or --context, the cluster is asked as well, with your rights: whether the job fits now, who holds the GPUs
    and until when, what queue and quotas leave, what the file changes in the job of its name, and whether that restarts
    it. `torchyard submit --dry-run` prints the same.

    A step runs with tensors that have shapes but no content, so no GPU is needed. This takes about 10 seconds, up to a
    minute if a configuration that fits must be searched for, and minutes for a large model that also generates text.
    If the job does not fit, the cheapest change that makes it fit is printed.

    Exit codes: 0 the job fits, now or later, or no GPU is given; 1 it does not fit, or the cluster rejects it; 64
    invalid file, 65 unusable data.
    """
    from torchyard.client.files import job_of

    if file.suffix == ".py":
        raise unknown_step(f"{file} is a script")
    job = job_of(file, sets)
    on_cluster = context is not None or namespace is not None
    if not on_cluster and job.spec.trainer is None:
        raise unknown_step(f"{file} runs a program of its own")
    size = size_of(job, gpu)
    found, why = (memory_of(job, file.parent, gpu), "") if not on_cluster else memory_if_possible(job, file.parent, gpu)
    if not on_cluster:
        return show(found, size, None, "", output)
    from torchyard.client.jobs import creatable

    document = creatable(job, str(file), namespace)
    return show(found, size, on_the_cluster(job, document, context, namespace), why, output)


def size_of(job: "TrainingJob", gpu: str | None) -> str | None:
    """Return the GPU that ranks must fit: of the command line, else of the job; None: neither names one."""
    spec = job.spec
    return gpu or (str(spec.gpu.min_memory) if spec.gpu is not None and spec.gpu.min_memory is not None else None)


def memory_of(job: "TrainingJob", folder: Path, gpu: str | None) -> dict[str, Any]:
    """Return the forecast of the memory of each rank of a job with a trainer."""
    spec = job.spec
    size = size_of(job, gpu)
    procs = max(1, spec.gpus_per_node) if spec.procs_per_node == "auto" else spec.procs_per_node
    with waiting():
        return forecast(
            job,
            folder,
            ranks=spec.nodes * procs,
            local=procs,
            memory=bytes_of(size) if size else None,
            field="--gpu" if gpu else "spec.gpu.minMemory",
            bf16=has_bf16(size),
        )


def memory_if_possible(job: "TrainingJob", folder: Path, gpu: str | None) -> tuple[dict[str, Any] | None, str]:
    """Return the forecast, or None and why there is none: the rest of a plan does not need it."""
    from torchyard.client.errors import INVALID, TorchYardError

    if job.spec.trainer is None:
        return None, "memory per rank: only the step of a spec.trainer can be forecast"
    if job.spec.procs_per_node == "auto" and job.spec.resources.claims:
        return None, "memory per rank: set procsPerNode, since the GPUs of claims are not counted here"
    try:
        return memory_of(job, folder, gpu), ""
    except TorchYardError as error:
        if error.code == INVALID:
            raise
        return None, f"memory per rank: {error}"


def on_the_cluster(
    job: "TrainingJob", document: dict[str, Any], context: str | None, namespace: str | None
) -> "ClusterPlan":
    """Ask the cluster what it would do with a job.

    Args:
        job: to be planned.
        document: of the job, as it would be created.
        context: of the kubeconfig.
        namespace: of the cluster.

    Raises:
        TorchYardError: there is no cluster, or it does not answer.
    """
    from torchyard.client.backend import Backend
    from torchyard.client.cluster import ClusterBackend
    from torchyard.client.location import Location

    async def ask(backend: Backend) -> "ClusterPlan":
        assert isinstance(backend, ClusterBackend)
        return await backend.plan(job, document)

    return common.ask_at(Location("cluster", context, namespace or document["metadata"].get("namespace")), ask)


def show(
    memory: dict[str, Any] | None,
    size: str | None,
    cluster: "ClusterPlan | None",
    why: str,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Print a plan and return the exit code.

    Args:
        memory: the forecast of the trainer, if there is one.
        size: the GPU that ranks must fit.
        cluster: the plan on a cluster, if one was asked.
        why: why there is no forecast.
        output: the form; None: words.
    """
    from torchyard.cli.output import emit

    if output is not None:
        document = dict(memory or {})
        if cluster is not None:
            import msgspec

            document["cluster"] = msgspec.to_builtins(cluster)
            document["cluster"]["notes"] += [why] if why else []
        emit(document, output)
    else:
        if cluster is not None:
            print(cluster)
            print(f"  {'memory':<10}{why.removeprefix('memory per rank: ') or 'of each rank:'}")
        if memory is not None:
            print(forecast_text(memory, size))
    possible = cluster is None or cluster.possible
    return FAILED if not possible or (memory is not None and memory["job"]["fits"] is False) else SUCCEEDED


def unknown_step(what: str) -> RefusalError:
    """Return why a program cannot be planned, and what to do instead."""
    fix = (
        "name a built-in trainer or a workload class of yours in spec.trainer of a job file (docs/workloads.md), or "
        "measure the program: `torchyard run`, then torch.cuda.max_memory_allocated()"
    )
    return RefusalError(f"{what}, and only the step of a spec.trainer can be forecast", fix)


def waiting() -> AbstractContextManager[Any]:
    """Show progress on a terminal."""
    from torchyard.cli.output import console

    terminal = console(stderr=True)
    return terminal.status("making the step of a rank ...") if terminal.is_terminal else nullcontext()


def bytes_of(gpu: str) -> int:
    """Return the memory of a GPU by its name, or parse a size.

    Raises:
        RefusalError: it is neither, or the size is nothing.
    """
    from torchyard.api.values import amount

    known = {name.lower(): size for name, size in GPUS.items()}
    if gpu.lower() in known:
        return int(known[gpu.lower()] * GIB)
    try:
        size = int(amount(gpu))
    except ValueError as error:
        raise RefusalError(f"--gpu: {gpu} is not a known GPU", f"use {', '.join(GPUS)}, or a size: 24Gi") from error
    if size < 1:
        raise RefusalError(f"--gpu: {gpu} is not a positive size", "give the size of a GPU, such as 24Gi")
    return size


def has_bf16(gpu: str | None) -> bool:
    """Return whether a GPU computes in bf16; a size alone is assumed to, as current GPUs do."""
    return gpu is None or gpu.lower() not in {name.lower() for name in WITHOUT_BF16}


def forecast(
    job: Any, folder: Path, *, ranks: int, local: int, memory: int | None, field: str, bf16: bool = True
) -> dict[str, Any]:
    """Run the forecast of the trainer.

    Args:
        job: to plan.
        folder: of the job file.
        ranks: of all nodes.
        local: ranks of one node.
        memory: bytes of a rank's GPU, or None for a CPU.
        field: the option or field that sets it.
        bf16: whether the GPU has it.

    Raises:
        TorchYardError: in the trainer's words.
    """
    import json

    from torchyard.client.trainers import ask

    limit = ["--memory", str(memory)] if memory is not None else []
    limit += [] if bf16 else ["--no-bf16"]
    words = ("plan", "--world", str(ranks), "--local", str(local), *limit)
    answer = ask(job, *words, folder=folder, renamed={"--memory:": f"{field}:"})
    found: dict[str, Any] = json.loads(answer)
    return found


def forecast_text(found: dict[str, Any], gpu: str | None) -> str:
    """Return the forecast for people."""
    job, change = found["job"], found["change"]
    lines = [_way(job, found["ranks"]), *_table(job["bytes"]), _moment(job)]
    if job["fits"] is None:
        return "\n".join(lines)
    room = f"of its memory {_gib(found['room'])} can hold tensors"
    lines.append(f"It {'fits' if job['fits'] else 'does not fit'} {gpu}: {room}.")
    if change is not None:
        sets = " ".join(f"--set {field}={_word(value)}" for field, value in change["set"].items())
        lines += [f"The cheapest change that fits, with {_gib(change['bytes']['total'])}: {sets}", _way(change, 0)]
    elif not job["fits"] and job["peak"] == EVALUATION:
        less = "trainer.params.evalBatch or evalEpisodes"
        lines.append(f"No change of spec.parallelism makes its evaluation fit: evaluate less at once ({less}).")
    elif not job["fits"] and job["peak"] == ROLLOUT:
        less = "trainer.params.rolloutBatch or maxNewTokens"
        lines.append(f"No change of spec.parallelism makes its rollouts fit: generate less at once ({less}).")
    elif not job["fits"]:
        lines.append("No change of spec.parallelism makes it fit: use more GPUs, larger ones, or a smaller model.")
    return "\n".join(lines)


def _way(job: dict[str, Any], ranks: int) -> str:
    tokens = job.get("microBatchTokens")
    size = f"{tokens} tokens" if tokens else job["microBatchSize"]
    parts = [
        plural(ranks, "rank") if ranks else "",
        f"strategy {job['strategy']}",
        job["precision"],
        f"micro-batches of {size}, {job['accumulation']} a step",
        f"activation checkpointing {job['activationCheckpointing']}",
        "offloaded to the host" if job["cpuOffload"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _table(sizes: dict[str, int]) -> list[str]:
    rows = [(name, size) for name, size in sizes.items() if name in ALWAYS or size]
    return [f"  {name:<12}{_gib(size):>10}  {NOTES.get(name, '')}".rstrip() for name, size in rows]


def _moment(job: dict[str, Any]) -> str:
    peak = f"This is the peak of a step, in the {job['peak']}"
    if job["peak"] in (EVALUATION, ROLLOUT):
        return f"This is the peak, in the {job['peak']}."
    if job["bytes"]["gradients"]:
        return f"{peak}."
    return f"{peak}: gradients come later, when activations are freed."


def _gib(size: int) -> str:
    value, unit = (size / GIB, "GiB") if size >= GIB // 10 else (size / 1024**2, "MiB")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
