"""A causal language model of transformers as a newcomer would bring it: a model, samples, a loss, an optimizer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

from torchyard_trainers.core.losses import IGNORE, linear_cross_entropy
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload

SAMPLES = 4096  # of random tokens; what is learned does not matter here
RATE, CLIP = 3e-4, 1.0


class Sizes(NamedTuple):
    """Of a model, and of a step."""

    width: int = 384
    layers: int = 6
    vocabulary: int = 8192
    length: int = 128
    batch: int = 8
    steps: int = 10**6


def build(sizes: Sizes) -> LlamaForCausalLM:
    """Make the model; the same weights every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=sizes.width,
        intermediate_size=8 * sizes.width // 3,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.width // 64,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def texts(sizes: Sizes) -> Tensor:
    """Return all samples: [SAMPLES, length] int64."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(sizes.vocabulary, (SAMPLES, sizes.length), generator=generator)


class Learner(nn.Module):
    """The model and its loss: only inside a forward pass is the head of a sharded model whole."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.language = build(sizes)

    def forward(self, text: Tensor, weights: Tensor) -> Tensor:
        """Sum the cross-entropy of each next token: [B, T] int64, [B] -> one number."""
        hidden = self.language.model(input_ids=text[:, :-1]).last_hidden_state
        target = text[:, 1:].masked_fill(weights[:, None] == 0, IGNORE)
        return linear_cross_entropy(hidden.flatten(0, 1), self.language.lm_head.weight, target.flatten())


class Lm(Workload):
    """See `torchyard_trainers.core.workload.Workload`."""

    log_every = 10
    max_grad_norm = CLIP

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.total_steps, self.global_batch = sizes, sizes.steps, sizes.batch
        self.eval_every = sizes.steps
        self.identity: Mapping[str, str | int | float] = {"trainer.name": "lm", "width": sizes.width}
        self.architecture = ("trainer.name", "width")
        self.texts = texts(sizes)

    def build(self) -> nn.Module:
        return Learner(self.sizes)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.language.model.layers)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return AdamW(model.parameters(), lr=RATE, weight_decay=0.1, fused=True)

    def learning_rate(self, _step: int) -> float:
        return RATE

    def begin(self, _session: Session) -> dict[str, float]:
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        with session.data_wait:
            self.texts = self.texts.to(batch.ids.device)  # once
            text = self.texts[batch.ids % SAMPLES]
        return LossOutput(session.parallel.forward(text, batch.weights) / (self.sizes.length - 1), {})

    def after_step(self, _session: Session, _step: int, _means: Mapping[str, float]) -> dict[str, float]:
        return {}

    def evaluate(self, _session: Session) -> dict[str, float]:
        return {}

    def score(self, _metrics: Mapping[str, float]) -> float | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def summary(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        return {"text": f"loss {metrics['loss']:.3f}"}
