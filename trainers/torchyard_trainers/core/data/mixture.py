"""Several sets as one, parts of a set, and validation sets. None has a state, or memory for its order."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.rows import Row, Rows
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.sampler import order_key, permutation

MOST = 2**53  # samples of a mixture


class _Parts:
    """Records of several sets; a set whose part is longer than the set repeats."""

    def __init__(self, parts: Sequence[Rows], counts: Sequence[int], what: str) -> None:
        self._parts, self._ends = parts, list(accumulate(counts))
        self.fingerprint = f"{order_key('/'.join([what, *(part.fingerprint for part in parts)]), 0):016x}"

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> Row:
        """Return a record."""
        part, inner = self._at(index)
        return part.row(inner)

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        part, inner = self._at(index)
        return part.where(inner)

    @property
    def parts(self) -> Sequence[tuple[Rows, int]]:
        """The sets, and how many records each of them has here."""
        begins = [0, *self._ends[:-1]]
        return [(part, end - begin) for part, begin, end in zip(self._parts, begins, self._ends, strict=True)]

    def _at(self, index: int) -> tuple[Rows, int]:
        number = bisect_right(self._ends, index)
        part, begin = self._parts[number], self._ends[number - 1] if number else 0
        return part, (index - begin) % len(part)


class Concatenated(_Parts):
    """Records of several sets, one after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        """Join at least one set."""
        super().__init__(parts, [len(part) for part in parts], "concatenated")


class Mixture(_Parts):
    """Several sets in given proportions, without a state: which record an index has follows from the weights alone.

    A pass over the mixture has every record of every set at least once; a set whose weight is above its share of the
    records repeats. The order of the samples, which the sampler draws, mixes the sets within every step.
    """

    def __init__(self, parts: Sequence[Rows], weights: Sequence[float]) -> None:
        """Mix at least one set; weights are relative.

        Raises:
            ValueError: a weight is missing or not positive.
            DataError: weights are so far apart that a pass over all records would have no end.
        """
        if len(parts) != len(weights) or not parts or min(weights) <= 0:
            raise ValueError(f"a mixture needs one positive weight for each of its {len(parts)} sets, not {weights}")
        shares = [weight / sum(weights) for weight in weights]
        size = max(len(part) / share for part, share in zip(parts, shares, strict=True))
        if not size < MOST:
            sizes, given = (", ".join(map(str, each)) for each in ([len(part) for part in parts], weights))
            raise DataError(
                f"weights {given} of sets of {sizes} records: a pass over all of them would have more than 2**53 "
                "samples; choose weights that are closer together"
            )
        counts = [max(len(part), round(size * share)) for part, share in zip(parts, shares, strict=True)]
        super().__init__(parts, counts, f"mixture {counts}")


class Subset:
    """A range of another set's records in a keyed order; takes no memory."""

    def __init__(self, rows: Rows, key: int, span: range) -> None:
        """Take the records at the positions `span` of the order of `key`."""
        self._rows, self._span = rows, span
        self._order = permutation(len(rows), key)
        self.fingerprint = f"{rows.fingerprint}-{key:x}-{span.start}-{span.stop}"

    def __len__(self) -> int:
        return len(self._span)

    def row(self, index: int) -> Row:
        """Return a record."""
        return self._rows.row(self._at(index))

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return self._rows.where(self._at(index))

    @property
    def whole(self) -> Rows:
        """The set whose records these are."""
        return self._rows

    def places(self) -> NDArray[np.int64]:
        """Return the number of each record in the whole set."""
        return self._order(np.arange(self._span.start, self._span.stop, dtype=np.uint64)).astype(np.int64)

    def _at(self, index: int) -> int:
        return int(self._order(np.array([self._span[index]], np.uint64))[0])


def leaves(rows: Rows) -> Iterator[Rows]:
    """Yield the files that records are read from, in order; one that occurs several times as often."""
    if isinstance(rows, _Parts):
        for part, _ in rows.parts:
            yield from leaves(part)
    elif isinstance(rows, Subset):
        yield from leaves(rows.whole)
    else:
        yield rows


def spread(rows: Rows, values: Callable[[Rows], NDArray[Any]]) -> NDArray[Any]:
    """Return a value of each record, from those of the files that records are read from."""
    if isinstance(rows, _Parts):
        return np.concatenate([np.resize(spread(part, values), count) for part, count in rows.parts])
    if isinstance(rows, Subset):
        return spread(rows.whole, values)[rows.places()]
    return values(rows)


def hold_out(rows: Rows, count: int, seed: int) -> tuple[Subset, Subset]:
    """Split a set into training and validation records; which are held out depends on content, count and seed only.

    Raises:
        DataError: nothing would be left to train on.
    """
    if not 0 < count < len(rows):
        raise DataError(f"validation: {count} of {len(rows)} records are held out, which leaves none; lower it")
    key = order_key(rows.fingerprint, seed)
    return Subset(rows, key, range(count, len(rows))), Subset(rows, key, range(count))
