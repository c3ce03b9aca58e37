"""Rules of checkpoints, restarts, metrics and times."""

import re
from re import _parser as parser  # type: ignore[attr-defined]  # the public way to it is deprecated
from typing import Any

from torchyard.api.spec_placement import Elastic
from torchyard.api.spec_reliability import Backoff, CheckpointInterval, Restart
from torchyard.api.validation.rule import Rule, one_source

NAMED_GROUP = r"\(\?P<[A-Za-z_][A-Za-z0-9_]*>"


def _within(elastic: Elastic) -> bool:
    return elastic.min_nodes <= elastic.max_nodes


def _one_unit(interval: CheckpointInterval) -> bool:
    return (interval.steps is None) != (interval.seconds is None)


def _restarts_are_allowed(restart: Restart) -> bool:
    return restart.policy != "Never" or not restart.max_restarts


def _grows(backoff: Backoff) -> bool:
    return backoff.initial <= backoff.max


def _is_sound(pattern: str) -> bool:
    """Return whether Python can parse a pattern.

    To compile what other people write can take seconds: 60 classes of all of Unicode without regard to case do.
    """
    try:
        return bool(parser.parse(pattern).state.groupdict)
    except (re.error, OverflowError, RecursionError):
        return False


def _positive(scope: str, field: str, attribute: str, *, optional: bool = False, auto: bool = False) -> Rule:
    def holds(section: Any) -> bool:
        value = getattr(section, attribute)
        return value is None or value > 0

    cel = "duration(self) > duration('0s')"
    return Rule(
        scope=scope,
        field=field,
        what="{value} is no time at all",
        fix="give a longer duration" + (", or leave it out" if optional else ""),
        holds=holds,
        cel=f"self == 'auto' || {cel}" if auto else cel,
        on_field=True,
    )


RELIABILITY: tuple[Rule, ...] = (
    Rule(
        scope="elastic",
        field="minNodes",
        what="{value} is more than maxNodes",
        fix="make minNodes at most maxNodes",
        holds=_within,
        cel="self.minNodes <= self.maxNodes",
        reads=("maxNodes",),
    ),
    Rule(
        scope="checkpoint.interval",
        field="",
        what="it needs one unit",
        fix="give exactly one of steps and seconds, or leave interval out",
        holds=_one_unit,
        cel="has(self.steps) != has(self.seconds)",
    ),
    Rule(
        scope="checkpoint.volume",
        field="",
        what="it needs one source",
        fix="give exactly one of claim and ephemeral, or leave volume out",
        holds=one_source,
        cel="has(self.claim) != has(self.ephemeral)",
    ),
    Rule(
        scope="restart",
        field="maxRestarts",
        what="policy Never allows none",
        fix="leave it out, or use policy OnFailure",
        holds=_restarts_are_allowed,
        cel="self.policy != 'Never' || !has(self.maxRestarts) || self.maxRestarts == 0",
        reads=("policy",),
    ),
    Rule(
        scope="restart.backoff",
        field="initial",
        what="{value} is longer than max",
        fix="make it at most max",
        holds=_grows,
        cel="duration(self.initial) <= duration(self.max)",
        reads=("max",),
    ),
    Rule(
        scope="metrics.patterns[]",
        field="",
        what="{value} has no named group",
        fix="write one like loss=(?P<loss>[0-9.]+)",
        holds=lambda pattern: re.search(NAMED_GROUP, pattern) is not None,
        cel=f"self.matches('{NAMED_GROUP}')".replace("\\", "\\\\"),
    ),
    Rule(
        scope="metrics.patterns[]",
        field="",
        what="{value} is not a regular expression with a named group",
        fix="write one like loss=(?P<loss>[0-9.]+)",
        holds=lambda pattern: re.search(NAMED_GROUP, pattern) is None or _is_sound(pattern),
        cel=None,
    ),
)

# A first delay of zero is a delay, a TTL of zero is "at once"; of every other duration zero would mean nothing.
DURATIONS: tuple[Rule, ...] = (
    _positive("restart.backoff", "max", "max"),
    _positive("health", "startTimeout", "start_timeout"),
    _positive("health", "stall", "stall", auto=True),
    _positive("health", "pendingTimeout", "pending_timeout", optional=True),
    _positive("scheduling", "gangTimeout", "gang_timeout"),
    _positive("metrics", "interval", "interval"),
    _positive("", "activeDeadline", "active_deadline", optional=True),
    _positive("", "gracePeriod", "grace_period"),
)
