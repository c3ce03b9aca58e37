"""Quantities as Kubernetes writes them: `8`, `500m`, `16Gi`, `64G`."""

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,3})?)(m|[kMGTP]|[KMGTP]i)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def amount(quantity: int | str) -> Decimal:
    """Cores or bytes of a quantity: `500m` -> 0.5, `1Ki` -> 1024.

    Raises:
        ValueError: the text is not a quantity; the message shows the form.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity; write it like 8, 500m, 16Gi or 64G")
    number, unit = Decimal(match[1]), match[2] or ""
    if unit == "m":
        return number / 1000
    base = 1024 if unit.endswith("i") else 1000
    return number * base ** _POWERS[unit[0]] if unit else number
