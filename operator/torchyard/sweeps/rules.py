"""Rules of a sweep: its own fields, and those that join parameters and objective with the job."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.parse import Fault, broken_rules
from torchyard.api.validation.problems import nearest, shown
from torchyard.api.validation.schema_check import conditional_metrics, params_schema, trainer_metrics
from torchyard.api.values import BUILT_IN, FORMS, TEXT_PATTERN, names_code, plural
from torchyard.sweeps.space import as_argument, bound, element, excluded, fault_of, grid_size, short_names, strange
from torchyard.sweeps.spec import MAX_PARAMETERS_BYTES, MAX_TRIALS, Parameter, TrainingSweepSpec
from torchyard.sweeps.targets import PARAMS, Written, target_faults

NO_TOTAL = (
    "the patterns of the job do not find the total number of steps, of which rungs are percentages",
    "give jobTemplate.spec.metrics.totalSteps, or a pattern with a group total_steps",
)
SET_BY_SWEEP = "a sweep sets it itself"
TOTAL_STEPS = "metrics.totalSteps"
TOTAL_GROUPS = ("total_steps", "totalSteps")
_MANY = 10**9
_GROUP = re.compile(r"\(\?P<([A-Za-z_][A-Za-z0-9_]*)>")


class TemplateRule(NamedTuple):
    """A rule for the template of trials, in addition to those for jobs."""

    path: str
    what: str
    fix: str
    cel: str
    """For the CRD: true of a template that keeps the rule."""
    broken: Callable[[TrainingJobSpec], bool]


TEMPLATE_RULES = (
    TemplateRule(
        path="ttlAfterFinished",
        what="the sweep would run a deleted trial again",
        fix="leave it out, and delete the trials when the sweep is over",
        cel="!has(self.ttlAfterFinished)",
        broken=lambda job: job.ttl_after_finished is not None,
    ),
    TemplateRule(
        path="suspend",
        what="the sweep decides which trials are suspended",
        fix="leave it out",
        cel="!has(self.suspend) || !self.suspend",
        broken=lambda job: job.suspend,
    ),
    TemplateRule(
        path="metrics.milestones",
        what=SET_BY_SWEEP,
        fix="use earlyStopping",
        cel="!has(self.metrics) || !has(self.metrics.milestones)",
        broken=lambda job: job.metrics.milestones is not None,
    ),
    TemplateRule(
        path="launcher.kind",
        what="without an agent nothing reads the metrics of a trial",
        fix="use agent",
        cel="!has(self.launcher) || !has(self.launcher.kind) || self.launcher.kind == 'agent'",
        broken=lambda job: job.launcher.kind != "agent",
    ),
    TemplateRule(
        path="trainer.mode",
        what="a sweep needs mode train",
        fix="use mode train",
        cel="!has(self.trainer) || !has(self.trainer.mode) || self.trainer.mode == 'train'",
        broken=lambda job: job.trainer is not None and job.trainer.mode != "train",
    ),
)


def faults(spec: TrainingSweepSpec, written: Written = lambda _path: "") -> Iterator[Fault]:
    """Yield every broken rule of a decoded spec.

    Args:
        spec: as decoded from YAML or JSON.
        written: source text of values, where `spec` comes from a file.
    """
    for name, listed in (("parameters", spec.parameters), ("firstTrials", spec.first_trials)):
        size = len(msgspec.json.encode(listed))
        if size > MAX_PARAMETERS_BYTES:
            what = f"{size // 1024} KiB as JSON, more than {MAX_PARAMETERS_BYTES // 1024} KiB"
            yield name, what, "give fewer or shorter values, or names of files in place of what is in them"
            return
    for index, parameter in enumerate(spec.parameters):
        path = f"parameters[{index}]"
        checks = (
            _own_faults(path, parameter),
            target_faults(path, parameter, spec, written),
            _repeats(path, parameter),
        )
        yield from next(filter(None, map(list, checks)), [])
        yield from _condition_faults(path, index, spec)
    yield from _algorithm_faults(spec)
    yield from _first_trial_faults(spec)
    yield from _template_faults(spec)
    yield from _objective_faults(spec)


def first_fault(spec: TrainingSweepSpec) -> Fault | None:
    """Return the first broken rule of a decoded spec, also of its job and of the jobs at the bounds of its ranges."""
    for path, what, fix in faults(spec):
        return f"spec.{path}", what, fix
    for path, what, fix in broken_rules(spec.job_template.spec):
        return path.replace("spec", "spec.jobTemplate.spec", 1), what, fix
    for path, what, fix in at_the_bounds(spec):
        return "spec.parameters", f"{path}: {what}", fix
    return None


def at_the_bounds(spec: TrainingSweepSpec) -> Iterator[Fault]:
    """Yield a fault of each field whose first or last value makes no job, whatever the others are.

    Others are as in the template, or have their first values, or their last ones. Values that only together are invalid
    make a trial that fails (`trials.trial_job`), not a sweep that is rejected.
    """
    template = spec.job_template.spec
    firsts, lasts = ({each.path: bound(each, last=last) for each in spec.parameters} for last in (False, True))
    for path, first in firsts.items():
        if path.startswith(PARAMS):
            continue  # no rule between fields reads them
        for end, value in (("smallest or first", first), ("largest or last", lasts[path])):
            said: Fault | None = None
            for others in ({}, firsts, lasts):
                found = fault_of(template, {**others, path: value})
                if found is None:
                    break
                said = said or found
            else:
                assert said is not None
                where, what, fix = said
                yield f"{where} of a trial with the {end} value of {path}", what, fix
                break


def _own_faults(path: str, parameter: Parameter) -> Iterator[Fault]:
    kinds = [parameter.float_ is not None, parameter.int_ is not None, bool(parameter.choice)]
    if sum(kinds) != 1:
        yield path, "not exactly one of float, int and choice", "give the range or the values of the parameter"
        return
    if parameter.choice:
        for index, value in enumerate(parameter.choice):
            if isinstance(value, dict | list) or value is None:
                what = f"{shown(value)} is not one value"
                yield f"{path}.choice[{index}]", what, "give a text, a number, true or false"
            elif isinstance(value, str) and "\0" in value:
                what = f"character {value.index(chr(0)) + 1} is NUL"
                yield f"{path}.choice[{index}]", what, FORMS[TEXT_PATTERN][1]
        return
    kind = "float" if parameter.float_ is not None else "int"
    bounds = parameter.float_ or parameter.int_
    assert bounds is not None
    if not (math.isfinite(bounds.min) and math.isfinite(bounds.max)) or bounds.min >= bounds.max:
        yield f"{path}.{kind}", f"min {bounds.min:g} is not below max {bounds.max:g}", "give a range"
    elif not math.isfinite(bounds.max - bounds.min):
        what = f"the range from {bounds.min:g} to {bounds.max:g} is too wide for a number of 64 bits"
        yield f"{path}.{kind}", what, "give bounds between -8e307 and 8e307"
    elif bounds.log and bounds.min < (1 if kind == "int" else 1e-300):
        least = "at least 1" if kind == "int" else "above 0"
        yield f"{path}.{kind}.min", f"{bounds.min:g} has no logarithm", f"give a min {least}, or set log to false"
    elif bounds.log and bounds.step not in (None, 1):
        yield f"{path}.{kind}.step", "a step on a logarithmic scale", "leave out step or log"
    elif bounds.step is not None and not 0 < bounds.step <= bounds.max - bounds.min:
        fix = f"give a step above 0 and of at most {bounds.max - bounds.min:g}"
        yield f"{path}.{kind}.step", f"{bounds.step:g} does not fit into the range", fix


def _repeats(path: str, parameter: Parameter) -> Iterator[Fault]:
    first: dict[Any, tuple[int, Any]] = {}
    for index, value in enumerate(parameter.choice):
        # For algorithms 1, 1.0 and true are one category; a program gets the same text for 1 and "1".
        before, same = first.setdefault(value, (index, value))
        if before == index and element(parameter.path) is not None:
            before, same = first.setdefault((as_argument(value),), (index, value))
        if before != index:
            what = "occurs twice" if json.dumps(same) == json.dumps(value) else f"is equal to {shown(same)}"
            where = f"{path}.choice[{index}]"
            yield where, f"{shown(value)} {what} (first as spec.{path}.choice[{before}])", "keep one of them"


def _condition_faults(path: str, index: int, spec: TrainingSweepSpec) -> Iterator[Fault]:
    before = {parameter.path: parameter for parameter in spec.parameters[:index]}
    for number, condition in enumerate(spec.parameters[index].conditions):
        here = f"{path}.conditions[{number}]"
        if condition.path not in before:
            what = f"{shown(condition.path)} is not a parameter that is listed before"
            yield f"{here}.path", what, "name one that is, or list it first"
            continue
        for value in strange(before[condition.path], condition.values):
            fix = "give values that the parameter can have"
            yield f"{here}.values", f"{condition.path} is never {shown(value)}", fix


def _algorithm_faults(spec: TrainingSweepSpec) -> Iterator[Fault]:
    if spec.algorithm.name == "grid":
        endless = next((each for each in spec.parameters if each.float_ is not None and each.float_.step is None), None)
        if endless is not None:
            fix = "give float.step, or a choice"
            yield "algorithm.name", f"a grid needs discrete values, and {endless.path} has a range without a step", fix
        elif any(parameter.conditions for parameter in spec.parameters):
            yield "algorithm.name", "a grid has no conditions", "use random or tpe, or leave the conditions out"
        elif grid_size(spec) > MAX_TRIALS:
            points = grid_size(spec) if grid_size(spec) < _MANY else f"more than {_MANY}"
            what = f"the grid has {points} points, but a sweep has at most {MAX_TRIALS} trials"
            yield "algorithm.name", what, "use larger steps, fewer values, or random"
    elif spec.algorithm.name == "cmaes" and all(parameter.choice for parameter in spec.parameters):
        yield "algorithm.name", "cmaes searches numbers, but every parameter is a choice", "use tpe, random or grid"
    if spec.early_stopping is not None and not _total_is_known(spec):
        yield "earlyStopping", *NO_TOTAL


def _first_trial_faults(spec: TrainingSweepSpec) -> Iterator[Fault]:
    if spec.first_trials and spec.algorithm.name == "grid":
        yield "firstTrials", "a grid tries every combination, in order", "use another algorithm, or leave them out"
    elif len(spec.first_trials) > spec.max_trials:
        what = f"{plural(len(spec.first_trials), 'trial')}, more than maxTrials {spec.max_trials}"
        yield "firstTrials", what, "raise maxTrials, or leave some out"
    known = {parameter.path: parameter for parameter in spec.parameters}
    short = {name: path for path, name in short_names(spec.parameters).items()}
    for index, point in enumerate(spec.first_trials):
        for path, value in point.items():
            parameter = known.get(path)
            if parameter is None:
                meant = short.get(path) or nearest(path, known)
                fix = f"did you mean {meant}?" if meant else "list it in parameters, or set it in jobTemplate.spec"
                yield f"firstTrials[{index}]", f"{shown(path)} is not among the parameters", fix
            elif strange(parameter, [value]):
                fix = "give a value that the parameter can have"
                yield f"firstTrials[{index}]", f"{path} is never {shown(value)}", fix
            elif excluded(parameter, point):
                fix = "leave it out, or give values with which it exists"
                yield f"firstTrials[{index}]", f"{path} does not exist with these values of other parameters", fix


def _total_is_known(spec: TrainingSweepSpec) -> bool:
    """Return whether trials may report how many steps they have; what a script without patterns does is not known."""
    job = spec.job_template.spec
    return (
        job.trainer is not None
        or not job.metrics.patterns
        or job.metrics.total_steps is not None
        or any(parameter.path == TOTAL_STEPS for parameter in spec.parameters)
        or any(f"(?P<{group}>" in pattern for group in TOTAL_GROUPS for pattern in job.metrics.patterns)
    )


def _template_faults(spec: TrainingSweepSpec) -> Iterator[Fault]:
    for rule in TEMPLATE_RULES:
        if rule.broken(spec.job_template.spec):
            yield f"jobTemplate.spec.{rule.path}", rule.what, rule.fix


def _objective_faults(spec: TrainingSweepSpec) -> Iterator[Fault]:
    job, metric = spec.job_template.spec, spec.objective.metric
    if spec.objective.target is not None and not math.isfinite(spec.objective.target):
        yield "objective.target", f"{spec.objective.target} is not a finite number", "set a number, or remove it"
    known: tuple[str, ...] = ()
    # A part of the workload that is the user's own, such as an environment, may report others.
    values = (
        [*job.trainer.params.values(), *(each for one in spec.parameters for each in one.choice)] if job.trainer else []
    )
    own_part = any(names_code(value) for value in values)
    if job.trainer is not None and job.trainer.name in BUILT_IN and not own_part:
        known = trainer_metrics(job.trainer.name)
    elif job.metrics.patterns and job.trainer is None:
        # Only the names: compiling a pattern of a user may take the operator seconds.
        known = tuple(name for pattern in job.metrics.patterns for name in _GROUP.findall(pattern))
    if known and metric not in known:
        meant = nearest(metric, known)
        reported = ", ".join(known[:30])
        fix = f"did you mean {meant}? " if meant else ""
        yield "objective.metric", f"the job never reports {shown(metric)}", f"{fix}use one of {reported}"
    elif known and job.trainer is not None:
        for name, pattern in conditional_metrics(job.trainer.name).get(metric, {}).items():
            values = _values_of(name, spec)
            if values and not any(re.fullmatch(pattern, str(value)) for value in values):
                here = " or ".join(shown(value) for value in values)
                what = f"the job never reports {metric} with {PARAMS}{name} {here}"
                yield "objective.metric", what, "use another metric, or change the parameter"


def _values_of(name: str, spec: TrainingSweepSpec) -> list[Any]:
    """Return the values that trials may have in a parameter of their trainer; empty: they are not known."""
    trainer = spec.job_template.spec.trainer
    assert trainer is not None
    tuned = next((each for each in spec.parameters if each.path == f"{PARAMS}{name}"), None)
    if tuned is not None and not tuned.conditions:
        return tuned.choice
    schema = params_schema(trainer.name) or {}
    default = schema.get("properties", {}).get(name, {}).get("default")
    known = [*(tuned.choice if tuned is not None else []), trainer.params.get(name, default)]
    return [value for value in known if value is not None]
