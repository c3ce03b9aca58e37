"""Images of others are decoded as they are looked at."""

import io

import numpy as np
import pytest
from PIL import Image

from torchyard_trainers.core.data.frames import decode_image
from torchyard_trainers.core.exits import DataError


def encoded(image, kind="png", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


RED = Image.new("RGB", (4, 2), (255, 0, 0))
RED.putpixel((0, 0), (0, 0, 255))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_every_kind_of_colours_becomes_rgb(mode):
    assert np.array_equal(decode_image(encoded(RED.convert(mode)), "x"), RED)


def test_an_image_stands_as_its_camera_was_held():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees
    found = decode_image(encoded(RED, "png", exif=exif), "x")
    assert np.array_equal(found, np.rot90(RED, -1))


def test_an_image_of_too_many_pixels_or_a_damaged_one_is_named():
    whole = encoded(RED)
    huge = whole[:16] + (40_000).to_bytes(4, "big") * 2 + whole[24:]
    for content in (huge, whole[:40], b"GIF89a", encoded(RED, "tiff")[:-9], b""):
        with pytest.raises(DataError, match=r"^episode 3: (an image of|not a readable image)"):
            decode_image(content, "episode 3")


def test_of_sixteen_bits_the_upper_eight_are_used_and_other_numbers_are_named():
    deep = np.linspace(0, 65535, 8).astype(np.uint16).reshape(2, 4)
    found = np.asarray(decode_image(encoded(Image.fromarray(deep)), "x"))
    assert np.array_equal(found, np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, 2))
    distances = Image.fromarray(np.full((2, 4), 1.5, np.float32))
    with pytest.raises(DataError, match=r"episode 3: an image of 32 bits per pixel, expected 8 or 16 for each colour"):
        decode_image(encoded(distances, "tiff"), "episode 3")
