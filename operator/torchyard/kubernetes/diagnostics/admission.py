"""What admission did to a write: why it was refused (quota, policy, a missing object or right), or what it changed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from torchyard.api.reasons import Reason
from torchyard.api.resource import GROUP
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.kubernetes.objects import Owner, Read
from torchyard.reconcile.ports import Refused, Unavailable

MAX_MESSAGE = 500
LONG_SECONDS = 60.0  # what only an administrator can change is not asked for every few seconds

_POD_PREFIX = re.compile(r'^(?:pods|Pod) "[^"]*" is (?:forbidden|invalid): ')
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.*), used: (?P<used>.*), limited: (?P<hard>.*)$", re.DOTALL
)
_QUOTA_UNCOUNTED = re.compile(r"status unknown for quota: (?P<name>[^,]+), resources: (?P<what>.*)$", re.DOTALL)
_QUOTA_LIMITS = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.*)$", re.DOTALL)
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request(?:: (?P<why>.*))?', re.DOTALL)
_POLICY = re.compile(
    r"ValidatingAdmissionPolicy '(?P<name>[^']+)' with binding '[^']+' denied request(?:: (?P<why>.*))?", re.DOTALL
)
_BROKEN_WEBHOOK = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_RBAC = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_TERMINATING = re.compile(r"because it is being terminated")
_LIMIT_RANGE = re.compile(
    r"(?P<what>\[?(?:(?:maximum|minimum) [\w./-]+ (?:usage|to)|[\w./-]+ max limit to request ratio per ).*)$", re.DOTALL
)
_NO_ACCOUNT = re.compile(r'serviceaccount "(?P<name>[^"]+)" not found')
_NO_PRIORITY = re.compile(r"no PriorityClass with name (?P<name>\S+) was found")
_NO_RUNTIME = re.compile(r'RuntimeClass "?(?P<name>[^" ]+)"? not found', re.IGNORECASE)

Words = re.Match[str]


def refused(error: Rejected | NotFound | Unavailable) -> Refused | None:
    """Return the reason for a failed creation of a pod; None: it may succeed by itself."""
    message = _POD_PREFIX.sub("", str(error) if not isinstance(error, Rejected) else error.message).strip()
    if isinstance(error, NotFound):
        return Refused(Reason.NAMESPACE_TERMINATING, "it is gone", retry_after=LONG_SECONDS)
    for words, code, evidence, pause in _SAYINGS:
        found = words.search(message)
        if found is not None:
            return Refused(code, _short(evidence(found)), retry_after=pause)
    if isinstance(error, Unavailable):
        return None
    if error.code == 422:
        return Refused(Reason.POD_INVALID, _short(message), permanent=True)
    if error.code == 403:
        return Refused(Reason.ADMISSION_DENIED, _short(message), retry_after=LONG_SECONDS)
    return Refused(Reason.POD_INVALID, _short(message), permanent=error.code in {400, 413})


class _Metadata(Read, frozen=True, kw_only=True, gc=False):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Created(Read, frozen=True, kw_only=True, gc=False):
    metadata: _Metadata = _Metadata()


def altered(asked: Mapping[str, Any], answer: bytes) -> Refused | None:
    """Return what admission has changed of that by which a pod is recognized; None: nothing.

    A pod without it is not seen again: it would be created once more, and then again.

    Args:
        asked: metadata of the pod as it was sent.
        answer: the pod as the API server has it.
    """
    got = _CREATED.decode(answer).metadata
    changed = [
        f"{kind} {name}"
        for kind, sent, kept in (
            ("label", asked["labels"], got.labels or {}),
            ("annotation", asked["annotations"], got.annotations or {}),
        )
        for name, value in sent.items()
        if name.startswith(f"{GROUP}/") and kept.get(name) != value
    ]
    owner = asked["ownerReferences"][0]
    controllers = (each for each in got.owner_references or () if each.controller)
    if not any(each.is_job(name=owner["name"], uid=owner["uid"]) for each in controllers):
        changed.append("its owner")
    return Refused(Reason.POD_ALTERED, ", ".join(changed), retry_after=LONG_SECONDS) if changed else None


_CREATED = msgspec.json.Decoder(_Created)


def forbidden(error: Rejected) -> Refused | None:
    """Return the right that a write of any kind lacks; None: it was refused for another reason."""
    found = _RBAC.search(error.message)
    return Refused(Reason.FORBIDDEN, _right(found), retry_after=LONG_SECONDS) if found is not None else None


def _quota(found: Words) -> str:
    """Return the exhausted resources as used/hard, and what a pod asks for; all three lists name the same resources."""
    asked, used, hard = (
        dict(each.split("=", 1) for each in found[part].split(",") if "=" in each) for part in ("asked", "used", "hard")
    )
    short = (
        f"{name} {used.get(name, '?')}/{most} and {asked.get(name, '?')} asked for by a pod"
        for name, most in hard.items()
    )
    return ", ".join((found["name"], *short))


def _named(found: Words) -> str:
    return f"{found['name']}: {found['why'].strip()}" if found["why"] else found["name"]


def _right(found: Words) -> str:
    group = f".{found['group']}" if found["group"] else ""
    place = f" in namespace {found['namespace']}" if found["namespace"] else ""
    return f"{found['verb']} {found['resource']}{group}{place}"


def _short(message: str) -> str:
    return " ".join(message.split())[:MAX_MESSAGE]


# Messages and their reasons. The order matters where one sentence quotes another.
_SAYINGS: tuple[tuple[re.Pattern[str], Reason, Callable[[Words], str], float | None], ...] = (
    (_QUOTA, Reason.QUOTA_EXCEEDED, _quota, None),
    # A quota that was made a moment ago.
    (_QUOTA_UNCOUNTED, Reason.QUOTA_EXCEEDED, lambda found: f"{found['name']}, whose use is not counted yet", None),
    (_QUOTA_LIMITS, Reason.QUOTA_NEEDS_LIMITS, lambda found: f"{found['name']} wants {found['what']}", LONG_SECONDS),
    (
        re.compile(r"violates PodSecurity (?P<what>.*)$", re.DOTALL),
        Reason.POD_SECURITY_VIOLATION,
        lambda f: f["what"],
        LONG_SECONDS,
    ),
    (_POLICY, Reason.ADMISSION_DENIED, _named, LONG_SECONDS),
    (_WEBHOOK, Reason.ADMISSION_DENIED, _named, LONG_SECONDS),
    (_BROKEN_WEBHOOK, Reason.WEBHOOK_UNAVAILABLE, lambda found: found["name"], None),
    (_NO_ACCOUNT, Reason.MISSING_SERVICE_ACCOUNT, lambda found: found["name"], None),
    (_NO_PRIORITY, Reason.MISSING_PRIORITY_CLASS, lambda found: found["name"], None),
    (_NO_RUNTIME, Reason.MISSING_RUNTIME_CLASS, lambda found: found["name"], None),
    (_TERMINATING, Reason.NAMESPACE_TERMINATING, lambda _found: "", LONG_SECONDS),
    (_LIMIT_RANGE, Reason.LIMIT_RANGE_EXCEEDED, lambda found: found["what"], LONG_SECONDS),
    (_RBAC, Reason.FORBIDDEN, _right, LONG_SECONDS),
)
