"""A causal language model of transformers from a folder, whole or with adapters, or with initial weights."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.losses import linear_cross_entropy
from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.core.workload import LossOutput, Workload


class Language(nn.Module):
    def __init__(self, language):
        super().__init__()
        self.language = language

    def forward(self, text, weights):
        hidden = self.language.model(input_ids=text[:, :-1]).last_hidden_state
        target = text[:, 1:].masked_fill(weights[:, None] == 0, -100)
        return linear_cross_entropy(hidden.flatten(0, 1), self.language.lm_head.weight, target.flatten())

    def logits(self, text):
        return self.language(input_ids=text).logits

    def greedy(self, text, length):
        """Continue texts by `length` tokens."""
        for _ in range(length):
            text = torch.cat([text, self.language(input_ids=text).logits[:, -1:].argmax(-1)], 1)
        return text


class FolderLm(Workload):
    log_every = 1
    eval_every = 1
    entry_points = ("greedy", "logits")

    def __init__(self, params):
        self.folder = Path(params["folder"])
        self.total_steps, self.global_batch = params.get("steps", 4), 6
        self.identity = {"seed": params.get("seed", 0)}
        if params.get("pretrained", True):
            self.pretrained = Pretrained(self.folder, prefix="language.")
        self.deferred = True
        self.lora = params.get("lora", False)

    def build(self):
        language = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.folder))
        return Language(add_lora(language, rank=2, alpha=8) if self.lora else language)

    def assets(self):
        return {"chat_template.jinja": "{{ messages }}"}

    def blocks(self, model):
        return list(model.language.model.layers)

    def learning_rate(self, step):
        return 1e-3

    def begin(self, session):
        return self.evaluate(session)

    def evaluate(self, session):
        """Greedy continuations, as one number."""
        text = torch.arange(6).view(2, 3)
        with session.parallel.gathered(), torch.no_grad():
            found = session.parallel.module.greedy(text, 3)
            logits = session.parallel.module.logits(text)
        return {"greedy": float((found * torch.arange(1, 7)).sum()), "logits": float(logits.square().sum())}

    def loss(self, session, batch):
        keys = sample_keys(stream_key(1, "train"), batch.ids)[:, None]
        text = (keys % 31 + torch.arange(9) * (1 + keys % 5)) % 31
        return LossOutput(session.parallel.forward(text, batch.weights) / 8, {})


def resolve_params(params, parallelism):
    return params
