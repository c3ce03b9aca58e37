"""Rules of how much text an object may hold: what a job costs the operator's memory is a small, known amount.

Python keeps a text in one byte a character if all of them are ASCII, and in up to four if one is not.
"""

from collections.abc import Iterable

from torchyard.api import values
from torchyard.api.spec import MAX_SCRIPT_BYTES, MAX_TEXTS
from torchyard.api.spec_workload import Trainer
from torchyard.api.validation.rule import Rule

PER_TEXT = 64
MAX_LABEL_KEY = 253 + 1 + 63
_FIX = f"give at most {MAX_TEXTS // 1024} KiB of ASCII in all, or a quarter of that; a file or ConfigMap can hold more"


def weight(texts: Iterable[str]) -> int:
    """Return about how many bytes of memory these texts take."""
    return sum((len(text) if text.isascii() else 4 * len(text)) + PER_TEXT for text in texts)


def _weight(text: str) -> str:
    return f"(size(bytes({text})) == size({text}) ? size({text}) : 4 * size({text}))"


def _texts(field: str) -> Rule:
    return Rule(
        scope="",
        field=field,
        what="together they are too long",
        fix=_FIX,
        holds=lambda spec: weight(getattr(spec, field)) <= MAX_TEXTS,
        cel=f"self.map(each, {_weight('each')} + {PER_TEXT}).sum() <= {MAX_TEXTS}",
        on_field=True,
    )


def _params_fit(trainer: Trainer) -> bool:
    return len(trainer.params.json) <= values.MAX_BYTES


SIZE: tuple[Rule, ...] = (
    _texts("command"),
    _texts("args"),
    Rule(
        scope="",
        field="env",
        what="together they are too long",
        fix=_FIX,
        holds=lambda spec: weight(part for each in spec.env for part in (each.name, each.value)) <= MAX_TEXTS,
        cel=f"self.map(each, size(each.name) + {2 * PER_TEXT} + "
        f"(has(each.value) ? {_weight('each.value')} : 0)).sum() <= {MAX_TEXTS}",
        on_field=True,
    ),
    Rule(
        scope="",
        field="script",
        what="it is too long",
        fix=f"give at most {MAX_SCRIPT_BYTES // 1024} KiB; a file in the image may be longer",
        holds=lambda spec: spec.script is None or len(spec.script.encode(errors="replace")) <= MAX_SCRIPT_BYTES,
        # Not of the field alone: its value, all of the script, would stand before these words.
        cel=f"!has(self.script) || size(bytes(self.script)) <= {MAX_SCRIPT_BYTES}",
    ),
    Rule(
        scope="scheduling",
        field="nodeSelector",
        what="a label key is too long",
        fix=f"give at most {MAX_LABEL_KEY} characters",
        holds=lambda scheduling: all(len(key) <= MAX_LABEL_KEY for key in scheduling.node_selector),
        cel=f"self.all(key, size(key) <= {MAX_LABEL_KEY})",
        on_field=True,
    ),
    Rule(
        scope="trainer",
        field="params",
        what=f"more than {values.MAX_BYTES // 1024} KiB as JSON",
        fix="put what is large into a file of a volume",
        holds=_params_fit,
        cel=None,  # CEL cannot read what has no schema; that limits each level, and the operator the whole
    ),
)
