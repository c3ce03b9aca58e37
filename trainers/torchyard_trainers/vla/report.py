"""Pictures of evaluation episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.film import EPISODES, SIDE, write_film
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.demonstrations import Tabletop
from torchyard_trainers.vla.evaluation import play, play_episodes
from torchyard_trainers.vla.heads.objective import Objective
from torchyard_trainers.vla.robot import Robot
from torchyard_trainers.vla.settings import Settings

_MOMENTS = 60  # of a film, at most
_FACTS = {"success": "success", "return": "episode_return", "maxReward": "most"}


def write(session: Session, settings: Settings, objective: Objective, table: Tabletop, folder: Path) -> list[Path]:
    """Play the first episodes of the evaluation again and draw them; return the files. Collective."""
    count = min(EPISODES, settings.eval_episodes)
    ids = torch.arange(count, device=session.world.device)
    session.parallel.module.eval()
    with session.precision.casting():
        scene, path = play(session, settings, objective, table, ids)
    session.parallel.module.train()
    if not session.world.is_main:
        return []
    outcome = tabletop.judge(scene, path[:, -1])
    titles = [
        f"{tabletop.sentence(int(colour))}: {'reached' if success else 'wrong object' if wrong else 'missed'}"
        for colour, success, wrong in zip(scene.colour, outcome.success, outcome.wrong_object, strict=True)
    ]
    moments = [tabletop.render(scene, path[:, moment], SIDE) for moment in range(path.shape[1])]
    return write_film(folder, moments, titles, {"path": path.tolist()})


def write_robot(session: Session, settings: Settings, objective: Objective, robot: Robot, folder: Path) -> list[Path]:
    """Play the first episodes in an environment of gymnasium again and draw them; return the files. Collective."""
    count = min(EPISODES, settings.eval_episodes)
    session.parallel.module.eval()
    with session.precision.casting():
        episodes = play_episodes(session, settings, objective, robot, list(range(count)))
    session.parallel.module.train()
    if not session.world.is_main:
        return []
    ends = [each.end() for each in episodes]
    titles = [f"{robot.task[:60]}: {'done' if end.success else 'not done'}" for end in ends]
    last = max(len(each.history) for each in episodes) - 1
    moments = [
        torch.stack([_picture(robot, each.history[: round(at) + 1]) for each in episodes])
        for at in np.linspace(0, last, min(last + 1, _MOMENTS))
    ]
    facts = {name: [getattr(end, field) for end in ends] for name, field in _FACTS.items()}
    return write_film(folder, moments, titles, facts)


def _picture(robot: Robot, history: list[Any]) -> Tensor:
    """Return the image of the first camera after observations, [3, SIDE, SIDE] in [0, 1]."""
    image = Image.fromarray(robot.view(history).images[0]).resize((SIDE, SIDE))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
