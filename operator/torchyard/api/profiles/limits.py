"""The limits of a profile: each is declared once, and judged in Python and, in the chart's policies, by the API server.

A limit judges what a job itself says. Where a resource or a time has a limit, it must be set, by the job or by the
defaults of its profile; the values of these defaults are the platform team's own. In CEL, `SPEC` is the spec of the
job, `LIMITS` and `DEFAULTS` are sections of the profile.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from torchyard.api.profiles.effective import with_defaults
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code
from torchyard.api.spec_profile import Limits, TrainingProfileSpec
from torchyard.api.validation.rules_pods import WITH_QUEUES
from torchyard.api.values import amount

AT_MOST, ONLY, REQUIRED = "allows at most", "allows only", "requires a value of at most"
NOTHING = "nothing"
_FIX = "change it, or ask the owner of the profile"


class Limit(Struct, frozen=True, kw_only=True):
    """One limit.

    Attributes:
        field: of the job, relative to `spec`.
        limit: path of the limit below `limits`.
        says: how the sentence introduces it.
        holds: whether a spec keeps the limit, given what the job says and its spec with the defaults.
        cel: the same.
        text: CEL of the limit as text.
    """

    field: str
    limit: str
    says: str
    holds: Callable[[TrainingJobSpec, TrainingJobSpec, Any], bool]
    cel: str
    text: str


class Fault(NamedTuple):
    """One limit that a job exceeds: the field, what is wrong with it, and how to fix that."""

    path: str
    what: str
    fix: str = _FIX

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.fix}"


def faults(spec: TrainingJobSpec, profile: TrainingProfileSpec, name: str, namespace: str | None) -> Iterator[Fault]:
    """Yield a fault for each limit that a job exceeds.

    Args:
        spec: of the job as its user wrote it.
        profile: of the platform team.
        name: of the profile.
        namespace: of the job; None: it is not known yet, and not judged.
    """
    if profile.namespaces is not None and namespace is not None and namespace not in profile.namespaces:
        allowed = ", ".join(profile.namespaces) or NOTHING
        yield Fault("spec.profile", f"profile {name} is for other namespaces: {allowed}")
    effective = with_defaults(spec, profile.defaults)
    for each in LIMITS:
        limit = _at(profile.limits, each.limit)
        if limit not in _ABSENT and not each.holds(spec, effective, limit):
            yield Fault(f"spec.{each.field}", f"profile {name} {each.says} {_text(limit)}")


def policy_rules() -> Iterator[dict[str, str]]:
    """Yield expression and message expression of each limit, with the placeholders SPEC and AT, for the chart."""
    yield {
        "expression": "!has(params.spec.namespaces) || request.namespace in params.spec.namespaces",
        "messageExpression": _message("profile", "is for other namespaces:", _joined("params.spec.namespaces")),
    }
    for each in LIMITS:
        *sections, last = each.limit.split(".")
        at = ".".join(("params.spec.limits", *sections))
        limited = _cel_of(each.cel, f"{at}.{last}")
        absent = " || ".join(
            f"!has({'.'.join(('params.spec.limits', *sections[: depth + 1]))})" for depth in range(len(sections))
        )
        yield {
            "expression": " || ".join(filter(None, (absent, f"!has({at}.{last})", f"({limited})"))),
            "messageExpression": _message(each.field, each.says, _cel_of(each.text, f"{at}.{last}")),
        }


_ABSENT: tuple[Any, ...] = (None, {}, "allowed")


def _cel_of(rule: str, limit: str) -> str:
    return rule.replace("LIMIT", limit).replace("DEFAULTS", "params.spec.?defaults")


def _message(field: str, says: str, text: str) -> str:
    return f"'AT.{field}: profile ' + params.metadata.name + ' {says} ' + {text} + '; {_FIX}'"


def _joined(values: str) -> str:
    return f"({values}.size() == 0 ? '{NOTHING}' : {values}.join(', '))"


def _at(limits: Limits, path: str) -> Any:
    value: Any = limits
    for name in path.split("."):
        value = getattr(value, value.__struct_fields__[value.__struct_encode_fields__.index(name)])
    return value


def _text(limit: Any) -> str:
    if isinstance(limit, Mapping):
        return ", ".join(f"{key}={limit[key]}" for key in sorted(limit))
    if isinstance(limit, list | tuple):
        return ", ".join(map(str, limit)) or NOTHING
    return NOTHING if limit == "forbidden" else str(limit)


def _pods(spec: TrainingJobSpec) -> int:
    return (spec.elastic.max_nodes if spec.elastic is not None else spec.nodes) + spec.spares


def within(image: str, allowed: list[str]) -> bool:
    """Return whether an image, or another address, is one of these or below one that ends with `/`."""
    return any(
        image == each or (image.startswith(each) if each.endswith("/") else image.startswith((f"{each}:", f"{each}@")))
        for each in allowed
    )


def _within(value: str, allowed: str = "LIMIT") -> str:
    return (
        f"{allowed}.exists(p, {value} == p || (p.endsWith('/') ? {value}.startsWith(p) "
        f": {value}.startsWith(p + ':') || {value}.startsWith(p + '@')))"
    )


def source(spec: TrainingJobSpec) -> str | None:
    """Return how the code of a job reaches its pods; None: it is in the image."""
    if spec.script is not None:
        return "script"
    if spec.code is None:
        return None
    ways = {"git": spec.code.git, "image": spec.code.image, "claim": spec.code.claim}
    return next((name for name, given in ways.items() if given is not None), "sent")


_SOURCES = (
    "(!has(SPEC.script) || 'script' in LIMIT) && (!has(SPEC.code) || (has(SPEC.code.git) ? 'git' in LIMIT "
    ": has(SPEC.code.image) ? 'image' in LIMIT : has(SPEC.code.claim) ? 'claim' in LIMIT : 'sent' in LIMIT))"
)


def _in_repositories(code: Code | None, allowed: list[str]) -> bool:
    if code is None or code.git is None:
        return True
    url = code.git.url  # a server or git itself resolves `..`, so that a prefix says nothing about such an address
    below = ".." not in url and "%" not in url
    return any(url == each or (below and each.endswith("/") and url.startswith(each)) for each in allowed)


def _resource(name: str, *, required: bool) -> Limit:
    def holds(spec: TrainingJobSpec, effective: TrainingJobSpec, limit: Any) -> bool:
        given = getattr(spec.resources, name)
        if given is None:
            return not required or getattr(effective.resources, name) is not None
        return amount(given) <= amount(limit)

    given = f"SPEC.?resources.?{name}"
    least = f"DEFAULTS.?resources.?{name}.hasValue()" if required else "true"
    return Limit(
        field=f"resources.{name}",
        limit=f"resources.{name}",
        says=REQUIRED if required else AT_MOST,
        holds=holds,
        cel=f"{given}.hasValue() ? quantity(string({given}.value())).compareTo(quantity(string(LIMIT))) <= 0 : {least}",
        text="string(LIMIT)",
    )


def _named(field: str, limit: str, *, required: bool = False) -> Limit:
    """Return the limit of a field of `scheduling` that names one of a list."""

    def holds(spec: TrainingJobSpec, effective: TrainingJobSpec, allowed: Any) -> bool:
        given = value(spec)
        return (not required or value(effective) is not None) if given is None else given in allowed

    def value(spec: TrainingJobSpec) -> Any:
        fields = spec.scheduling.__struct_encode_fields__
        return getattr(spec.scheduling, spec.scheduling.__struct_fields__[fields.index(field)])

    given = f"SPEC.?scheduling.?{field}"
    takes = f"SPEC.?scheduling.?gang.orValue('auto') in [{', '.join(map(repr, WITH_QUEUES))}]"
    otherwise = f"{takes} && DEFAULTS.?scheduling.?{field}.hasValue()" if required else "true"
    return Limit(
        field=f"scheduling.{field}",
        limit=limit,
        says=ONLY,
        holds=holds,
        cel=f"{given}.hasValue() ? {given}.value() in LIMIT : {otherwise}",
        text=_joined("LIMIT"),
    )


_PODS = "((has(SPEC.elastic) ? SPEC.elastic.maxNodes : SPEC.?nodes.orValue(1)) + SPEC.?spares.orValue(0))"
_CLAIMS = "SPEC.?resources.?claims.orValue([])"
_SELECTOR = "SPEC.?scheduling.?nodeSelector.orValue({})"

LIMITS: tuple[Limit, ...] = (
    Limit(
        field="nodes",
        limit="nodes",
        says=AT_MOST,
        holds=lambda spec, _effective, limit: _pods(spec) <= limit,
        cel=f"{_PODS} <= LIMIT",
        text="string(LIMIT)",
    ),
    Limit(
        field="gpusPerNode",
        limit="gpusPerNode",
        says=AT_MOST,
        holds=lambda spec, _effective, limit: spec.gpus_per_node <= limit,
        cel="SPEC.?gpusPerNode.orValue(0) <= LIMIT",
        text="string(LIMIT)",
    ),
    Limit(
        field="gpusPerNode",
        limit="gpus",
        says="allows, in all pods together, at most",
        holds=lambda spec, _effective, limit: _pods(spec) * spec.gpus_per_node <= limit,
        cel=f"{_PODS} * SPEC.?gpusPerNode.orValue(0) <= LIMIT",
        text="string(LIMIT)",
    ),
    Limit(
        field="resources.claims",
        limit="claimTemplates",
        says=ONLY,
        holds=lambda spec, _effective, allowed: all(each.template in allowed for each in spec.resources.claims),
        cel=f"{_CLAIMS}.all(c, c.template in LIMIT)",
        text=_joined("LIMIT"),
    ),
    _resource("cpu", required=True),
    _resource("memory", required=True),
    _resource("disk", required=False),
    _resource("shm", required=False),
    Limit(
        field="checkpoint.volume.ephemeral",
        limit="resources.disk",
        says=AT_MOST,
        holds=lambda spec, _effective, limit: (
            spec.checkpoint.volume is None
            or spec.checkpoint.volume.ephemeral is None
            or amount(spec.checkpoint.volume.ephemeral) <= amount(limit)
        ),
        cel="quantity(string(SPEC.?checkpoint.?volume.?ephemeral.orValue('0')))"
        ".compareTo(quantity(string(LIMIT))) <= 0",
        text="string(LIMIT)",
    ),
    Limit(
        field="activeDeadline",
        limit="activeDeadline",
        says=REQUIRED,
        holds=lambda spec, effective, limit: (
            effective.active_deadline is not None
            if spec.active_deadline is None
            else float(spec.active_deadline) <= float(limit)
        ),
        cel="has(SPEC.activeDeadline) ? duration(SPEC.activeDeadline) <= duration(LIMIT) "
        ": DEFAULTS.?activeDeadline.hasValue()",
        text="LIMIT",
    ),
    Limit(
        field="image",
        limit="images",
        says=ONLY,
        holds=lambda spec, _effective, allowed: spec.image is None or within(spec.image, allowed),
        cel=f"!has(SPEC.image) || {_within('SPEC.image')}",
        text=_joined("LIMIT"),
    ),
    Limit(
        field="code.image",
        limit="images",
        says=ONLY,
        holds=lambda spec, _effective, allowed: (
            spec.code is None or spec.code.image is None or within(spec.code.image, allowed)
        ),
        cel=f"!has(SPEC.code) || !has(SPEC.code.image) || {_within('SPEC.code.image')}",
        text=_joined("LIMIT"),
    ),
    _named("queue", "queues", required=True),
    _named("priorityClass", "priorityClasses"),
    _named("workloadPriorityClass", "workloadPriorityClasses"),
    Limit(
        field="scheduling.tolerations",
        limit="taints",
        says="allows only taints of the keys",
        holds=lambda spec, _effective, allowed: all(each.key in allowed for each in spec.scheduling.tolerations),
        cel="SPEC.?scheduling.?tolerations.orValue([]).all(t, t.?key.orValue('') in LIMIT)",
        text=_joined("LIMIT"),
    ),
    Limit(
        field="scheduling.nodeSelector",
        limit="nodeLabels",
        says="allows only nodes with",
        holds=lambda spec, _effective, labels: all(
            spec.scheduling.node_selector.get(key, value) == value for key, value in labels.items()
        ),
        cel=f"LIMIT.all(k, !(k in {_SELECTOR}) || {_SELECTOR}[k] == LIMIT[k])",
        text="LIMIT.map(k, k + '=' + LIMIT[k]).join(', ')",
    ),
    Limit(
        field="code",
        limit="code.sources",
        says="allows, beside the image, code of the kinds",
        holds=lambda spec, _effective, allowed: (way := source(spec)) is None or way in allowed,
        cel=_SOURCES,
        text=_joined("LIMIT"),
    ),
    Limit(
        field="code.git.url",
        limit="code.repositories",
        says=ONLY,
        holds=lambda spec, _effective, allowed: _in_repositories(spec.code, allowed),
        cel="!has(SPEC.code) || !has(SPEC.code.git) || LIMIT.exists(p, SPEC.code.git.url == p "
        "|| (p.endsWith('/') && SPEC.code.git.url.startsWith(p) && !SPEC.code.git.url.contains('..') "
        "&& !SPEC.code.git.url.contains('%')))",
        text=_joined("LIMIT"),
    ),
    Limit(
        field="code.requirements",
        limit="code.requirements",
        says=ONLY,
        holds=lambda spec, _effective, _limit: spec.code is None or spec.code.requirements is None,
        cel="LIMIT == 'allowed' || !has(SPEC.code) || !has(SPEC.code.requirements)",
        text=f"'{NOTHING}'",
    ),
)
