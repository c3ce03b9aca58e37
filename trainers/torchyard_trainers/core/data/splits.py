"""Splits of a dataset, found by the names of files as the Hugging Face Hub does. Pure.

`train-00000-of-00002.parquet`, `test.jsonl`, `data/validation/0.parquet` and `train_sft-00000-of-00001.parquet` are
files of the splits `train`, `test`, `validation` and `train_sft`.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from torchyard_trainers.core.exits import DataError

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# A word between characters that are no letters, `_` among them.
_WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(_WORDS, key=len, reverse=True))})(?![a-z])")
_PARTS = re.compile(r"-\d+-of-\d+$")


def split_name(path: str, folders: int) -> str:
    """Return the split that a file belongs to by its name, or by a folder that it is in; "" if neither says it.

    Args:
        path: of the file, or its URL.
        folders: the number of folders above the file whose names count, the nearest first.
    """
    *above, name = path.lower().split("/")
    stem = _PARTS.sub("", name.rpartition(".")[0])
    if word := _WORD.search(stem):
        # The Hub's names of several sets for one purpose: `train_sft` and `train_gen` are different splits.
        own = re.fullmatch(rf"{word[0]}_[a-z0-9_]*[a-z][a-z0-9_]*", stem)
        return stem if own else _WORDS[word[0]]
    words = (_WORD.search(part) for part in reversed(above[len(above) - folders :] if folders else []))
    return next((_WORDS[word[0]] for word in words if word), "")


def of_split(paths: Sequence[str], split: str | None, url: str) -> list[str]:
    """Return the files that belong to a split; without one, all files of a set that has one split or none.

    Args:
        paths: files that one folder, pattern or URL stands for.
        split: the name of one; None: the set must not have several.
        url: what the user named.

    Raises:
        DataError: the set has several splits and none is chosen, or not the chosen one.
    """
    # What lies above all files is the user's: `/data/test-run/a.jsonl` is no test.
    levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    names = {path: split_name(path, path.count("/") - shared) for path in paths}
    if split is None:
        if len(set(names.values())) == 1 or set(names.values()) <= {"", "train"}:
            return list(paths)
        raise DataError(
            f"{url}: has the splits {_listed(names.values())}, and training on all of them leaves nothing that the "
            "model has not seen; choose one with split (and validationSplit), or name its files"
        )
    if not any(names.values()):
        names = {path: split_name(path, 2) for path in paths}
    wanted = _WORDS.get(split.lower(), split.lower())
    chosen = [path for path, name in names.items() if name in (split.lower(), wanted)]
    chosen = chosen or [path for path, name in names.items() if _WORDS.get(name.split("_")[0]) == wanted]
    if not chosen:
        raise DataError(f"{url}: has no split {split!r}; its files are of {_listed(names.values())}")
    if len(several := {names[path] for path in chosen}) > 1:
        raise DataError(f"{url}: {split!r} may be each of the splits {_listed(several)}; choose one of them")
    return chosen


def chosen_split(names: Sequence[str], split: str | None, url: str) -> str:
    """Return the one of several named splits that a job means: by its name, or by another word for it (`val`, `dev`).

    Raises:
        DataError: there are several and none is chosen, or not the chosen one.
    """
    if split is None:
        if len(names) == 1:
            return names[0]
        raise DataError(
            f"{url}: has the splits {_listed(names)}, and training on all of them leaves nothing that the model has "
            "not seen; choose one with split (and validationSplit)"
        )
    wanted = _WORDS.get(split.lower(), split.lower())
    found = [name for name in names if name == split] or [
        name for name in names if wanted in (name.lower(), _WORDS.get(name.lower()))
    ]
    if len(found) != 1:
        raise DataError(f"{url}: has no split {split!r}; it has {_listed(names)}")
    return found[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({name or "(no split)" for name in names}))
