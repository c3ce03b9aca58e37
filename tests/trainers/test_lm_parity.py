"""The table of families in docs/language-models.md says what a tiny model of each does today."""

import pytest
from tests.support.trainers import parity


def test_every_family_has_a_row():
    assert [line.split("`")[1] for line in parity.written_rows()] == list(parity.ROWS)


@pytest.mark.parametrize("number", range(len(parity.ROWS)), ids=parity.ROWS)
def test_a_family_is_as_the_table_says(tmp_path, number):
    assert str(parity.row_of(parity.ROWS[number], tmp_path)) == parity.written_rows()[number]
