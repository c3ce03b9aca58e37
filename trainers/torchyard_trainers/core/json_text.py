"""JSON that others wrote: every way in which it cannot be parsed is a `ValueError` that says so."""

import json
import sys
from typing import Any


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
