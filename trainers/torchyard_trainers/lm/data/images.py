"""Images of conversations: where records have them, and the tokens that stand for them. Imports no torch.

Records are those of TRL: parts `{type: image}` of a message with the image inside, or without, in the order of the
column `images`. If no message has parts, the images stand before the text of the first turn of the user.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.data.frames import decode_image
from torchyard_trainers.core.data.rows import BadRecordError, Row, kind_of
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message

MAX_BYTES = 64 << 20  # of an image file
MOST_IMAGES = 256  # of a record
COLUMNS = ("images", "image")
_DATA_URL = "data:image/"


class Picture(NamedTuple):
    """An image of a record, and its rows and columns of patches."""

    image: Any  # of Pillow, RGB
    grid: tuple[int, int]


class Images:
    """The images of the records of a run, for one model."""

    def __init__(self, folder: Path, token: int, *, root: str | None, max_pixels: int | None) -> None:
        """Read the settings of a model's image processor.

        Args:
            folder: of the model.
            token: that stands for a block of patches.
            root: folder that paths in records are relative to; None: the working directory.
            max_pixels: of an image, which is made smaller if it has more; None: as many as the processor allows.

        Raises:
            ConfigError: the folder has no image processor.
        """
        from transformers import Qwen2VLImageProcessorPil

        from torchyard_trainers.core.image_processor import PROCESSOR_FILES
        from torchyard_trainers.core.model_config import one_line, read_object

        at = f"trainer.params.pretrained: {folder}"
        files = [folder / name for name in PROCESSOR_FILES if (folder / name).is_file()]
        if not files:
            raise ConfigError(
                f"{at} has no {PROCESSOR_FILES[0]}, which says how images are read; copy it from the published model"
            )
        for path in files:
            read_object(path, f"trainer.params.pretrained: {path}", "a config of an image processor")
        try:
            processor: Any = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the class raises anything
            raise ConfigError(f"{at}: the image processor cannot be read: {one_line(error)}; copy it again") from error
        if max_pixels is not None:
            fewest = min(processor.size["shortest_edge"], max_pixels)
            processor.size = {"shortest_edge": fewest, "longest_edge": min(processor.size["longest_edge"], max_pixels)}
        self.processor, self._root = processor, Path(root or ".")
        self.token, self.merge = token, int(processor.merge_size)

    @property
    def identity(self) -> str:
        """What the tokens and pixels of an image depend on."""
        each = self.processor
        return f"images={dict(each.size)}, {each.patch_size}, {self.merge}, {each.image_mean}, {self._root}"

    def placed(self, messages: Sequence[Message], row: Row, column: str) -> tuple[list[Message], list[Picture]]:
        """Return messages whose images are marks, and the images in the order of the marks.

        Args:
            messages: of `conversation`, with parts of text and images.
            row: that may have images in a column, too.
            column: its name.

        Raises:
            BadRecordError: there are other numbers of marks and images, or an image cannot be read.
        """
        listed = list(_listed(row, column))
        if listed and not any(isinstance(each.get("content"), list) for each in messages):
            messages = _before_the_first_question(messages, len(listed), column)
        sources: list[tuple[Any, str]] = []
        waiting, marked = iter(listed), []
        for number, each in enumerate(messages, 1):
            parts = []
            for part in each["content"] if isinstance(each.get("content"), list) else []:
                if part["type"] != "image":
                    parts.append(part)
                    continue
                if each["role"] == ASSISTANT:
                    raise BadRecordError(
                        "messages", f"has an image in a turn {number} of the assistant, which says text"
                    )
                source = part["image"] if "image" in part else next(waiting, None)
                if source is None:
                    raise BadRecordError(column, f"has {len(listed)} images, fewer than the messages have marks for")
                sources.append((source, f"message {number}"))
                parts.append({"type": "image"})
            marked.append({**each, "content": parts} if parts else each)
        if left := len(list(waiting)):
            raise BadRecordError(column, f"has {len(listed)} images, {left} more than the messages have marks for")
        if len(sources) > MOST_IMAGES:
            raise BadRecordError(column, f"has {len(sources)} images, and a record at most {MOST_IMAGES}")
        return marked, [self._picture(*each) for each in sources]

    def expanded(
        self, tokens: Sequence[int], learned: Sequence[bool], pictures: Sequence[Picture]
    ) -> tuple[list[int], list[bool]]:
        """Return tokens with as many marks for each image as the model has features of it; none is learned.

        Raises:
            BadRecordError: a text has such a mark by itself.
        """
        if (marks := sum(each == self.token for each in tokens)) != len(pictures):
            raise BadRecordError(
                "messages", f"has {marks} marks of images in its text, and {len(pictures)} images; remove the others"
            )
        waiting = iter(pictures)
        longer: list[int] = []
        counts: list[bool] = []
        for token, counted in zip(tokens, learned, strict=True):
            times = self._tokens_of(next(waiting)) if token == self.token else 1
            longer += [token] * times
            counts += [counted and token != self.token] * times
        return longer, counts

    def _tokens_of(self, picture: Picture) -> int:
        rows, columns = picture.grid
        return rows * columns // self.merge**2

    def _picture(self, source: Any, place: str) -> Picture:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        try:
            image = decode_image(self._content(source), place)
            processor = self.processor
            height, width = smart_resize(
                image.height,
                image.width,
                factor=processor.patch_size * self.merge,
                min_pixels=processor.size["shortest_edge"],
                max_pixels=processor.size["longest_edge"],
            )
        except (DataError, ValueError) as error:
            raise BadRecordError("images", f"has an image that cannot be used: {error}") from error
        return Picture(image, (height // processor.patch_size, width // processor.patch_size))

    def _content(self, source: Any) -> bytes:
        """Return the bytes of an image file.

        Raises:
            ValueError: there is none, or it is too large.
        """
        if isinstance(source, Mapping):  # as `datasets` writes images into Parquet and Arrow
            source = source.get("bytes") or source.get("path") or source.get("url")
        if isinstance(source, bytes | bytearray):
            return _bounded(bytes(source))
        if not isinstance(source, str) or not source:
            raise ValueError(f"it is {kind_of(source)}, expected a path, or bytes")
        if source.startswith(_DATA_URL):
            try:
                return _bounded(base64.b64decode(source.partition("base64,")[2], validate=True))
            except binascii.Error as error:
                raise ValueError(f"its data URL is not base64: {error}") from error
        source = source.removeprefix("file://")
        if "://" in source:
            raise ValueError(f"{source[:80]} is an address, and nothing is downloaded; name a file")
        path = self._root / source
        try:
            with path.open("rb") as file:
                return _bounded(file.read(MAX_BYTES + 1))
        except OSError as error:
            at = "trainer.params.imageFolder is the folder that paths are relative to"
            raise ValueError(f"{path}: {error.strerror}; {at}") from error


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    return content


def _listed(row: Row, column: str) -> Iterator[Any]:
    """Yield the images in a column of a record."""
    names = [column, *(COLUMNS if column == COLUMNS[0] else ())]
    value = next((row[name] for name in names if row.get(name) is not None), [])
    yield from value if isinstance(value, list) else [value]


def has_images(row: Row, column: str) -> bool:
    """Return whether a record has images in a column."""
    return any(isinstance(each, Mapping | bytes | str) for each in _listed(row, column))


def _before_the_first_question(messages: Sequence[Message], count: int, column: str) -> list[Message]:
    """Return messages with marks of so many images before the text of the first turn of the user."""
    first = next((number for number, each in enumerate(messages) if each["role"] == "user"), None)
    if first is None:
        raise BadRecordError(column, f"has {count} images, and the conversation has no turn of the user")
    marks: list[Mapping[str, Any]] = [{"type": "image"}] * count
    asked = {**messages[first], "content": [*marks, {"type": "text", "text": messages[first].get("content") or ""}]}
    return [*messages[:first], asked, *messages[first + 1 :]]
