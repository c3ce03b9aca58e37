"""Which records of the files of a run train, which evaluate, and what kind they are."""

from collections.abc import Sequence
from contextlib import suppress

from torchyard_trainers.core.data.mixture import Concatenated, Mixture, hold_out, leaves
from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.data.rows import BadRecordError, Rows
from torchyard_trainers.core.data.tokens import TokenWindows
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.lm.data.records import Encoder
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tasks import EVALUATION_SEED

SEEN = 16  # records whose kind tells that of all
LARGE = 1_000_000  # more records are checked in the background


def opened(settings: Settings) -> tuple[Rows, Rows | None]:
    """Return the records that evaluate, and those that train.

    Each set is divided by itself, before sets are mixed: a mixture repeats records.
    """
    length, dtype = settings.max_length, settings.token_type
    sets = [open_rows([each], window=length, dtype=dtype, split=settings.split, report=say) for each in settings.data]
    if evaluated := settings.evaluation_files:
        held_out = open_rows(evaluated, window=length, dtype=dtype, split=settings.validation_split, report=say)
    else:
        if single := [each for each in sets if len(each) == 1]:
            raise DataError(
                f"{single[0].where(0)}: is the only record of its set, and one of a set evaluates; add records, or set "
                "trainer.params.validation"
            )
        divided = [hold_out(each, max(1, round(len(each) * settings.hold_out)), EVALUATION_SEED) for each in sets]
        sets = [train for train, _ in divided]
        held_out = _joined([validation for _, validation in divided])
    if not sets:
        return held_out, None
    return held_out, Mixture(sets, settings.data_weights) if settings.data_weights else _joined(sets)


def in_background(settings: Settings, sets: Sequence[Rows], encoder: Encoder) -> bool:
    """Return whether records are checked beside training; without a choice of the user it follows from the data alone.

    The lengths of all samples are needed before the first step to pack them, and to make several samples of a text. The
    largest tokens of windows are found so fast that nothing waits for them.
    """
    if settings.check_records is not None or settings.packs:
        return settings.check_records == "background"
    count = sum(len(each) for rows in sets for each in leaves(rows) if not isinstance(each, TokenWindows))
    return count > LARGE and not (settings.text_windows and any(_has_texts(encoder, rows) for rows in sets))


def _has_texts(encoder: Encoder, rows: Rows) -> bool:
    """Return whether some of a few records, evenly spread, are plain texts."""
    count = min(len(rows), SEEN)
    for number in range(count):
        with suppress(BadRecordError, DataError):
            if encoder.kind(rows.row(number * len(rows) // count)) == "text":
                return True
    return False


def converses(encoder: Encoder, rows: Rows) -> bool:
    """Return whether some of a few records, evenly spread, are conversations."""
    count = min(len(rows), SEEN)
    for number in range(count):
        with suppress(BadRecordError, DataError):
            if encoder.converses(rows.row(number * len(rows) // count)):
                return True
    return False


def _joined(sets: Sequence[Rows]) -> Rows:
    return sets[0] if len(sets) == 1 else Concatenated(sets)
