"""Pictures of evaluation episodes."""

from pathlib import Path

import torch

from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.film import EPISODES, SIDE, write_film
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.demonstrations import Tabletop
from torchyard_trainers.vla.evaluation import play
from torchyard_trainers.vla.objectives import Objective
from torchyard_trainers.vla.params import Settings


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
