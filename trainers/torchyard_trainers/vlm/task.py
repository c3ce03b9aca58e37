"""PPO of a vision-language model as a workload of the training loop.

As in `vecrl`, an optimizer step is a minibatch, a sample is an environment, and every minibatch holds all environments
at some of the time steps of a rollout: a rank needs the rollouts of its own environments only.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.checkpoints.checkpoint import GEOMETRY, PROMPT
from torchyard_trainers.core.evaluation import wilson
from torchyard_trainers.core.geometry import digest_of, geometry_of
from torchyard_trainers.core.graphs import GraphedLoss
from torchyard_trainers.core.image_processor import check_colours
from torchyard_trainers.core.metrics.plots import write_curve
from torchyard_trainers.core.optimizers import adamw
from torchyard_trainers.core.parallel import SHARDED
from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.vision_language import RENAMED
from torchyard_trainers.core.vocabulary import open_vocabulary
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload
from torchyard_trainers.rl.evaluation import Evaluator
from torchyard_trainers.rl.ppo import Minibatch, losses
from torchyard_trainers.rl.rollout import metrics_of
from torchyard_trainers.vlm import report
from torchyard_trainers.vlm.cloning import clone_loss, demonstrations
from torchyard_trainers.vlm.environments import build_environment
from torchyard_trainers.vlm.models import TOKENIZER_SOURCE, Policy, build_policy, check_size, config_of
from torchyard_trainers.vlm.params import Settings
from torchyard_trainers.vlm.prompt import FIELD, make_prompt
from torchyard_trainers.vlm.rollouts import Player
from torchyard_trainers.vlm.tower import colours_of, granularity

SUCCESS = "successRate"  # a measure that is 0 or 1 for each episode
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")  # of the text model; the vision tower has other names


class VisionLanguagePolicy(Workload):
    """The workload `vlm`."""

    deferred = True

    def __init__(self, settings: Settings) -> None:
        """Store resolved parameters."""
        self.settings = settings
        self.total_steps = settings.steps
        self.global_batch = settings.environments
        self.log_every = settings.log_every
        self.eval_every = settings.eval_every * settings.steps_per_rollout
        self.save_every = settings.steps_per_rollout
        self.max_grad_norm = settings.max_grad_norm
        origin = "model" if settings.pretrained is None else "pretrained"
        own = [
            "environment",
            "task",
            "grid",
            "image_size",
            "seed",
            origin,
            "prompt",
            "horizon",
            "epochs",
            "minibatches",
        ]
        own += ["head", "pool"] if settings.head == "mlp" else []
        own += ["clone_steps"] if settings.clone_steps else []
        own += ["lora_rank", "lora_alpha"] if settings.lora_rank is not None else []
        self.identity: Mapping[str, str | int | float] = {
            "trainer.name": "vlm",
            **{f"trainer.params.{name}": getattr(settings, name) for name in own},
            "global batch (trainer.params.environments)": settings.environments,
            "seed": settings.seed,
        }
        self.architecture = ["trainer.name", "trainer.params.image_size"]
        self.architecture += ["trainer.params.model"] if settings.pretrained is None else []
        self.architecture += ["trainer.params.head"] if settings.head == "mlp" else []
        self.architecture += ["trainer.params.lora_alpha"] if settings.lora_rank is not None else []
        folder = Path(settings.pretrained) if settings.pretrained is not None else None
        self.pretrained = Pretrained(folder, prefix="vlm.", renamed=RENAMED) if folder is not None else None
        self.environment = build_environment(settings)
        self._config = config_of(settings.model, folder)
        check_size(self._config, settings.image_size)
        if folder is not None:
            check_colours(folder, FIELD, colours_of(self._config.vision_config))
        tokenizer = Path(settings.tokenizer) if settings.tokenizer is not None else None
        self.prompt = make_prompt(
            self._config,
            self.environment.instruction,
            self.environment.action_names,
            style=settings.prompt,
            vocabulary=open_vocabulary(folder, tokenizer, source=TOKENIZER_SOURCE),
        )
        tokens = [self.prompt.before, self.prompt.after, self.prompt.actions]
        self.fingerprints = {GEOMETRY: geometry_of(self._config), PROMPT: digest_of(tokens)}
        side = settings.image_size // granularity(self._config.vision_config)
        self._tokens = len(self.prompt.before) + side**2 + len(self.prompt.after)  # of image and prompt
        self.player = Player(settings, self.environment)
        self._episodes = torch.zeros((), dtype=torch.int64)
        self._learn: Callable[..., tuple[Tensor, Mapping[str, Any]]] | None = None
        self._clock = 0.0
        self._paces: list[float] = []  # environment steps per second of each rollout after the first

    def build(self) -> nn.Module:
        """See `Workload`."""
        settings = self.settings
        policy = build_policy(self._config, self.prompt, settings.image_size, head=settings.head, pool=settings.pool)
        if settings.lora_rank is not None:
            targets = settings.lora_targets or ATTENTION
            policy.vlm = add_lora(policy.vlm, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets)
        if settings.freeze_vision:
            policy.vlm.model.visual.requires_grad_(requires_grad=False)
        return policy

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the layers of vision tower and language model."""
        assert isinstance(model, Policy)
        return model.blocks

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW; norms, biases and embeddings do not decay, heads have a learning rate of their own."""
        settings = self.settings
        heads = ("value_head.*", "action_head.*") if settings.head == "mlp" else ("value_head.*",)
        rates = dict.fromkeys(heads, settings.value_lr_scale)
        return adamw(model, settings.lr, weight_decay=settings.weight_decay, eps=1e-5, rates=rates)

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step: the same for all minibatches of a rollout, rising, then linear to `lr_final`."""
        settings = self.settings
        if step < settings.clone_steps:
            return settings.clone_lr
        rollout = (step - settings.clone_steps) // settings.steps_per_rollout
        if rollout < settings.warmup_rollouts:
            return settings.lr * (rollout + 1) / (settings.warmup_rollouts + 1)
        share = (rollout - settings.warmup_rollouts) / max(settings.rollouts - settings.warmup_rollouts, 1)
        return settings.lr + (settings.lr_final - settings.lr) * share

    def begin(self, session: Session) -> dict[str, float]:
        """Measure the policy before training."""
        metrics = self.evaluate(session)
        return {**metrics, f"{self.environment.measure}Untrained": metrics[self.environment.measure], "episodes": 0.0}

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        """Play the rollout that starts at this step."""
        number, index = divmod(step - self.settings.clone_steps, self.settings.steps_per_rollout)
        # With dropout, the policy would have other probabilities in a step than in its rollout.
        session.parallel.module.train(number < 0)
        if number >= 0 and not index:
            session.reporter.phase("rollout")
            self.player.prepare(session, number)
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return PPO's loss on a minibatch of the rollout; in the first `cloneSteps` that of cloning the expert."""
        settings = self.settings
        own = batch.step - settings.clone_steps
        if own < 0:
            with session.data_wait:
                state, action = demonstrations(self.environment, settings, batch.ids)
                images = self.environment.observe(state).reshape(-1, 3, settings.image_size, settings.image_size)
            answer = session.parallel.forward(images, shares=session.parallel.strategy not in SHARDED)
            return clone_loss(answer, action, batch.weights)
        with session.data_wait:
            environments = batch.ids % settings.environments
            inputs, minibatch = self.player.minibatch(session, environments, own % settings.steps_per_rollout)
        if self._learn is None:
            self._learn = self._learner(session)
        return LossOutput(*self._learn(inputs, minibatch, batch.weights))

    def _learner(
        self, session: Session
    ) -> Callable[[dict[str, Any], Minibatch, Tensor], tuple[Tensor, Mapping[str, Tensor]]]:
        """Return the function that computes PPO's loss; compiled, that of adapters is a CUDA graph in one process.

        The gradients of a graph exist twice, which would be too much for all weights.
        """
        settings, model = self.settings, session.parallel.forward
        shares = session.parallel.strategy not in SHARDED

        def learn(inputs: dict[str, Any], minibatch: Minibatch, weights: Tensor) -> tuple[Tensor, Mapping[str, Any]]:
            answer = model(**inputs, shares=shares)
            shape = minibatch.action.shape
            logits, value = answer.logits.view(*shape, -1), answer.value.view(shape)
            found = losses(logits, value, minibatch, weights, settings)
            return found.loss, found.statistics

        few = settings.lora_rank is not None and session.parallel.module.sees_alike
        if settings.compile and few and GraphedLoss.serves(session.parallel.strategy, session.precision.name):
            return GraphedLoss(learn, list(session.parallel.module.parameters()))
        return learn

    def after_step(self, session: Session, step: int, _means: Mapping[str, float]) -> dict[str, float]:
        """Report the rollout's metrics after its last minibatch; evaluate when due."""
        own = step - self.settings.clone_steps
        metrics: dict[str, float] = {}
        if own > 0 and own % self.settings.steps_per_rollout == 0:
            facts = self.player.finish(session)
            self._episodes += int(facts["episodes"])
            count = self.settings.environments * self.settings.horizon
            metrics = {"episodes": float(self._episodes), **metrics_of(facts, count), **self._pace(session)}
        if own == 0 or (own > 0 and own % self.eval_every == 0) or step == self.total_steps:
            session.reporter.phase("eval")
            began = time.monotonic()
            metrics |= self.evaluate(session)
            self._clock += time.monotonic() - began if self._clock else 0.0
        if own == 0:
            metrics[f"{self.environment.measure}Cloned"] = metrics[self.environment.measure]
        return metrics

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return the mean quality of greedy and of sampled episodes, and the mean length of greedy ones.

        Of a success rate, also its 95 % confidence intervals.
        """
        settings, module, measure = self.settings, session.parallel.module, self.environment.measure
        sharded = session.parallel.strategy in SHARDED
        module.eval()
        evaluator = Evaluator(
            Greedy(module, settings.image_size),
            self.environment,
            everywhere=(lambda over: everywhere(session, over)) if sharded else bool,
        )
        metrics: dict[str, float] = {}
        for name in (measure, f"{measure}Sampled"):
            played = evaluator.episodes(
                session, settings.eval_episodes, at_once=settings.eval_batch, sampled=name != measure
            )
            metrics[name] = float(played.quality.mean())
            if measure == SUCCESS:
                low, high = wilson(float(played.quality.sum()), len(played.quality))
                metrics |= {f"{name}Low": low, f"{name}High": high}
            if name == measure:
                metrics["episodeLength"] = float(played.length.mean())
        module.train()
        return metrics

    def measure(self, _session: Session) -> dict[str, float]:
        """See `Measured`: the rate of a rollout with its optimizer steps, the median of those of the benchmark."""
        return self._rates(statistics.median(self._paces)) if self._paces else {}

    def write_report(self, session: Session, folder: Path, curves: Path) -> list[Path]:
        """See `WritesReport`: pictures of episodes, and of the measure over steps."""
        policy, measure = Greedy(session.parallel.module, self.settings.image_size), self.environment.measure
        files = report.write(session, self.settings, self.environment, policy, folder)
        return files + write_curve(folder, curves, measure, f"{measure} over steps") if files else []

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Return the negative mean quality of greedy episodes: lower is better."""
        found = metrics.get(self.environment.measure)
        return None if found is None else -found

    def state(self) -> dict[str, Any]:
        """See `Workload`."""
        return {**self.player.state(), "episodes": self._episodes}

    def assets(self) -> Mapping[str, Path | str]:
        """Return the files that encode the prompt."""
        return self.prompt.assets

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """See `Workload`."""
        settings, measure = self.settings, self.environment.measure
        kinds = ("", "Low", "High", "Sampled", "SampledLow", "SampledHigh", "Untrained", "Cloned")
        names = [*(f"{measure}{each}" for each in kinds), "episodeLength", "episodeReturn", "episodes"]
        steps = settings.rollouts * settings.horizon * settings.environments
        model = settings.model if settings.pretrained is None else settings.pretrained
        interval = (
            f" ({metrics[f'{measure}Low']:.3f} to {metrics[f'{measure}High']:.3f} at 95 %)"
            if f"{measure}Low" in metrics
            else ""
        )
        text = (
            f"{model}, {self.environment.instruction}: {measure} {metrics[measure]:.3f}{interval} over "
            f"{settings.eval_episodes} greedy episodes after {steps} environment steps, sampled "
            f"{metrics.get(f'{measure}Sampled', math.nan):.3f}, untrained "
            f"{metrics.get(f'{measure}Untrained', math.nan):.3f}"
        )
        return {
            "trainer": "vlm",
            "model": model,
            "environmentSteps": steps,
            **{name: metrics[name] for name in names if name in metrics},
            "text": text,
        }

    def _pace(self, session: Session) -> dict[str, float]:
        """Return the environment steps per second since the rollout before, averaged over the clocks of all ranks."""
        now, before, self._clock = time.monotonic(), self._clock, time.monotonic()
        seconds = session.world.total(torch.tensor([now - before], dtype=torch.float64)).item() / session.world.size
        if not before:
            return {}
        self._paces.append(self.settings.environments * self.settings.horizon / seconds)
        return self._rates(self._paces[-1])

    def _rates(self, pace: float) -> dict[str, float]:
        """Return environment steps per second, and the tokens of image and prompt that the policy read for them."""
        return {"envStepsPerSecond": pace, "tokensPerSecond": pace * self._tokens}


class Greedy:
    """A policy as evaluations ask it: logits [n, 1, actions] of observations [n, 1, D]."""

    def __init__(self, module: nn.Module, size: int) -> None:
        self._module, self._size = module, size

    def logits(self, observations: Tensor) -> Tensor:
        """Return unnormalised log-probabilities [n, 1, actions]."""
        answer = self._module(observations.reshape(-1, 3, self._size, self._size))
        return answer.logits[:, None]


def everywhere(session: Session, value: bool) -> bool:
    """Return whether a value is true on every rank. Collective."""
    missing = torch.tensor([float(not value)], dtype=torch.float64, device=session.world.device)
    return not session.world.total(missing).item()
