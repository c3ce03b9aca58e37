"""`vlm` begins with a Hugging Face folder, and exports one that transformers and peft load with the same answers."""

import json

import pytest
import torch
import transformers
from tests.support.trainers.gangs import AT_ONCE, Yard
from tests.support.trainers.tokenizers import write_tokenizer

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.world import World
from torchyard_trainers.rl.tabletop import ACTIONS
from torchyard_trainers.vlm.models import config_of
from torchyard_trainers.vlm.params import resolve_params
from torchyard_trainers.vlm.task import VisionLanguagePolicy

SMALL = {"environments": 4, "horizon": 4, "minibatches": 2, "epochs": 1, "evalEpisodes": 4, "lrFinal": 3e-3}
ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1)


def settings(rollouts, formats=("hf",), **params):
    params = SMALL | {"environmentSteps": 16 * rollouts, "evalEvery": 1, "logEvery": 1} | params
    own = {"parallelism": AT_ONCE, "export": {"formats": list(formats)}, "logging": {"tensorboard": False}}
    return {"trainer": {"name": "vlm", "params": params}, "device": "cpu", **own}


def written(folder, name):
    """Write the folder of a tiny model as transformers does."""
    torch.manual_seed(5)
    config = config_of(name, None)
    model = getattr(transformers, FAMILIES[config.model_type][1])(config)
    model.save_pretrained(folder)
    words = ["[unk]", *ACTIONS, "reach", "the", "can"]
    special = {"<|vision_start|>": config.vision_start_token_id, "<|vision_end|>": config.vision_end_token_id}
    write_tokenizer(folder, {word: 3 + place for place, word in enumerate(words)} | special)
    return model


def answers(model, work, images):
    """Return the logits of the actions by the library alone, for images [m, 3, 32, 32]."""
    prompt, tower, many = work.prompt, work.build().tower, len(images)
    ids = [*prompt.before, *[model.config.image_token_id] * tower.tokens, *prompt.after]
    ids = torch.tensor([ids] * many)
    with torch.no_grad():
        found = model.eval()(
            input_ids=ids,
            pixel_values=tower.patches(images),
            image_grid_thw=torch.tensor([[1, tower.side, tower.side]] * many),
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
        )
    return found.logits[:, -1][:, prompt.actions]


@pytest.mark.parametrize("name", ["tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl"])
def test_a_folder_of_transformers_is_the_policy_with_its_weights(tmp_path, name):
    model = written(tmp_path, name)
    work = VisionLanguagePolicy(resolve_params(SMALL | {"pretrained": str(tmp_path)}, Parallelism()))
    policy = built(work)
    allocate(policy, torch.device("cpu"))
    fill(work, policy, ALONE)
    images = torch.rand(2, 3, 32, 32)
    assert torch.allclose(policy(images).logits, answers(model, work, images), atol=1e-5)
    assert policy(images).value.tolist() == [0.0, 0.0]


@pytest.mark.e2e
def test_a_run_exports_adapters_and_the_merged_model_and_goes_on_from_it(fork_server, tmp_path):
    from peft import PeftModel

    base = tmp_path / "base"
    written(base, "tiny-qwen2-vl")
    yard = Yard(fork_server, tmp_path / "first")
    yard.root.mkdir()
    yard.train(settings(2, ("hf", "hf-merged"), pretrained=str(base), loraRank=2))
    exports = yard.checkpoints / "export"
    plain = transformers.Qwen2VLForConditionalGeneration.from_pretrained(base)
    merged = transformers.Qwen2VLForConditionalGeneration.from_pretrained(exports / "hf-merged")
    adapted = PeftModel.from_pretrained(
        transformers.Qwen2VLForConditionalGeneration.from_pretrained(base), exports / "hf"
    )
    own = SMALL | {"pretrained": str(exports / "hf-merged")}
    work = VisionLanguagePolicy(resolve_params(own, Parallelism()))
    images = torch.rand(2, 3, 32, 32)
    found = answers(merged, work, images)
    assert torch.allclose(answers(adapted, work, images), found, atol=1e-5)
    assert not torch.allclose(answers(plain, work, images), found, atol=1e-4)
    assert (exports / "hf-merged" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    last = yard.metrics()[-1]
    again = Yard(fork_server, tmp_path / "second")
    again.root.mkdir()
    again.train(settings(1, pretrained=str(exports / "hf-merged")))
    summary = json.loads((again.checkpoints / "final" / "summary.json").read_text())
    assert summary["successRateUntrained"] == last["successRate"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"config.json is not a config of a model"),
        ('{"model_type": "gemma"}', r"has model_type 'gemma', expected qwen2_vl, qwen2_5_vl, qwen3_vl"),
        ('{"model_type": "qwen2_vl", "quantization_config": {}}', r"describes quantized weights"),
        (
            '{"model_type": "qwen2_vl", "text_config": {"hidden_size": "x"}}',
            r"is not a config of a model: Validation er",
        ),
    ],
)
def test_a_folder_of_another_kind_is_named(tmp_path, config, message):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=message):
        VisionLanguagePolicy(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))


def test_a_folder_without_its_tokenizer_or_with_other_colours_is_refused(tmp_path):
    written(tmp_path, "tiny-qwen2-vl")
    own = SMALL | {"pretrained": str(tmp_path)}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_std": [0.5, 0.5, 0.5]}))
    with pytest.raises(ConfigError, match=r"has image_std \[0.5, 0.5, 0.5\], but images are scaled by \[0.2686"):
        VisionLanguagePolicy(resolve_params(own, Parallelism()))
    (tmp_path / "preprocessor_config.json").unlink()
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tmp_path / "tokenizer.json").rename(tokens / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"has no tokenizer.json, .* copy that of the published model, such as Qwen"):
        VisionLanguagePolicy(resolve_params(own, Parallelism()))
    work = VisionLanguagePolicy(resolve_params(own | {"tokenizer": str(tokens)}, Parallelism()))
    assert work.prompt.after == [59, 12, 13, 14]
