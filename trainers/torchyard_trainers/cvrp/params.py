"""Parameters of the `cvrp` workload. Imports no torch: the operator's schema is made from this file."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Count, doc, given, read

LEAST_CITIES = 4
OURS = ("cvrp", "tsp", "vrptw")
_CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
_PROBLEM = {"pattern": f"^({'|'.join(OURS)}|{_CLASS})$", "x-form": f"{', '.join(OURS)} or MODULE:CLASS"}


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """REINFORCE on routing problems. What is absent comes from the preset."""

    preset: Annotated[
        Literal["tiny", "cvrp20", "cvrp50", "cvrp100", "tsp20", "tsp50", "tsp100", "vrptw20", "vrptw50", "vrptw100"],
        doc(
            "Sizes to start from: tiny (10 customers) learns on a CPU in a minute, the others are standard sizes of "
            "a problem."
        ),
    ] = "tiny"
    problem: Annotated[
        Annotated[str, Meta(max_length=256, extra_json_schema=_PROBLEM)] | None,
        doc(
            "cvrp: vehicles of one capacity; tsp: one tour through all cities; vrptw: cvrp with time windows; or "
            "MODULE:CLASS of your own (docs/workloads.md). Default: that of the preset; of tiny: cvrp."
        ),
    ] = None
    steps: Annotated[Count | None, doc("Optimizer steps.")] = None
    seed: Annotated[Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, instances and sampled routes.")] = 1
    model: Annotated[
        Literal["am", "gat", "gt", "dgt"],
        doc(
            "am: attention model (Kool 2019); gat: graph attention over edges (GATv2); gt: graph transformer with a "
            "learned distance bias per head; dgt: gt whose node embeddings are renewed as the route is built."
        ),
    ] = "am"
    baseline: Annotated[
        Literal["rollout", "shared", "ema", "critic"],
        doc(
            "rollout: greedy routes of a frozen copy (Kool 2019); shared: mean over the instance's samples (POMO); "
            "ema: moving average of all routes' lengths; critic: a network that expects them."
        ),
    ] = "shared"
    customers: Annotated[
        Annotated[int, Meta(ge=2, le=1000)] | None, doc("Customers of an instance; of tsp: its cities.")
    ] = None
    capacity: Annotated[Annotated[int, Meta(ge=10, le=100000)] | None, doc("Vehicle capacity, in units of demand.")] = (
        None
    )
    distribution: Annotated[
        Literal["uniform", "grid-1-10"],
        doc("uniform: coordinates in the unit square, demands 1 to 9; grid-1-10: a 101 x 101 grid, demands 1 to 10."),
    ] = "uniform"
    batch: Annotated[
        Count | None, doc("Instances of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    samples: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        doc("Routes sampled for an instance: at least 2 for shared; Kool's rollout takes 1."),
    ] = None
    starts: Annotated[
        Literal["free", "customers"] | None,
        doc("First customer of a sampled route. free: the policy chooses; customers: one for each sample (POMO)."),
    ] = None
    lr: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, doc("Learning rate of the first step.")] = None
    lr_final: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, doc("Learning rate of the last step; cosine in between.")
    ] = None
    embedding: Annotated[
        Annotated[int, Meta(ge=8, le=4096)] | None, doc("Width of the model, a multiple of heads.")
    ] = None
    heads: Annotated[Annotated[int, Meta(ge=1, le=64)] | None, doc("Attention heads.")] = None
    layers: Annotated[Annotated[int, Meta(ge=1, le=64)] | None, doc("Encoder layers.")] = None
    eval_instances: Annotated[Count | None, doc("Instances of the fixed evaluation set.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    eval_batch: Annotated[Count | None, doc("Instances of one forward pass of an evaluation.")] = None
    decoding: Annotated[
        Literal["greedy", "sampling", "augmented", "multistart"] | None,
        doc(
            "How routes are sought at the end of training and in mode eval, beside greedy ones: sampling: the best of "
            "decodingSamples; augmented: the best greedy route of 8 symmetric pictures of the instance; multistart: of "
            "each picture one route for each customer, which it visits first (POMO)."
        ),
    ] = None
    decoding_samples: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)], doc("Routes that decoding sampling draws for an instance.")
    ] = 1280
    solver: Annotated[
        Literal["none", "pyvrp"],
        doc(
            "pyvrp: compare with the best known tours of the evaluation set (extra solvers), which are computed once: "
            "0.01 to 0.1 s of a processor for an instance of 10 to 20 customers."
        ),
    ] = "none"
    instances: Annotated[
        str | None,
        doc(
            "A .vrp file of CVRPLIB, or a folder of them, to solve at the end of training and in mode eval; lengths "
            "are compared with .sol files beside them."
        ),
    ] = None
    baseline_instances: Annotated[
        Annotated[int, Meta(ge=32)] | None, doc("Instances of the t-test of baseline rollout.")
    ] = None
    baseline_every: Annotated[Count | None, doc("Optimizer steps between two t-tests of baseline rollout.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between two lines of output.")] = 20


class Settings(Struct, frozen=True, kw_only=True):
    """Parameters with every preset value filled in."""

    problem: str
    steps: int
    seed: int
    model: str
    baseline: str
    customers: int
    capacity: int
    distribution: str
    batch: int
    samples: int
    starts: str
    lr: float
    lr_final: float
    embedding: int
    heads: int
    layers: int
    eval_instances: int
    eval_every: int
    eval_batch: int
    decoding: str
    decoding_samples: int
    baseline_instances: int
    baseline_every: int
    log_every: int
    compile: bool
    solver: str = "none"
    instances: str | None = None


_STANDARD = {
    "batch": 512,
    "samples": 16,
    "starts": "free",
    "decoding": "greedy",
    "lr": 1e-4,
    "lr_final": 1e-6,
    "embedding": 128,
    "heads": 8,
    "layers": 3,
    "eval_instances": 10_000,
    "eval_every": 500,
    "eval_batch": 1024,
    "baseline_instances": 10_000,
    "baseline_every": 2500,
}

METRICS = (
    "trainCost",
    "advantage",
    "baselineCost",
    "baselineRenewals",
    "cost",
    "costNearest",
    "costSavings",
    "costInsertion",
    "costSampling",
    "costAugmented",
    "costMultistart",
    "costUntrained",
    "costSolver",
    "gapSavingsPercent",
    "gapInsertionPercent",
    "gapSolverPercent",
    "gapReferencePercent",
)
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""
METRICS_WITH = {
    "costSolver": ("solver", "pyvrp"),
    "gapSolverPercent": ("solver", "pyvrp"),
    "costSavings": ("problem", "cvrp|tsp"),
    "gapSavingsPercent": ("problem", "cvrp|tsp"),
    "costInsertion": ("problem", "vrptw"),
    "gapInsertionPercent": ("problem", "vrptw"),
    "baselineCost": ("baseline", "ema|rollout"),
    "baselineRenewals": ("baseline", "rollout"),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "customers": 10,
        "capacity": 20,
        "steps": 500,
        "batch": 64,
        "samples": 8,
        "starts": "free",
        "decoding": "multistart",
        "lr": 1e-3,
        "lr_final": 5e-5,
        "embedding": 64,
        "heads": 4,
        "layers": 2,
        "eval_instances": 1000,
        "eval_every": 100,
        "eval_batch": 500,
        "baseline_instances": 1000,
        "baseline_every": 25,
    },
    "cvrp20": {**_STANDARD, "customers": 20, "capacity": 30, "steps": 10_000},
    "cvrp50": {**_STANDARD, "customers": 50, "capacity": 40, "steps": 50_000},
    "cvrp100": {**_STANDARD, "customers": 100, "capacity": 50, "steps": 100_000, "batch": 256},
}
for _other in ("tsp", "vrptw"):
    PRESETS |= {f"{_other}{size}": PRESETS[f"cvrp{size}"] | {"problem": _other} for size in (20, 50, 100)}

# Only `shared` compares routes of one instance; for the others, more instances tell more than more routes of each.
UNSHARED: dict[str, dict[str, Any]] = {
    name: {"batch": 128, "samples": 4} if name == "tiny" else {"samples": 1} for name in PRESETS
}


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    preset = PRESETS[params.preset] | ({} if params.baseline == "shared" else UNSHARED[params.preset])
    values = given(params)
    preset = {"problem": "cvrp", **preset}
    _check_problem(params, preset["problem"])
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    settings = msgspec.convert({**preset, **values, "compile": parallelism.compile}, Settings)
    if settings.problem == "tsp" and settings.customers < LEAST_CITIES:
        raise ConfigError(
            f"trainer.params.customers: {settings.customers} cities are no tour; use at least {LEAST_CITIES}"
        )
    if settings.embedding % settings.heads:
        raise ConfigError(
            f"trainer.params.embedding: {settings.embedding} is not a multiple of heads ({settings.heads}); change one"
        )
    if settings.starts == "customers" and settings.baseline == "rollout":
        raise ConfigError(
            "trainer.params.starts: customers, but the routes of baseline rollout start where the policy chooses; use "
            "baseline shared"
        )
    if settings.baseline == "shared" and settings.samples < 2:
        raise ConfigError(
            f"trainer.params.samples: {settings.samples}, but baseline shared compares at least 2; use rollout for 1"
        )
    largest_demand = 10 if settings.distribution == "grid-1-10" else 9
    assert settings.capacity >= largest_demand
    return settings


def _check_problem(params: Params, of_preset: str) -> None:
    """Check what a problem and other parameters require of each other."""
    problem = of_preset if params.problem is None else params.problem
    if not re.fullmatch(f"{'|'.join(OURS)}|{_CLASS}", problem):
        raise ConfigError(
            f"trainer.params.problem: {problem!r} is none of {', '.join(OURS)}; use one of them, or MODULE:CLASS"
        )
    if params.preset != "tiny" and problem in OURS and problem != of_preset:
        raise ConfigError(
            f"trainer.params.preset: {params.preset}, but its problem is {of_preset}, not {problem}; remove one of them"
        )
    if problem == "tsp" and params.capacity is not None:
        raise ConfigError(f"trainer.params.capacity: {params.capacity}, but tsp has no demands; remove it")
    if problem == "vrptw" and params.distribution != "uniform":
        raise ConfigError(
            f"trainer.params.distribution: {params.distribution}, but instances of vrptw are uniform; remove it"
        )
    if params.instances is not None and problem != "cvrp":
        raise ConfigError(
            f"trainer.params.instances: files of CVRPLIB are problems of cvrp, not {problem}; remove one of them"
        )
    if params.solver != "none" and problem not in OURS:
        raise ConfigError(f"trainer.params.solver: {params.solver} knows {', '.join(OURS)}, not {problem}; remove it")
