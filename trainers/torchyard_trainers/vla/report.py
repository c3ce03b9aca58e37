"""Pictures of evaluation episodes: a film strip each, and an animation of all."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.workload import Session
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.demonstrations import Tabletop
from torchyard_trainers.vla.evaluation import play
from torchyard_trainers.vla.params import Settings

EPISODES = 4
SIDE = 112  # pixels of a frame
_TEXT = 16
_SHOWN = 5  # frames of a strip
_MILLISECONDS = 250


def write(session: Session, settings: Settings, table: Tabletop, folder: Path) -> list[Path]:
    """Play the first episodes of the evaluation again and draw them; return the files. Collective."""
    count = min(EPISODES, settings.eval_episodes)
    ids = torch.arange(count, device=session.world.device)
    scene = table.scenes(ids, "episodes", held_out=True)
    session.parallel.module.eval()
    with session.precision.casting():
        path = play(session, settings, table, ids, scene)
    session.parallel.module.train()
    if not session.world.is_main:
        return []
    outcome = tabletop.judge(scene, path[:, -1])
    titles = [
        f"{tabletop.sentence(int(colour))}: {'reached' if success else 'wrong object' if wrong else 'missed'}"
        for colour, success, wrong in zip(scene.colour, outcome.success, outcome.wrong_object, strict=True)
    ]
    films = [_frames(scene, path[:, moment]) for moment in range(path.shape[1])]  # a list of images at each moment
    folder.mkdir(parents=True, exist_ok=True)
    strip, animation, facts = folder / "episodes.png", folder / "episodes.gif", folder / "episodes.json"
    moments = np.linspace(0, len(films) - 1, _SHOWN).round().astype(int)
    rows = [[films[moment][number] for moment in moments] for number in range(count)]
    _sheet(rows, titles).save(strip)
    pages = [_sheet([[image] for image in film], titles, least=3 * SIDE) for film in films]
    pages[0].save(animation, save_all=True, append_images=pages[1:], duration=_MILLISECONDS, loop=0)
    told = [{"text": title, "path": line} for title, line in zip(titles, path.tolist(), strict=True)]
    write_atomically(facts, json.dumps(told, indent=1))
    return [strip, animation, facts]


def _frames(scene: tabletop.Scene, gripper: Tensor) -> list[Image.Image]:
    images = (tabletop.render(scene, gripper, SIDE).permute(0, 2, 3, 1) * 255).round().byte().cpu().numpy()
    return [Image.fromarray(each) for each in images]


def _sheet(rows: list[list[Image.Image]], titles: list[str], least: int = 0) -> Image.Image:
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
