"""Environment steps per second of a vision-language policy: `vlm`, and one image per call as scripts do it.

    python benchmarks/trainers/vlm.py [--rounds N] [--model NAME] [--device DEVICE]

Both play the same tabletop with the same model and learn by PPO with as many passes. The peer makes a PIL image of each
observation, runs the library's image processor, lets `generate` sample one token, and learns from one image per
forward pass, accumulating the gradients of a minibatch. Both take turns, so that a busy machine slows both.
"""

import argparse
import statistics
import time

import torch
import transformers
from PIL import Image

from torchyard_trainers import registry
from torchyard_trainers.core.config import Config, Parallelism, Trainer
from torchyard_trainers.core.parallel import parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.core.weights import built, fill
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World

FEW = 32  # environment steps of the peer in a turn


def main() -> None:
    """Run both in turns and print what each reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tiny-qwen2-vl")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    config = Config(trainer=Trainer(name="vlm", params={"model": options.model}))
    world = World(0, 1, 0, device, grouped=False, local_size=1)
    work = registry.build(config)
    precision = Precision("fp32", device, sharded=False)
    parallel = parallelize(
        built(work),
        [],
        "single",
        settings=Parallelism(),
        precision=precision,
        world=world,
        fill=lambda model: fill(work, model, world),
    )
    session = Session(parallel, precision, world, Reporter(None, rank=0, local_rank=0, round_number=0), None)
    ours, theirs = Ours(work, session), Peer(work, parallel.module, device)
    found = [(ours.turn(), theirs.turn()) for _ in range(options.rounds + 1)][1:]  # the first one warms up
    for index, name in enumerate(("rollout", "rollout and learning")):
        pairs = [(mine[index], other[index]) for mine, other in found]
        ratios = [mine / other for mine, other in pairs]
        print(
            f"{name}: vlm {statistics.median(mine for mine, _ in pairs):.0f} environment steps/s, one image per call "
            f"{statistics.median(other for _, other in pairs):.1f}; ratio {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f})"
        )


def rates(steps: int, device: torch.device, *parts: object) -> list[float]:
    """Return steps per second after each part of a turn, counted from its beginning."""
    began, found = time.perf_counter(), []
    for part in parts:
        part()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(steps / (time.perf_counter() - began))
    return found


class Ours:
    """A rollout of the workload, and the optimizer steps made with it."""

    def __init__(self, work: object, session: Session) -> None:
        self._work, self._session = work, session
        self._optimizer = work.optimizer(session.parallel.module)

    def turn(self) -> list[float]:
        """Return steps per second of the rollout, and with learning."""
        settings = self._work.settings

        def learn() -> None:
            for step in range(settings.steps_per_rollout):
                optimize(self._work, self._session, self._optimizer, step, {})
            self._work.player.finish(self._session)

        steps = settings.environments * settings.horizon
        return rates(steps, self._session.world.device, lambda: self._work.prepare(self._session, 0), learn)


class Peer:
    """One environment after the other, one image per call of a model of transformers that is as it comes."""

    def __init__(self, work: object, policy: torch.nn.Module, device: torch.device) -> None:
        config = policy.vlm.config
        kind = getattr(transformers, FAMILIES[config.model_type][1])
        self._model = kind._from_config(config, attn_implementation="sdpa").to(device)  # noqa: SLF001
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._work, self._device, tower = work, device, policy.tower
        size = work.settings.image_size**2
        self._processor = transformers.Qwen2VLImageProcessorPil(
            patch_size=tower.patch, min_pixels=size, max_pixels=size, size={"shortest_edge": size, "longest_edge": size}
        )
        prompt = work.prompt
        ids = torch.tensor([[*prompt.before, *[config.image_token_id] * tower.tokens, *prompt.after]], device=device)
        self._prompt = {"input_ids": ids, "mm_token_type_ids": (ids == config.image_token_id).int()}

    def turn(self) -> list[float]:
        """Return steps per second of the rollout, and with learning."""
        seen: list[tuple[dict[str, torch.Tensor], int]] = []
        environment, settings = self._work.environment, self._work.settings

        def play() -> None:
            state = environment.reset(torch.rand(1, environment.draws, device=self._device))
            for _ in range(FEW):
                inputs = self._inputs(environment.render(state, settings.image_size)[0])
                with torch.no_grad():
                    found = self._model.generate(**inputs, max_new_tokens=1, do_sample=True, pad_token_id=0)
                action = int(found[0, -1]) % environment.actions
                seen.append((inputs, action))
                numbers = torch.rand(1, environment.draws, device=self._device)
                state = environment.step(state, torch.tensor([[action]], device=self._device), numbers).state

        def learn() -> None:
            for _ in range(settings.epochs):
                for inputs, action in seen:
                    logits = self._model(**inputs).logits[0, -1, self._work.prompt.actions]
                    (-torch.log_softmax(logits, -1)[action] / len(seen)).backward()
                self._optimizer.step()
                self._optimizer.zero_grad()

        return rates(FEW, self._device, play, learn)

    def _inputs(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        pixels = (image.permute(1, 2, 0) * 255).byte().cpu().numpy()
        found = self._processor(Image.fromarray(pixels), return_tensors="pt")
        return {**self._prompt, **{name: each.to(self._device) for name, each in found.items()}}


if __name__ == "__main__":
    main()
