"""Decodes images and frames of videos on the CPU."""

import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import HEAD, other_than_file

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 26  # of an image: more is not a camera
# A playlist named like a video would have FFmpeg open other files and addresses.
_OPTIONS = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm", "protocol_whitelist": "file"}
MOST_OPEN = 32  # videos of a process: a decoder keeps several frames


def decode_image(content: bytes, place: str) -> "Image":
    """Return the pixels of an encoded image, RGB, as the camera was held.

    Args:
        content: a PNG, JPEG or another format of Pillow; of 16 bits per pixel, the upper 8 are used.
        place: names it in errors.

    Raises:
        DataError: it is not an image, too large, or of numbers that are no brightness.
    """
    try:
        return _decoded(content, place)
    except DataError:
        raise
    except Exception as error:  # the decoders raise anything
        if other := other_than_file(content):
            raise DataError(f"{place}: the image {other}") from error
        raise DataError(f"{place}: not a readable image: {error}") from error


def _decoded(content: bytes, place: str) -> "Image":
    from PIL import Image, ImageOps

    image = Image.open(io.BytesIO(content))
    if image.width * image.height > MAX_PIXELS:
        raise DataError(f"{place}: an image of {image.width} x {image.height} pixels; at most {MAX_PIXELS}")
    image.load()
    if image.mode in ("I", "F"):
        raise DataError(f"{place}: an image of 32 bits per pixel, expected 8 or 16 for each colour; convert it")
    upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # Pillow would make all but the darkest pixels white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    return upright if upright.mode == "RGB" else upright.convert("RGB")


class Videos:
    """Reads frames of video files; each process opens a file once, and keeps the last ones open.

    A forked process opens them again: its parent's have a position that both would move.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Any] = OrderedDict()
        self._process = os.getpid()

    def frame(self, path: Path, second: float, tolerance: float, place: str) -> "Image":
        """Return the frame of a video at a time, RGB.

        Args:
            path: of the video.
            second: from its start.
            tolerance: seconds that the nearest frame may be away.
            place: names it in errors.

        Raises:
            DataError: there is no such video, it is damaged, or it has no frame there.
        """
        import av

        try:
            best = _nearest(self._container(path, place), second, tolerance)
        except (av.error.FFmpegError, IndexError) as error:
            self._open.pop(path, None)
            with path.open("rb") as file:
                if other := other_than_file(file.read(HEAD)):
                    raise DataError(f"{place}: {path} {other}") from error
            raise DataError(f"{place}: {path} cannot be decoded: {error}") from error
        if best is not None and abs(best.time - second) <= tolerance:
            return best.to_image()
        nearest = "none" if best is None else f"the nearest is at {best.time:.4f} s"
        raise DataError(
            f"{place}: {path} has no frame at {second:.4f} s ({nearest}); copy the file again, or correct fps in "
            "meta/info.json"
        )

    def _container(self, path: Path, place: str) -> Any:
        import av

        if self._process != os.getpid():
            self._open, self._process = OrderedDict(), os.getpid()
        if path not in self._open:
            if not path.is_file():
                raise DataError(f"{place}: {path} does not exist; copy the dataset again")
            container = av.open(str(path), options=_OPTIONS)
            video = container.streams.video[0].codec_context
            if video.width * video.height > MAX_PIXELS:
                container.close()
                raise DataError(f"{place}: {path} has {video.width} x {video.height} pixels; at most {MAX_PIXELS}")
            self._open[path] = container
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]


def _nearest(container: Any, second: float, tolerance: float) -> Any:
    """Return the frame nearest to a time, None if the video has none."""
    stream = container.streams.video[0]
    if not stream.codec_context.is_open:
        stream.thread_type = "NONE"  # the workers of the loader are the threads
    container.seek(max(0, int((second - tolerance) / stream.time_base)), stream=stream)
    best: Any = None
    for frame in container.decode(stream):
        if frame.time is None:
            continue
        if best is None or abs(frame.time - second) < abs(best.time - second):
            best = frame
        if frame.time >= second:
            break
    return best


def fitted(image: "Image", size: int) -> NDArray[np.uint8]:
    """Return an image scaled into a square with its proportions kept, on black, [size, size, 3]."""
    from PIL.Image import Resampling

    width, height = image.size
    share = size / max(height, width)
    wide, high = max(1, round(width * share)), max(1, round(height * share))
    scaled = np.asarray(image if share == 1 else image.resize((wide, high), Resampling.BILINEAR))
    if wide == high == size:
        return scaled
    found = np.zeros((size, size, 3), np.uint8)
    top, left = (size - high) // 2, (size - wide) // 2
    found[top : top + high, left : left + wide] = scaled
    return found
