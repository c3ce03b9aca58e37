"""The reference of DPO, GRPO and PPO: this rank's parts of what is trained, and nothing else."""

import copy

import pytest
import torch
from little_rl import session_of

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.memory.forecast import imagined_world
from torchyard_trainers.core.named_tensors import local_part
from torchyard_trainers.core.parallel import parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.lm.models import build_model
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.scoring import Reference, scorer
from torchyard_trainers.lm.task import LanguageModeling
from torchyard_trainers.lm.tokens import character_tokenizer


@pytest.fixture
def adapted():
    model = build_model("tiny-qwen3", character_tokenizer(), seed=1)
    model.lm = add_lora(model.lm, rank=2, alpha=4.0)
    return model


def test_the_reference_scores_with_the_weights_it_copied_and_training_keeps_its_own():
    work = LanguageModeling(resolve_params({"method": "grpo", "klCoefficient": 0.1}, Parallelism()))
    session = session_of(work)
    model, reference = session.parallel.module, work._reference
    tokens, labels = torch.tensor([[5, 6, 7], [8, 9, 4]]), torch.tensor([[6, 7, 2], [9, 4, 2]])
    reference.renew()
    expected = scorer(session)(tokens, labels)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.1)
    trained = copy.deepcopy(model.state_dict())
    found = reference.scorer(session)(tokens, labels)
    assert found.log_probability.equal(expected.log_probability)
    assert all(each.equal(trained[name]) for name, each in model.state_dict().items())
    assert not scorer(session)(tokens, labels).log_probability.equal(expected.log_probability)


def test_the_reference_of_adapters_is_adapters(adapted):
    learning = {name for name, each in adapted.named_parameters() if each.requires_grad}
    assert Reference(adapted).state().keys() == learning
    assert all("lora_" in name for name in learning)


def test_the_reference_of_a_sharded_model_is_sharded():
    settings = Parallelism(strategy="fsdp")
    with imagined_world(4, 4) as world:
        model = build_model("tiny-qwen3", character_tokenizer(), seed=1)
        total = sum(each.numel() for each in model.parameters())
        precision = Precision("fp32", world.device, sharded=True)
        blocks = list(model.lm.base_model.layers)
        parallelize(model, blocks, "fsdp", settings=settings, precision=precision, world=world)
        held = sum(local_part(each)[0].numel() for each in Reference(model).state().values())
    assert total / 4 <= held < total / 3
