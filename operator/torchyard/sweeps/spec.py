"""The spec of a TrainingSweep: what is tuned, how, for how long.

As in `api.spec`, the models are the single source of defaults, the CRD, `torchyard validate` and the reference.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from torchyard.api.schema import FORM
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import Duration, Model, by_key, doc

MAX_TRIALS = 1000
MAX_PARAMETERS = 32
MAX_CHOICES = 64
MAX_FIRST_TRIALS = 64
MAX_PARAMETERS_BYTES = 16 * 1024
"""Of `parameters`, and of `firstTrials`, as JSON; a structural schema cannot say it."""
NAMES_PATTERN = r"[a-z][A-Za-z0-9]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
ELEMENT_PATTERN = r"(args|command)\[([0-9]{1,3})\]|(env)\[([A-Za-z_][A-Za-z0-9_]*)\]"
"""One argument, or one environment variable: the only elements of lists that may be parameters, beside switches."""
SWITCH_PATTERN = r"(args|command)\[(--?[A-Za-z0-9][A-Za-z0-9_.-]*)\]"
"""An argument that a trial has or lacks: `args[--amp]`."""
PATH_PATTERN = f"^({NAMES_PATTERN}|{ELEMENT_PATTERN}|{SWITCH_PATTERN})$"

_PATH_FORM = "a field, an argument, a switch or a variable: trainer.params.lr, args[1], args[--amp], env[LR]"
Path = Annotated[str, Meta(pattern=PATH_PATTERN, min_length=1, max_length=256, extra_json_schema={FORM: _PATH_FORM})]
Values = Annotated[list[Any], Meta(min_length=1, max_length=MAX_CHOICES)]


class Objective(Model, frozen=True, kw_only=True):
    """What makes one trial better than another."""

    metric: Annotated[
        Annotated[str, Meta(min_length=1, max_length=58)],  # with `@10%` it is a name of a metric, too
        doc("A metric in the job's status; the value of a trial is the last one that it reports."),
    ]
    goal: Annotated[Literal["minimize", "maximize"], doc("Which values are better.")]
    target: Annotated[
        float | None,
        doc("The sweep ends once a trial that trained to its end is as good as this; trials that run save and stop."),
    ] = None


class Algorithm(Model, frozen=True, kw_only=True):
    """How parameters of the next trial are chosen."""

    name: Annotated[
        Literal["tpe", "random", "grid", "cmaes", "gp"],
        doc(
            "tpe: tree-structured Parzen estimator; random; grid: every combination, in order; cmaes: covariance "
            "matrix adaptation, for numbers; gp: Gaussian processes, for few and expensive trials (needs torch and "
            "scipy where the sweep is controlled; the operator's image lacks them)."
        ),
    ] = "tpe"
    seed: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="Seed of the algorithm: the same results give the same parameters.")
    ] = 0


class EarlyStopping(Model, frozen=True, kw_only=True):
    """When a trial is stopped early. A stopped trial has saved, so that it can be continued."""

    name: Annotated[
        Literal["asha", "hyperband", "median"],
        doc(
            "asha: at each rung, only the best part of the trials goes on; a stopped trial that belongs to the best "
            "part later is continued from its checkpoint. hyperband: asha whose first rung differs between trials. "
            "median: a trial that is worse than the median of the others is stopped."
        ),
    ]
    first_percent: Annotated[int, Meta(ge=1, le=90, description="Percentage of a trial's steps at the first rung.")] = (
        10
    )
    factor: Annotated[
        int,
        Meta(
            ge=2,
            le=10,
            description="Each rung is at this multiple of the one before; asha and hyperband let one in so many "
            "trials go on.",
        ),
    ] = 3
    min_trials: Annotated[
        int,
        Meta(ge=1, le=100, description="median: no trial is stopped before this many trials have reached the rung."),
    ] = 4


class FloatRange(Model, frozen=True, kw_only=True):
    """A number between two bounds, both included."""

    min: Annotated[float, doc("Smallest value.")]
    max: Annotated[float, doc("Largest value.")]
    log: Annotated[bool, doc("Search on a logarithmic scale; min must be above 0.")] = False
    step: Annotated[float | None, doc("Distance between two values; absent: any value.")] = None


class IntRange(Model, frozen=True, kw_only=True):
    """A whole number between two bounds, both included."""

    min: Annotated[int, Meta(ge=-(2**53), le=2**53, description="Smallest value.")]
    max: Annotated[int, Meta(ge=-(2**53), le=2**53, description="Largest value.")]
    log: Annotated[bool, doc("Search on a logarithmic scale; min must be at least 1.")] = False
    step: Annotated[int, Meta(ge=1, le=2**53, description="Distance between two values.")] = 1


class Condition(Model, frozen=True, kw_only=True):
    """A parameter exists only where another one has certain values."""

    path: Annotated[Path, doc("Path of a parameter that is listed before.")]
    values: Annotated[Values, doc("Values of that parameter.")]


class Parameter(Model, frozen=True, kw_only=True):
    """One field of the job that trials differ in. Give one of float, int, choice."""

    path: Annotated[
        Path,
        doc(
            "Field of the job's spec: trainer.params.lr, parallelism.globalBatchSize; an argument, args[1], or an "
            "environment variable, env[LR], which get the value as text; or a switch, args[--amp], with the choice "
            "[true, false]: the program has the argument, or not."
        ),
    ]
    float_: Annotated[FloatRange | None, doc("A number from a range.")] = field(default=None, name="float")
    int_: Annotated[IntRange | None, doc("A whole number from a range.")] = field(default=None, name="int")
    choice: Annotated[
        list[Any], Meta(max_length=MAX_CHOICES, description="One of these: texts, numbers, true or false.")
    ] = field(default_factory=list)
    conditions: Annotated[
        list[Condition],
        Meta(max_length=4, description="Trials have the parameter only if all of these hold."),
    ] = field(default_factory=list)


class JobTemplate(Model, frozen=True, kw_only=True):
    """The job that every trial is, but for its parameters."""

    spec: Annotated[TrainingJobSpec, doc("Spec of the trials.")]


class TrainingSweepSpec(Model, frozen=True, kw_only=True):
    """Which parameters of a job to tune, how, and for how long."""

    objective: Annotated[Objective, doc("The metric to optimize.")]
    algorithm: Annotated[Algorithm, doc("How parameters are chosen.")] = field(default_factory=Algorithm)
    early_stopping: Annotated[
        EarlyStopping | None, doc("When bad trials are stopped; absent: all trials run to their end.")
    ] = None
    parameters: Annotated[
        list[Parameter],
        Meta(
            min_length=1,
            max_length=MAX_PARAMETERS,
            description="Parameters that differ between trials.",
            extra_json_schema=by_key("path"),
        ),
    ]
    first_trials: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=MAX_FIRST_TRIALS,
            description="Parameters of the first trials, by path, such as values that are known to be good. The "
            "algorithm chooses those that are left out, and learns from these trials as from its own.",
        ),
    ] = field(default_factory=list)
    max_trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS, description="Number of trials; it may be raised later.")] = 20
    parallel_trials: Annotated[int, Meta(ge=1, le=64, description="Trials that run at the same time.")] = 1
    max_failed: Annotated[
        int, Meta(ge=0, le=MAX_TRIALS, description="The sweep fails when more trials than this have failed.")
    ] = 3
    deadline: Annotated[
        Duration | None,
        doc("Longest time from the creation of the sweep. Then trials are saved and stopped."),
    ] = None
    suspend: Annotated[bool, doc("Save and stop the trials; false continues them. On a cluster only.")] = False
    ttl_after_finished: Annotated[
        Duration | None,
        doc("Delete the sweep with its trials this long after it has ended; absent: never. On a cluster only."),
    ] = None
    job_template: Annotated[JobTemplate, doc("The job that is tuned.")]


MAY_CHANGE = ("max_trials", "parallel_trials", "max_failed", "deadline", "suspend", "ttl_after_finished")
"""Fields of a sweep that exists which may change; any other change is another sweep."""
