"""The peer of `vla.py`, in an environment that has lerobot 0.4.4: LeRobot's dataset, loader and update of a policy.

    vla_peer.py FOLDER BATCH CHUNK

Writes a dataset into FOLDER with LeRobot's own writer, says {"ready": true}, and then makes as many steps as each line
asks for: {"steps", "seconds"}. The policy is the tiny pi0 of transformers as it comes, with the library's own loss; its
images are scaled, and its state and actions normalised, on the device.
"""

import shutil
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from sides import processor_seconds, say
from torch import nn

# One of LeRobot's policies, which nothing here uses, cannot be imported beside transformers 5.
_unused = types.ModuleType("lerobot.policies.groot.modeling_groot")
_unused.GrootPolicy = type("GrootPolicy", (), {})
sys.modules[_unused.__name__] = _unused

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.datasets.utils import cycle  # noqa: E402
from lerobot.scripts.lerobot_train import update_policy  # noqa: E402
from lerobot.utils.logging_utils import AverageMeter, MetricsTracker  # noqa: E402

from torchyard_trainers.vla.models import config_of  # noqa: E402

EPISODES, LENGTH, SIZE, FPS, WORKERS = 24, 40, 64, 10, 2
CAMERA, STATE, ACTION = "observation.images.top", "observation.state", "action"
TASKS = ("move to the left", "move to the right")


def write(folder: Path) -> None:
    """Write episodes in which a bright square moves to the left or to the right."""
    shutil.rmtree(folder, ignore_errors=True)
    features = {
        STATE: {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        ACTION: {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        CAMERA: {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]},
    }
    dataset = LeRobotDataset.create("bench/square", fps=FPS, features=features, root=folder, use_videos=False)
    random = np.random.default_rng(0)
    for episode in range(EPISODES):
        at, step = random.uniform(0.3, 0.7, 2).astype(np.float32), 0.01 if episode % 2 else -0.01
        for _ in range(LENGTH):
            image = random.integers(0, 40, (SIZE, SIZE, 3), dtype=np.uint8)
            left, top = (at * (SIZE - 8)).astype(int)
            image[top : top + 8, left : left + 8] = 220
            action = np.array([step, 0.0], np.float32) + random.normal(0, 1e-3, 2).astype(np.float32)
            frame = {STATE: at.copy(), ACTION: action, CAMERA: image, "task": TASKS[episode % 2]}
            dataset.add_frame(frame)
            at = np.clip(at + action, 0, 1)
        dataset.save_episode()
    dataset.finalize()


class Policy(nn.Module):
    """The pi0 of transformers behind the interface of LeRobot's policies."""

    def __init__(self, chunk: int, statistics: dict) -> None:
        from transformers import PI0ForConditionalGeneration

        super().__init__()
        config = config_of("tiny-pi0", None, chunk=chunk)
        self.pi0 = PI0ForConditionalGeneration._from_config(config, attn_implementation="sdpa")  # noqa: SLF001
        vision = config.vlm_config.vision_config
        self._size, self._image = vision.image_size, config.vlm_config.image_token_id
        self._patches = (vision.image_size // vision.patch_size) ** 2
        self._words = {task: torch.tensor([1, 2, 3, 4, 5 + number]) for number, task in enumerate(TASKS)}
        self._scaling = {
            name: tuple(torch.as_tensor(statistics[name][each], dtype=torch.float32) for each in ("mean", "std"))
            for name in (STATE, ACTION)
        }

    def forward(self, batch: dict) -> tuple[torch.Tensor, dict]:
        """Return the loss of a batch of LeRobot's loader."""
        images = nn.functional.interpolate(batch[CAMERA], (self._size, self._size), mode="bilinear") * 2 - 1
        words = torch.stack([self._words[task] for task in batch["task"]])
        ids = torch.cat([torch.full((len(words), self._patches), self._image), words], 1)
        normal = {name: (batch[name] - mean) / (std + 1e-8) for name, (mean, std) in self._scaling.items()}
        found = self.pi0(
            state=normal[STATE],
            input_ids=ids,
            pixel_values=images[:, None],
            pixel_attention_mask=torch.ones(len(words), 1, dtype=torch.bool),
            attention_mask=torch.ones_like(ids),
            actions=normal[ACTION],
        )
        return found.loss, {}


def main() -> None:
    """See the module."""
    folder, batch, chunk = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    write(folder)
    times = {ACTION: [number / FPS for number in range(chunk)]}
    dataset = LeRobotDataset("bench/square", root=folder, delta_timestamps=times)
    policy = Policy(chunk, dataset.meta.stats)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=WORKERS, prefetch_factor=2, drop_last=False
    )
    policy, optimizer, loader, scheduler = accelerator.prepare(policy, optimizer, loader, scheduler)
    batches = cycle(loader)
    meters = {name: AverageMeter(name) for name in ("loss", "grad_norm", "lr", "update_s", "dataloading_s")}
    tracker = MetricsTracker(batch, dataset.num_frames, dataset.num_episodes, meters, initial_step=0)
    say({"ready": True})
    for line in sys.stdin:
        began, spent = time.perf_counter(), processor_seconds()
        for _ in range(int(line)):
            tracker, _ = update_policy(
                tracker, policy, next(batches), optimizer, 1.0, accelerator=accelerator, lr_scheduler=scheduler
            )
        seconds, processor = time.perf_counter() - began, processor_seconds() - spent
        say({"steps": int(line), "seconds": seconds, "processor": processor})


if __name__ == "__main__":
    main()
