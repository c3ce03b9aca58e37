"""Files of records as the training and evaluation samples of a run."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from torchyard_trainers.core.data.background import BackgroundScan, check_some
from torchyard_trainers.core.data.loader import share_of_cores
from torchyard_trainers.core.data.packing import concatenated
from torchyard_trainers.core.data.rows import BadRecordError, Rows
from torchyard_trainers.core.data.samples import Samples, Windows
from torchyard_trainers.core.data.scan import Scan, Size, scan
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.sampler import order_key, samples_of_step
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.data.batches import Batch
from torchyard_trainers.lm.data.images import Images
from torchyard_trainers.lm.data.prompts import Prompts
from torchyard_trainers.lm.data.records import Document, Encoder, Example, Prompt, window_of
from torchyard_trainers.lm.data.seen import seen_of
from torchyard_trainers.lm.data.sets import converses, in_background, opened
from torchyard_trainers.lm.settings import REINFORCED, Settings

# What the sample of a record depends on, besides the tokenizer.
ENCODING = ("method", "format", "fields", "max_length", "truncation", "train_on", "reward")
ENCODER = "3"  # counts changes of what the same record and settings encode to
FIX = "correct them, or set trainer.params.badRecords: skip"
SCANNED_HERE = 2000  # records that are scanned without other processes


class Datasets:
    """The samples of a run.

    Attributes:
        train: read ahead by the loop, or by rollouts; None: the files only evaluate.
        held_out: lists of examples.
        turn_ends: tokens that end turns of the assistant, if there are conversations.
        notes: sentences for the log.
        chat: renders conversations.
        scans: of the records that evaluate and of those that train; [] if they are checked in the background.
    """

    def __init__(
        self, settings: Settings, tokenizer: Any, vocabulary: int, *, tokens_of: str, images: Images | None = None
    ) -> None:
        """Open the files.

        Args:
            settings: of the run.
            tokenizer: of the model.
            vocabulary: tokens that the model knows.
            tokens_of: identifies the tokenizer.
            images: reads images of conversations; None: the model reads text only.

        Raises:
            DataError: a file or a record cannot be used.
            ConfigError: the tokenizer cannot render conversations.
        """
        self.chat = chat = Chat(tokenizer, arguments=settings.template_arguments)
        held_out, train = opened(settings)
        sets = [each for each in (train, held_out) if each is not None]
        encoder = Encoder(settings, tokenizer, vocabulary, chat=chat, images=images)
        if beside := in_background(settings, sets, encoder):
            settings = msgspec.structs.replace(settings, text_windows=False)
            encoder = Encoder(settings, tokenizer, vocabulary, chat=chat, images=images)
        self._settings = settings
        parts = [f"{name}={getattr(settings, name)}" for name in ENCODING]
        parts += [f"template={json.dumps(each, sort_keys=True)}" for each in [settings.template_arguments] if each]
        parts += [f"tools={settings.tool_schemas}"] if settings.tools else []
        parts += [images.identity] if images is not None else []
        self._encoding = "/".join([tokens_of, ENCODER, *parts])
        self._pad: int = tokenizer.pad_token_id
        self._images = images
        self.scans: list[Scan] = []
        self._checks = False  # in the background
        self._vocabulary = vocabulary
        self._background = self._check_of(sets, encoder) if beside else None
        self.turn_ends = encoder.turn_ends if any(converses(encoder, rows) for rows in sets) else ()
        self.train = None if train is None else self._samples(train, encoder, Collate(settings, self._pad, images))
        asks = Encoder(settings, tokenizer, vocabulary, prompts=True, chat=chat, images=images)
        try:
            self.held_out = self._samples(held_out, asks, list)
        except DataError as error:
            if settings.evaluation_files:
                raise
            more = "set trainer.params.validation, or raise holdOut"
            raise DataError(f"of the records that are held out to evaluate, {error}; {more}") from error
        notes = [*encoder.notes, *asks.notes, self.note]
        if settings.template_arguments and not self.turn_ends:
            notes.append("trainer.params.templateArguments: is set, but the records are no conversations")
        self.notes = [each for each in dict.fromkeys(notes) if each]

    def _check_of(self, sets: Sequence[Rows], encoder: Encoder) -> BackgroundScan:
        return BackgroundScan(
            sets,
            encoder,
            size_of,
            skip_bad=self._settings.bad_records == "skip",
            encoding=self._encoding,
            processes=max(1, share_of_cores() // 4),
            report=say,
            fix=FIX,
        )

    def _samples(self, rows: Rows, encoder: Encoder, collate: Any) -> Samples:
        settings = self._settings
        with suppress(BadRecordError, DataError):
            encoder(rows.row(0))  # what is wrong with the tokenizer is found here, not in a worker process
        skip_bad = settings.bad_records == "skip"
        if self._background is not None:
            check_some(rows, encoder, skip_bad=skip_bad, fix=FIX)
            return Samples(rows, encoder, collate, encoding=self._encoding, skip_bad=skip_bad)
        found = scan(
            rows,
            encoder,
            size_of,
            skip_bad=skip_bad,
            encoding=f"{self._encoding}/windows={settings.text_windows}",
            processes=0 if len(rows) <= SCANNED_HERE else min(8, os.cpu_count() or 1),
            report=say,
            vocabulary=self._vocabulary if settings.method == "sft" else None,
            fix=FIX,
        )
        self.scans.append(found)
        windows = Windows(settings.max_length, partial(window_of, length=settings.max_length))
        return Samples(
            rows,
            encoder,
            collate,
            encoding=self._encoding,
            scan=found,
            windows=windows if settings.text_windows else None,
        )

    def check_beside(self, *, starts: bool) -> dict[str, float]:
        """Take what the check in the background has found until here; return `metrics`, {} if there is none.

        Args:
            starts: whether this process is the one that checks.

        Raises:
            DataError: a record cannot be used, and bad ones are not skipped.
        """
        if self._background is None or not starts:
            return {}
        if not self._checks:
            self._background.start()
            self._checks = True
        was_complete = self._background.is_complete
        self._background.poll()
        if self._background.is_complete and not was_complete and (note := self.note):
            say(note)
        return self.metrics

    def end_check(self) -> None:
        """End the check in the background, and report how far it is."""
        if self._background is None or not self._checks:
            return
        if not self._background.is_complete:
            say(f"{self._background.progress}; training ends before")
        self._background.close()

    @property
    def _counts(self) -> dict[str, int]:
        """Records that are `bad`, `too_long` or `truncated`, and tokens that are `used` or `lost`."""
        if self._background is not None:
            return self._background.counts
        lost, every = (sum(each) for each in zip(*(each.lost_tokens for each in self.scans), strict=True))
        records = {name: sum(getattr(each, name) for each in self.scans) for name in ("bad", "too_long", "truncated")}
        return {**records, "lost": lost, "used": every - lost}

    @property
    def metrics(self) -> dict[str, float]:
        """Records that are not used or lose tokens, and the share of all tokens that they lose."""
        counts = self._counts
        every = counts["lost"] + counts["used"]
        return {
            "skippedRecords": float(counts["bad"] + counts["too_long"]),
            "truncatedRecords": float(counts["truncated"]),
            "lostTokenFraction": counts["lost"] / every if every else 0.0,
        }

    @property
    def note(self) -> str:
        """What the log says about records that are not used or not whole; "" if all are."""
        beside, counts = self._background, self._counts
        records = beside.checked if beside is not None else sum(len(each.lengths) for each in self.scans)
        problems = beside.problems if beside is not None else self.scans[0].problems
        bad, long, cut, lost = counts["bad"], counts["too_long"], counts["truncated"], self.metrics["lostTokenFraction"]
        most = f"trainer.params.maxLength: {self._settings.max_length} tokens"
        parts = [f"{bad} cannot be used and are skipped ({problems[0]})"] if bad else []
        if long:
            parts.append(f"{long} have prompts of more than {most} and are skipped")
        if cut:
            parts.append(f"{cut} have more than {most} and are cut, which loses {100 * lost:.3g} % of all; raise it")
        return f"trainer.params.data: of {records} records, {'; '.join(parts)}" if parts else ""

    @property
    def fingerprint(self) -> str:
        """Identifies the records that train."""
        return self.train.fingerprint if self.train is not None else ""

    @property
    def held_out_count(self) -> int:
        """The samples of an evaluation."""
        return min(self._settings.eval_samples, len(self.held_out))

    @cached_property
    def has_answers(self) -> bool:
        """Whether held-out records have answers, which can be compared with what the model says."""
        every = self.evaluated(range(self.held_out_count))
        answered = sum(each.document is not None and bool(each.document.pictures) for each in every)
        return (
            len(self.asking) + answered == sum(each.right is not False for each in every) > 0
            and self._settings.train_on != "all"
        )

    @cached_property
    def asking(self) -> list[int]:
        """The samples of an evaluation that have a prompt to complete; those of texts have none."""
        every = self.evaluated(range(self.held_out_count))
        return [position for position, each in enumerate(every) if each.prompt is not None]

    def evaluated(self, positions: Sequence[int]) -> list[Example]:
        """Return samples of an evaluation, which are evenly spread over the held-out records."""
        count, wanted = len(self.held_out), self.held_out_count
        found: list[Example] = self.held_out.read([position * count // wanted for position in positions])
        return found

    def answers(self, positions: Sequence[int]) -> Batch:
        """Return documents of an evaluation."""
        examples = [each for each in self.evaluated(positions) if each.document is not None]
        made = padded([_right_only(each) for each in examples], self._pad, self._images)
        return Batch(made["tokens"], made["labels"], made.get("seen"))

    def rated(self, ids: Sequence[int] | Tensor, *, held_out: bool = False) -> dict[str, Tensor]:
        """See `preferences.RatedAnswers`."""
        if not held_out:
            assert self.train is not None
            read: dict[str, Tensor] = self.train.read(_known(ids))
            return read
        found: dict[str, Tensor] = Collate(self._settings, self._pad)(self.evaluated(list(ids)))
        return found

    def exchanged(self, ids: Sequence[int], others: Sequence[int], *, held_out: bool = False) -> dict[str, Tensor]:
        """See `preferences.RatedAnswers`."""
        train = self.train
        assert held_out or train is not None

        def documents(numbers: Sequence[int]) -> list[Document]:
            read = self.evaluated(numbers) if train is None or held_out else [train.sample(each) for each in numbers]
            return [each.document for each in read]

        most = self._settings.max_length + 1
        mixed = [_answered_by(*each, most) for each in zip(documents(ids), documents(others), strict=True)]
        with unset_fake_temporarily():
            return padded(mixed, self._pad)


class RecordPrompts(Prompts):
    """Prompts of records; in rollouts every record once in an epoch, in a new order in each."""

    def __init__(self, settings: Settings, tokenizer: Any, data: Datasets) -> None:
        """Take the samples of a run of grpo or ppo."""
        super().__init__(settings, tokenizer)
        self._data, self._key = data, order_key(data.fingerprint, settings.seed)

    @property
    def longest(self) -> int:
        """See `Prompts`."""
        return self._settings.max_length

    def of_ids(self, ids: Sequence[int]) -> list[Prompt]:
        """See `Prompts`."""
        number_of = {each: self._number(each) for each in set(ids)}
        prompts = {number: self._train.sample(number).prompt for number in set(number_of.values())}
        return [prompts[number_of[each]] for each in ids]

    def held_out(self, ids: Sequence[int]) -> list[Prompt]:
        """See `Prompts`."""
        examples = self._data.evaluated([self._data.asking[each] for each in ids])
        return [each.prompt for each in examples if each.prompt is not None]

    def documents(self, ids: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Return prompts of rollouts with their right answers, as a micro-batch."""
        found: dict[str, Tensor] = self._train.read([self._number(each) for each in _known(ids)])
        return found

    @property
    def _train(self) -> Samples:
        assert self._data.train is not None
        return self._data.train

    def _number(self, sample: int) -> int:
        """Return the record that a sample is of."""
        return samples_of_step(sample, 1, size=len(self._train), key=self._key)[0]


def _known(ids: Sequence[int] | Tensor) -> list[int]:
    """Return ids as numbers; those of a forecast have no values, and any samples will do."""
    return list(range(len(ids))) if isinstance(ids, FakeTensor) else torch.as_tensor(ids).tolist()


def size_of(example: Example) -> Size:
    """Return the tokens that the model reads of an example, at least 1, and those that were cut off."""
    documents = [each for each in (example.document, example.rejected) if each is not None]
    parts = [len(each.tokens) - 1 for each in documents]
    lost = sum(each.lost for each in documents)
    if example.prompt is not None:
        parts.append(len(example.prompt.tokens))
        lost += example.prompt.lost
    return Size(max([*parts, 1]), lost)


class Collate:
    """Makes the tensors of a micro-batch: documents padded on the right, or in one row if `packs`."""

    def __init__(self, settings: Settings, pad: int, images: Images | None = None) -> None:
        """Fill rows with the token `pad`; add what a model that reads `images` sees of them."""
        self._images = images
        self._packs, self._pad = settings.packs and settings.method == "sft", pad

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any] | list[Example]:
        """Return `tokens`, `labels` and the `document` of each, [m, T], and the `sizes` of documents [m].

        Of pairs, those of the rejected answers follow those of the chosen ones.
        """
        documents = [each.document for each in examples if each.document is not None]
        documents += [each.rejected for each in examples if each.rejected is not None]
        if len(documents) < len(examples):
            return list(examples)
        # The forecast of a step has fake tensors, and these are made of numbers.
        with unset_fake_temporarily():
            made = packed(documents) if self._packs else padded(documents, self._pad, self._images)
            rights = [each.right for each in examples if each.right is not None]
            return made | ({"right": torch.tensor(rights)} if rights else {})


def padded(documents: Sequence[Document], pad: int, images: Images | None = None) -> dict[str, Any]:
    """Return documents padded on the right: `tokens`, `labels` and `document`, [m, T] each, and `sizes` [m].

    With images, also `seen`: what a model reads of them.
    """
    shape = len(documents), max(*(len(each.tokens) for each in documents), 2) - 1
    tokens, labels = torch.full(shape, pad), torch.full(shape, IGNORE)
    for row, each in enumerate(documents):
        inputs, targets = _shifted(each)
        tokens[row, : len(inputs)], labels[row, : len(inputs)] = inputs, targets
    number = torch.arange(len(documents))[:, None].expand(shape)
    made = {"tokens": tokens, "labels": labels, "document": number, "sizes": _sizes(documents)}
    seen = {"seen": seen_of(images, tokens, [each.pictures for each in documents])} if images is not None else {}
    return made | seen


def packed(documents: Sequence[Document]) -> dict[str, Any]:
    """Return documents in one row, with the `positions` of their tokens: [1, N] each, and `sizes` [m].

    `inputs` are the tokens of each that are read, as numbers: looked at without waiting for a GPU.
    """
    inputs, targets = zip(*map(_shifted, documents), strict=True)
    sizes = {"sizes": _sizes(documents), "inputs": [len(each) for each in inputs]}
    return {**concatenated(inputs), "labels": torch.cat(targets)[None], **sizes}


def _sizes(documents: Sequence[Document]) -> Tensor:
    return torch.tensor([len(each.tokens) for each in documents])


def _shifted(document: Document) -> tuple[Tensor, Tensor]:
    """Return the tokens that are read, and what follows each: the token, or `IGNORE`."""
    tokens = torch.tensor(document.tokens)
    return tokens[:-1], tokens.where(torch.tensor(document.learned), IGNORE)[1:]


def _right_only(example: Example) -> Document:
    """Return the document of an example, without anything to learn if it is labelled as wrong."""
    document = example.document
    assert document is not None
    return document if example.right is not False else document._replace(learned=[False] * len(document.tokens))


def _answered_by(asked: Document, said: Document, most: int) -> Document:
    """Return the prompt of a document with the answer of another one, of at most so many tokens."""
    end, begin = (list(each.learned).index(True) for each in (asked, said))
    tokens, learned = ([*a[:end], *b[begin:]][:most] for a, b in zip(asked[:2], said[:2], strict=True))
    return Document(tokens, learned)


def within_positions(settings: Settings, name: str, positions: int | None) -> Settings:
    """Return settings whose `max_length` suits the positions of a model; one that is not set becomes less.

    Args:
        settings: of a run on files.
        name: of the model, for messages.
        positions: that the model has; None: any number.

    Raises:
        ConfigError: a sample, or a prompt with its completion, may be longer.
    """
    reinforced = settings.method in REINFORCED
    new = settings.max_new_tokens if reinforced else 0
    if positions is None or settings.max_length + new <= positions:
        return settings
    if not settings.max_length_is_default:
        more = f" and maxNewTokens {new}" if reinforced else ""
        raise ConfigError(
            f"trainer.params.maxLength: {settings.max_length}{more}, but {name} has {positions} positions; lower it"
        )
    if positions - new < 1:
        raise ConfigError(
            f"trainer.params.maxNewTokens: {new}, but {name} has {positions} positions, of which prompts need some; "
            "lower it"
        )
    return msgspec.structs.replace(settings, max_length=positions - new)


def tokenizer_fingerprint(files: Sequence[Path], added: Sequence[str] = ()) -> str:
    """Return a hash of the files of a tokenizer, and of the tokens that are added."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(files):
        digest.update(path.read_bytes())
    if added:
        digest.update(json.dumps(list(added)).encode())
    return digest.hexdigest()
