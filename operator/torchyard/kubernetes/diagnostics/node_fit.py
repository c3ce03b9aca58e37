"""Which requirement of a pod excludes every node: the scheduler counts nodes, and names neither labels nor taints."""

from collections.abc import Sequence

from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.kubernetes.objects import Expression, Node, PodSpec, Taint, Toleration

MAX_NAMED = 4
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_CORDON = "node.kubernetes.io/unschedulable"
# Taints that the control plane sets on a node that is unreachable, broken or full. No job should tolerate them.
_AILMENTS = frozenset(
    f"node.kubernetes.io/{what}"
    for what in (
        "not-ready",
        "unreachable",
        "network-unavailable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "out-of-service",
    )
)


class Demands(Struct, frozen=True, kw_only=True, gc=False):
    """What a pod requires of a node besides resources: labels, one of several lists of expressions, tolerations."""

    labels: dict[str, str]
    terms: tuple[tuple[Expression, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


def demands(spec: PodSpec) -> Demands:
    """Return the demands of a pod."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    return Demands(
        labels=spec.node_selector or {},
        terms=tuple(term.match_expressions or () for term in required.node_selector_terms) if required else (),
        tolerations=spec.tolerations or (),
    )


def reason(nodes: Sequence[Node], asked: Demands) -> tuple[str, str]:
    """Return the reason code and evidence; both empty: labels and taints let it onto some node."""
    matching = [node for node in nodes if _matches(node, asked)]
    if not matching:
        return Reason.NO_MATCHING_NODE, _absent(nodes, asked)
    open_ = [node for node in matching if not _taints(node, asked)]
    if any(not node.spec.unschedulable for node in open_):
        return "", ""
    if open_:
        return Reason.NODES_CORDONED, ", ".join(node.metadata.name for node in open_[:MAX_NAMED])
    if ill := [text for node in matching if (text := _ailing(node, asked))]:
        return Reason.NODES_NOT_READY, ", ".join(ill[:MAX_NAMED])
    taints = [_text(taint) for node in matching for taint in _taints(node, asked) if taint.key != _CONTROL_PLANE]
    if not taints:
        return Reason.UNTOLERATED, f"{_CONTROL_PLANE}, there is no other node"
    return Reason.UNTOLERATED, ", ".join(list(dict.fromkeys(taints))[:MAX_NAMED])


def admitting(nodes: Sequence[Node], asked: Demands) -> list[Node]:
    """Return the nodes that labels and taints let it onto, full or not."""
    return [
        node for node in nodes if _matches(node, asked) and not _taints(node, asked) and not node.spec.unschedulable
    ]


def _absent(nodes: Sequence[Node], asked: Demands) -> str:
    """Return the demands that no node at all meets, else all of them: each is met somewhere, but nowhere together."""
    parts = [(f"{key}={value}", _has_label(nodes, key, value)) for key, value in asked.labels.items()]
    if len(asked.terms) == 1:
        parts += [(_expression_text(each), any(_holds(node, each) for node in nodes)) for each in asked.terms[0]]
    elif asked.terms:
        met = any(_any_term(node, asked) for node in nodes)
        parts.append((" or ".join(" and ".join(map(_expression_text, term)) for term in asked.terms), met))
    missing = [text for text, met in parts if not met]
    named = ", ".join((missing or [text for text, _ in parts])[:MAX_NAMED])
    return f"no node has {named}" if missing else f"no node has all of {named}"


def _matches(node: Node, asked: Demands) -> bool:
    labels = node.metadata.labels or {}
    return all(labels.get(key) == value for key, value in asked.labels.items()) and _any_term(node, asked)


def _any_term(node: Node, asked: Demands) -> bool:
    return not asked.terms or any(all(_holds(node, each) for each in term) for term in asked.terms)


def _has_label(nodes: Sequence[Node], key: str, value: str) -> bool:
    return any((node.metadata.labels or {}).get(key) == value for node in nodes)


def _holds(node: Node, expression: Expression) -> bool:
    value = (node.metadata.labels or {}).get(expression.key)
    wanted = expression.values or ()
    if expression.operator in {"NotIn", "DoesNotExist"}:
        return value is None or (expression.operator == "NotIn" and value not in wanted)
    if value is None:
        return False
    if expression.operator in {"Gt", "Lt"}:
        try:
            number, bound = int(value), int(wanted[0])
        except (ValueError, IndexError):
            return False
        return number > bound if expression.operator == "Gt" else number < bound
    return expression.operator == "Exists" or value in wanted


def _taints(node: Node, asked: Demands) -> list[Taint]:
    return [
        taint
        for taint in node.spec.taints or ()
        if taint.effect in {"NoSchedule", "NoExecute"}
        and taint.key != _CORDON
        and not any(_tolerates(each, taint) for each in asked.tolerations)
    ]


def _ailing(node: Node, asked: Demands) -> str:
    """Return the node and its taint, if nothing else excludes it."""
    taints = [taint.key for taint in _taints(node, asked)]
    ill = bool(taints) and _AILMENTS.issuperset(taints) and not node.spec.unschedulable
    return f"{node.metadata.name}: {taints[0].rpartition('/')[2]}" if ill else ""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}" if taint.value else taint.key


def _expression_text(expression: Expression) -> str:
    values = list(expression.values or ())
    if expression.operator in {"Gt", "Lt"} and values:
        return f"{expression.key} {'>' if expression.operator == 'Gt' else '<'} {values[0]}"
    if expression.operator == "In":
        return f"{expression.key}={'|'.join(values)}"
    return " ".join((expression.key, expression.operator, *values))
