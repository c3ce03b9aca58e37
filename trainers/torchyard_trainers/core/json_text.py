"""JSON that others wrote, and strict JSON for others, which has names for the numbers that JSON lacks."""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

NON_FINITE = ("NaN", "Infinity", "-Infinity")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        json.JSONDecodeError: it is not JSON.
        UnicodeDecodeError: it is not text.
        ValueError: it is JSON that Python cannot hold: nested too deeply, or with an integer of too many digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise ValueError(f"it has an integer of more than {most:,} digits; write it as text") from None


def json_of(value: Any, *, indent: int | None = None) -> str:
    """Return a value as strict JSON, in which a number that is not finite is its name: `"NaN"`."""
    return json.dumps(_strict(value), indent=indent, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return non_finite_name(value)
    if isinstance(value, Mapping):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def non_finite_name(value: float) -> str:
    """Return the name of a number that is not finite."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_of(value: Any) -> float | None:
    """Return the number that `json_of` wrote; None if it is none."""
    if isinstance(value, str):
        return float(value) if value in NON_FINITE else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
