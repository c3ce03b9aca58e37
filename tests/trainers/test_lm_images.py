"""Conversations with images: records of all forms, the loss of transformers, exports, and what is refused."""

import base64
import io
import json

import pytest
import torch
import transformers
from PIL import Image
from tests.support.trainers.families import save_vision_family
from tests.support.trainers.gangs import AT_ONCE
from tests.trainers.test_lm_families import begun, exported
from torch.nn.functional import cross_entropy

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.rows import BadRecordError, TooLongError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.lm.data.images import Images
from torchyard_trainers.lm.data.records import Encoder
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

MODELS = {"tiny-qwen2-vl": "qwen2_vl", "tiny-qwen2.5-vl": "qwen2_5_vl", "tiny-qwen3-vl": "qwen3_vl"}
COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}
ANSWER = {"role": "assistant", "content": "red"}


def png(colour="red", size=(48, 32)):
    file = io.BytesIO()
    Image.new("RGB", size, COLOURS[colour]).save(file, "PNG")
    return file.getvalue()


def asks(*content):
    return {"role": "user", "content": list(content) if len(content) > 1 else content[0]}


def picture(source=None):
    return {"type": "image"} if source is None else {"type": "image", "image": source}


def written(folder, rows):
    """Write a file of records; bytes become data URLs."""
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def url(*args):
    return "data:image/png;base64," + base64.b64encode(png(*args)).decode()


def rows(many=9):
    """Images of several sizes, and a conversation without one."""
    names = list(COLOURS)
    found = [
        {
            "images": [url(names[number % 3], (24 + 9 * number, 30))],
            "messages": [asks("Which colour?"), {"role": "assistant", "content": names[number % 3]}],
        }
        for number in range(many - 1)
    ]
    return [*found, {"messages": [asks("Say red"), ANSWER]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a tiny Qwen2-VL."""
    return save_vision_family("tiny-qwen2-vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encode(folder, tmp_path_factory):
    """Encodes records as for that model; paths are those of a folder with `red.png`."""
    root = tmp_path_factory.mktemp("images")
    (root / "red.png").write_bytes(png())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    images = Images(folder, tokenizer.convert_tokens_to_ids("<|image_pad|>"), root=str(root), max_pixels=None)

    def encoded(row, **params):
        chosen = {"pretrained": str(folder), "data": ["x"], **params}
        return Encoder(resolve_params(chosen, Parallelism()), tokenizer, len(tokenizer), images=images)(row).document

    encoded.tokenizer, encoded.images, encoded.root = tokenizer, images, root
    return encoded


@pytest.mark.parametrize("name", MODELS)
def test_loss_positions_and_export_are_those_of_transformers(tmp_path, name):
    folder = save_vision_family(name, tmp_path / "model")
    work, session = begun(folder, data=[written(tmp_path, rows())], validation=[written(tmp_path, rows())], batch=4)
    model, library = session.parallel.module, getattr(transformers, FAMILIES[MODELS[name]][1])
    data = work.source.read(range(9))
    tokens, labels, seen = data["tokens"], data["labels"], data["seen"]
    marks = (tokens == model.lm.config.image_token_id).int()
    theirs = library.from_pretrained(folder).eval()
    positions, _ = theirs.model.get_rope_index(tokens, mm_token_type_ids=marks, image_grid_thw=seen.grids)
    assert seen.positions.equal(positions)

    @torch.no_grad()
    def logits(lm):
        return lm(tokens, pixel_values=seen.pixels, image_grid_thw=seen.grids, mm_token_type_ids=marks).logits

    expected = cross_entropy(logits(theirs).flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(model(tokens, labels, seen=seen, position_ids=seen.positions), expected)
    metrics = work.evaluate(session)
    assert metrics["evalLoss"] == pytest.approx(float(expected) / int((labels != -100).sum()), rel=1e-4)
    again = library.from_pretrained(exported(work, session, tmp_path / "out", "hf")).eval()
    torch.testing.assert_close(logits(again), logits(theirs), rtol=0, atol=1e-6)
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    alone = work.source.read([8])
    model(alone["tokens"], alone["labels"], seen=alone["seen"], position_ids=alone["seen"].positions).backward()
    assert [each for each, weight in model.named_parameters() if weight.grad is None] == [], "ddp needs all of them"


def test_an_image_is_a_part_of_a_message_or_in_a_column_as_path_bytes_or_url(encode):
    column = {"messages": [asks("Which?"), ANSWER]}
    forms = [
        {**column, "images": ["red.png"]},
        {**column, "image": {"bytes": png(), "path": None}},
        {"messages": [asks(picture(), {"type": "text", "text": "Which?"}), ANSWER], "images": [{"bytes": png()}]},
        {"messages": [asks(picture("red.png"), {"type": "text", "text": "Which?", "image": None}), ANSWER]},
        {"messages": [asks({"type": "image_url", "image_url": {"url": url()}}, {"text": "Which?"}), ANSWER]},
        {"prompt": [asks(picture(str(encode.root / "red.png")), {"text": "Which?"})], "completion": [ANSWER]},
    ]
    first, *others = map(encode, forms)
    assert all((each.tokens, each.learned) == (first.tokens, first.learned) for each in others)
    text = encode.tokenizer.decode(first.tokens)
    pads = "<|image_pad|>" * 6  # 32 x 48 pixels are 2 x 3 blocks of 16 x 16
    assert text.startswith(f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>Which?<|im_end|>")
    learned = [token for token, counts in zip(first.tokens, first.learned, strict=True) if counts]
    assert encode.tokenizer.decode(learned) == "red<|im_end|>\n"
    every = encode(forms[0], trainOn="all")
    assert sum(every.learned) == len(every.tokens) - 6, "a model does not say images"


@pytest.mark.parametrize(
    ("messages", "images", "problem"),
    [
        ([asks(picture(), {"text": "a"}), ANSWER], [], "has 0 images, fewer than the messages have marks for"),
        (
            [asks(picture(), {"text": "a"}), ANSWER],
            ["red.png"] * 2,
            "has 2 images, 1 more than the messages have",
        ),
        ([asks("a <|image_pad|>"), ANSWER], [], "has 1 marks of images in its text, and 0 images"),
        ([asks("a"), ANSWER], ["none.png"], "none.png: No such file or directory; trainer.params.imageFolder"),
        ([asks("a"), ANSWER], ["https://example.com/a.png"], "is an address, and nothing is downloaded"),
        ([asks("a"), ANSWER], [{"bytes": b"no image"}], "not a readable image"),
        ([asks("a"), ANSWER], [{"bytes": png(size=(1, 400))}], "aspect ratio"),
        ([asks("a"), {"role": "assistant", "content": [picture("red.png")]}], [], "in a turn 2 of the assistant"),
        ([asks({"type": "video"}, {"text": "a"}), ANSWER], [], "has a part that is 'video', expected text or image"),
    ],
)
def test_a_record_with_a_wrong_image_is_a_bad_one(encode, messages, images, problem):
    with pytest.raises(BadRecordError) as caught:
        encode({"messages": messages, "images": images})
    assert problem in str(caught.value)


def test_an_image_is_never_cut_and_becomes_smaller(encode, folder):
    row = {"messages": [asks("Which?"), ANSWER], "images": [{"bytes": png(size=(640, 640))}]}
    with pytest.raises(TooLongError, match=r"16 of them of images, .* raise maxLength or lower trainer.params.image"):
        encode(row, maxLength=20)
    smaller = Images(folder, encode.images.token, root=None, max_pixels=32 * 32)
    assert smaller.placed(row["messages"], row, "images")[1][0].grid == (4, 4)


@pytest.mark.parametrize(
    ("params", "parallelism", "problem"),
    [
        ({"method": "dpo"}, {}, "reads images, and method dpo has text only; use method: sft"),
        ({"data": None}, {}, "reads images, and the task reverse has none; set trainer.params.data"),
        ({}, {"micro_batch_tokens": 64}, "whose samples are not packed; set microBatchSize in its place"),
    ],
)
def test_what_does_not_see_images_is_refused(tmp_path, folder, params, parallelism, problem):
    chosen = {"pretrained": str(folder), "data": [written(tmp_path, rows())], **params}
    chosen = {name: each for name, each in chosen.items() if each is not None}
    with pytest.raises(ConfigError, match=problem):
        LanguageModeling(resolve_params(chosen, Parallelism(**parallelism)))


def test_fields_of_images_need_a_model_that_reads_them():
    with pytest.raises(ConfigError, match=r"freezeVision: True, but tiny-qwen3 reads text only"):
        LanguageModeling(resolve_params({"freezeVision": True}, Parallelism()))


@pytest.mark.e2e
def test_a_gang_learns_images_as_one_process_does_and_resumes(yard, calm, tmp_path):
    folder, data = save_vision_family("tiny-qwen2-vl", tmp_path / "model"), written(tmp_path, rows())
    chosen = {"pretrained": str(folder), "data": [data], "validation": [data], "batch": 5, "lr": 1e-3}

    def settings(steps, **parallelism):
        params = {**chosen, "steps": steps, "warmupSteps": 0, "lrFinal": 1e-3, "evalEvery": 2, "logEvery": 1}
        own = {"parallelism": AT_ONCE | parallelism, "logging": {"tensorboard": False}}
        return {"trainer": {"name": "lm", "params": params}, "device": "cpu", **own}

    calm.train(settings(4))
    yard.train(settings(2, strategy="ddp", microBatchSize=1), world=2)
    yard.train(settings(4, strategy="fsdp"), world=2)
    yard.assert_learned(calm.metrics(), {"loss", "gradNorm", "evalLoss"})
