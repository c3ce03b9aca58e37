"""Parameters of workloads that learn by PPO, and their metrics. Imports no torch."""

from typing import Annotated

from msgspec import Meta, Struct

from torchyard_trainers.core.parameters import Count, Positive, Share, doc


class PpoParams(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Fields that all of these workloads have; the preset fills in what is absent.

    Each workload says which presets and environments there are.
    """

    preset: str
    environment: str
    environment_steps: Annotated[
        Count | None, doc("Steps of all environments together; rounded up to whole rollouts.")
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, environments, actions and order of samples.")
    ] = 1
    environments: Annotated[
        Count | None, doc("Environments over all ranks, each a sample; parallelism.globalBatchSize overrides it.")
    ] = None
    horizon: Annotated[Count | None, doc("Steps of each environment in a rollout, a multiple of minibatches.")] = None
    epochs: Annotated[Count | None, doc("Passes over a rollout.")] = None
    minibatches: Annotated[
        Count | None, doc("Optimizer steps of a pass; each sees every environment at other times of the rollout.")
    ] = None
    gamma: Annotated[Share | None, doc("Discount of a step.")] = None
    gae_lambda: Annotated[Share | None, doc("Decay of generalised advantage estimation (Schulman 2015).")] = None
    clip: Annotated[Positive, doc("Half width of the range that the ratio of probabilities is clipped to.")] = 0.2
    value_coefficient: Annotated[Annotated[float, Meta(ge=0)], doc("Weight of the value loss.")] = 0.5
    entropy_coefficient: Annotated[Annotated[float, Meta(ge=0)] | None, doc("Weight of the entropy bonus.")] = None
    max_grad_norm: Annotated[Positive, doc("Norm that gradients are clipped to.")] = 0.5
    eval_episodes: Annotated[Count | None, doc("Greedy episodes of an evaluation.")] = None
    eval_every: Annotated[Count | None, doc("Rollouts between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between two lines of output.")] = 64


class PpoSettings(Struct, frozen=True, kw_only=True):
    """These fields with every value filled in."""

    environment_steps: int
    seed: int
    environments: int
    horizon: int
    epochs: int
    minibatches: int
    gamma: float
    gae_lambda: float
    clip: float
    value_coefficient: float
    entropy_coefficient: float
    max_grad_norm: float
    eval_episodes: int
    eval_every: int
    log_every: int

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made with one rollout."""
        return self.epochs * self.minibatches

    @property
    def rollouts(self) -> int:
        """Rollouts of the whole run."""
        return -(-self.environment_steps // (self.environments * self.horizon))


METRICS = (
    *("policyLoss", "valueLoss", "entropy", "approxKl", "clipFraction"),
    *("episodes", "rolloutEpisodes", "episodeReturn", "explainedVariance"),
)
"""Metrics that they report beside those of every workload."""
