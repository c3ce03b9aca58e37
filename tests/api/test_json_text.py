"""JSON of foreign values: whatever a job has written, a page and a program can read what is beside it."""

import json

from torchyard.api.json_text import encoded
from torchyard.api.values import Duration


def test_a_name_that_is_not_utf_8_and_a_huge_number_hide_nothing_else():
    value = {"name": "a\udcff", "number": 10**400, "\ud83d": [1, None, (2.5, True)], "time": Duration("5m")}
    read = json.loads(encoded(value))
    assert read == {"name": "a\\udcff", "number": "1" + "0" * 39, "\\ud83d": [1, None, [2.5, True]], "time": "5m"}


def test_what_is_not_finite_is_null():
    assert encoded([float("nan"), float("inf"), 2**63, "\u2028"]) == '[null,null,9223372036854775808,"\u2028"]'.encode()
