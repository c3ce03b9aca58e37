"""The CustomResourceDefinition of TrainingSweep, generated from the models and a few rules.

The API server checks forms, and what may not change; what needs the schema of the trainer is judged by `rules.py`.
"""

from copy import deepcopy
from typing import Any

from torchyard.api.crd import Column, as_yaml, definition, whole_object
from torchyard.api.schema import ANY, FORM, Schema, status_of
from torchyard.api.schema import spec_schema as job_schema
from torchyard.api.validation.cel import VALIDATIONS, with_rules
from torchyard.api.values import DNS_LABEL_PATTERN
from torchyard.sweeps.resource import KIND, MAX_SWEEP_NAME, PLURAL
from torchyard.sweeps.rules import NO_TOTAL, TEMPLATE_RULES, TOTAL_GROUPS, TOTAL_STEPS
from torchyard.sweeps.schema import spec_schema
from torchyard.sweeps.spec import MAX_PARAMETERS
from torchyard.sweeps.status import TrainingSweepStatus
from torchyard.sweeps.targets import NEVER_TUNED

_COLUMNS: tuple[Column, ...] = (
    ("State", ".status.state", "string", 0, "Where the sweep is in its life."),
    ("Trials", ".status.columns.trials", "string", 0, "Trials that have ended, and their total number."),
    ("Running", ".status.trials.running", "integer", 0, "Trials that train or wait for their pods."),
    ("Best", ".status.columns.best", "string", 0, "Value of the best trial that trained to its end."),
    ("Age", ".metadata.creationTimestamp", "date", 0, "Time since creation."),
    ("Stopped", ".status.trials.stopped", "integer", 1, "Trials that were stopped early."),
    ("Failed", ".status.trials.failed", "integer", 1, "Trials that failed."),
    ("Best-Trial", ".status.best.trial", "string", 1, "TrainingJob of the best trial."),
    ("Reason", ".status.reason", "string", 1, "Why the sweep is in its state."),
)
_FIXED = ("objective", "algorithm", "earlyStopping", "parameters", "firstTrials", "jobTemplate")
_FIX = "create a sweep of another name"


def sweep_crd_yaml() -> str:
    """Return the CRD as YAML, byte for byte the same for the same models."""
    return as_yaml(sweep_crd())


def sweep_crd() -> dict[str, Any]:
    """Return the CRD as JSON values."""
    return definition(kind=KIND, plural=PLURAL, short="ts", columns=_COLUMNS, schema=_object())


def _object() -> Schema:
    return whole_object(
        KIND,
        "A sweep: many trials of one job, each with other parameters, to find the best.",
        {
            "description": "Name of the sweep; trials add their number to it.",
            "maxLength": MAX_SWEEP_NAME,
            "pattern": DNS_LABEL_PATTERN,
        },
        _spec(),
        status=status_of(TrainingSweepStatus),
    )


def _spec() -> Schema:
    spec = deepcopy(spec_schema())
    fields = spec["properties"]
    template = fields["jobTemplate"]["properties"]
    job = with_rules(job_schema())
    job.pop("default", None)
    template["spec"] = {**job, "description": template["spec"]["description"]}
    for rule in TEMPLATE_RULES:
        _rule(template["spec"], rule.cel, f"{rule.what}: {rule.fix}", at=rule.path)
    _rule(spec, _total_is_known(), ": ".join(NO_TOTAL), at="earlyStopping")
    for name in _FIXED:
        # Below trainer.params the server compares nothing; the operator compares digests.
        _rule(fields[name], "self == oldSelf", f"it cannot change once the sweep exists: {_FIX}")
    for name in ("earlyStopping", "firstTrials"):
        same = f"has(self.{name}) == has(oldSelf.{name})"
        _rule(spec, same, f"{name} cannot change once the sweep exists: {_FIX}")
    _rule(
        spec,
        "!has(self.firstTrials) || size(self.firstTrials) <= self.maxTrials",
        "more trials than maxTrials: raise maxTrials, or leave some out",
        at="firstTrials",
    )
    _rule(
        spec,
        "!has(self.firstTrials) || size(self.firstTrials) == 0 || self.algorithm.name != 'grid'",
        "a grid tries every combination, in order: use another algorithm, or leave them out",
        at="firstTrials",
    )
    parameter = fields["parameters"]["items"]
    # A map to values of any type would hide the whole field from CEL.
    fields["firstTrials"]["items"] = {"type": "object", ANY: True, "maxProperties": MAX_PARAMETERS}
    # Values of a choice may be of any type, so CEL does not see the field.
    _rule(
        parameter,
        "!(has(self.float) && has(self.int))",
        "not exactly one of float, int and choice: give the range or the values of the parameter",
    )
    _rule(
        parameter,
        "!self.path.contains('[-') || !(has(self.float) || has(self.int))",
        "a switch such as args[--amp] is present or absent: give choice: [true, false]",
    )
    names = ", ".join(f"'{path}'" for path in NEVER_TUNED)
    never = f"!([{names}].exists(name, self == name || self.startsWith(name + '.')))"
    condition = parameter["properties"]["conditions"]["items"]["properties"]
    values = (parameter["properties"]["choice"]["items"], condition["values"]["items"])
    for each in (parameter["properties"]["path"], condition["path"], *values):
        del each[FORM]  # for people; an API server does not know it
    _rule(parameter["properties"]["path"], never, "the field cannot differ between trials: set it in jobTemplate.spec")
    for kind in ("float", "int"):
        _add_rules_of_a_range(parameter["properties"][kind], kind)
    return spec


def _total_is_known() -> str:
    """Return the rule that `rules.faults` has about the steps of scripts with patterns."""
    job, metrics = "self.jobTemplate.spec", "self.jobTemplate.spec.metrics"
    total = " || ".join(f"each.contains('(?P<{group}>')" for group in TOTAL_GROUPS)
    return " || ".join(
        (
            "!has(self.earlyStopping)",
            f"has({job}.trainer)",
            f"!has({metrics})",
            f"!has({metrics}.patterns)",
            f"size({metrics}.patterns) == 0",
            f"has({metrics}.totalSteps)",
            f"{metrics}.patterns.exists(each, {total})",
            f"self.parameters.exists(each, each.path == '{TOTAL_STEPS}')",
        )
    )


def _add_rules_of_a_range(bounds: Schema, kind: str) -> None:
    whole = kind == "int"
    _rule(bounds, "self.min < self.max", "min is not below max: give a range")
    least, words = ("1", "of at least 1") if whole else ("1e-300", "above 0")
    said = f"min has no logarithm: give a min {words}, or set log to false"
    _rule(bounds, f"!self.log || self.min >= {least}", said, at="min")
    # A step of whole numbers has a default, the other one may be absent.
    absent = "" if whole else "!has(self.step) || "
    one = "1" if whole else "1.0"
    said = "a step on a logarithmic scale: leave out step or log"
    _rule(bounds, f"{absent}!self.log || self.step == {one}", said, at="step")
    fits = f"self.step > {'0' if whole else '0.0'} && self.step <= self.max - self.min"
    said = "the step does not fit into the range: give one above 0 and of at most max - min"
    _rule(bounds, f"self.min >= self.max || {absent}({fits})", said, at="step")


def _rule(schema: Schema, rule: str, said: str, *, at: str = "") -> None:
    where = {"fieldPath": f".{at}"} if at else {}
    schema.setdefault(VALIDATIONS, []).append({"rule": rule, "message": said, **where})
