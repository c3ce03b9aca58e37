"""Decodes images and frames of videos on the CPU."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.exits import DataError

MAX_PIXELS = 1 << 26  # of an image: more is not a camera


def decode_image(content: bytes, place: str) -> NDArray[np.uint8]:
    """Return the pixels of an encoded image, [height, width, 3].

    Args:
        content: a PNG, JPEG or another format of Pillow.
        place: names it in errors.

    Raises:
        DataError: it is not an image, or too large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{place}: an image of {image.width} x {image.height} pixels; at most {MAX_PIXELS}")
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{place}: not a readable image: {error}") from error


def decode_video(path: Path, second: float, tolerance: float, place: str) -> NDArray[np.uint8]:
    """Return the frame of a video at a time, [height, width, 3].

    Args:
        path: of the video.
        second: from its start.
        tolerance: seconds that the nearest frame may be away.
        place: names it in errors.

    Raises:
        DataError: there is no such video, it is damaged, or it has no frame there.
    """
    import av

    if not path.is_file():
        raise DataError(f"{place}: {path} does not exist; copy the dataset again")
    best: Any = None
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"  # the workers of the loader are the threads
            assert stream.time_base is not None
            container.seek(max(0, int((second - tolerance) / stream.time_base)), stream=stream)
            for frame in container.decode(stream):
                if frame.time is None:
                    continue
                if best is None or abs(frame.time - second) < abs(best.time - second):
                    best = frame
                if frame.time >= second:
                    break
            if best is not None and abs(best.time - second) <= tolerance:
                return np.asarray(best.to_ndarray(format="rgb24"))
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"{place}: {path} cannot be decoded: {error}") from error
    nearest = "none" if best is None else f"the nearest is at {best.time:.4f} s"
    raise DataError(f"{place}: {path} has no frame at {second:.4f} s ({nearest}); copy the file again")


def fitted(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return an image scaled into a square with its proportions kept, on black, [size, size, 3]."""
    from PIL import Image

    height, width = pixels.shape[:2]
    if (height, width) == (size, size):
        return pixels
    share = size / max(height, width)
    wide, high = max(1, round(width * share)), max(1, round(height * share))
    scaled = np.asarray(Image.fromarray(pixels).resize((wide, high), Image.Resampling.BILINEAR))
    found = np.zeros((size, size, 3), np.uint8)
    top, left = (size - high) // 2, (size - wide) // 2
    found[top : top + high, left : left + wide] = scaled
    return found
