"""Pictures of episodes: a film strip each, and an animation of all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from torchyard_trainers.core.checkpoints.commits import write_atomically

EPISODES = 4  # that a report shows
SIDE = 112  # pixels of a frame
_TEXT = 16
_SHOWN = 5  # frames of a strip
_MILLISECONDS = 250


def write_film(folder: Path, moments: Sequence[Tensor], titles: Sequence[str], facts: Mapping[str, Any]) -> list[Path]:
    """Write `episodes.png`, `episodes.gif` and `episodes.json`; return them.

    Args:
        folder: created if it does not exist.
        moments: images of all episodes at each moment, [n, 3, SIDE, SIDE] in [0, 1].
        titles: of the n episodes.
        facts: further lists of n values for the JSON file, by name.
    """
    films = [_frames(each) for each in moments]
    folder.mkdir(parents=True, exist_ok=True)
    strip, animation, actions = folder / "episodes.png", folder / "episodes.gif", folder / "episodes.json"
    shown = np.linspace(0, len(films) - 1, _SHOWN).round().astype(int)
    rows = [[films[moment][number] for moment in shown] for number in range(len(titles))]
    _sheet(rows, titles).save(strip)
    pages = [_sheet([[image] for image in film], titles, least=3 * SIDE) for film in films]
    pages[0].save(animation, save_all=True, append_images=pages[1:], duration=_MILLISECONDS, loop=0)
    columns = {"text": titles, **facts}
    each_episode = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    write_atomically(actions, json.dumps(each_episode, indent=1))
    return [strip, animation, actions]


def _frames(images: Tensor) -> list[Image.Image]:
    pixels = (images.permute(0, 2, 3, 1) * 255).round().byte().cpu().numpy()
    return [Image.fromarray(each) for each in pixels]


def _sheet(rows: list[list[Image.Image]], titles: Sequence[str], least: int = 0) -> Image.Image:
    """Return images in rows, each below its title."""
    width = max(least, max(len(row) for row in rows) * (SIDE + 2))
    sheet = Image.new("RGB", (width, len(rows) * (SIDE + _TEXT + 2)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (row, title) in enumerate(zip(rows, titles, strict=True)):
        top = number * (SIDE + _TEXT + 2)
        pen.text((2, top + 2), title, fill="black")
        for place, image in enumerate(row):
            sheet.paste(image, (place * (SIDE + 2), top + _TEXT))
    return sheet
