"""Folders of models that others wrote: each is rejected by name, at once, and nothing of them runs."""

import base64
import io
import itertools
import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from torchyard_trainers.core import tokenizer_file
from torchyard_trainers.core.adapters import ADAPTERS, merged_with, saved_lora
from torchyard_trainers.core.command import main
from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.model_config import read_config_json
from torchyard_trainers.core.pretrained import FILE, INDEX
from torchyard_trainers.core.tokenizer_file import WORDS
from torchyard_trainers.core.vocabulary import open_vocabulary
from torchyard_trainers.lm.chat import templates
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.folder import empty_model, read_config, read_tokenizer
from torchyard_trainers.lm.generation.talk import open_speaker
from torchyard_trainers.lm.tokens import character_tokenizer

UP = "model.layers.0.mlp.up_proj.weight"
SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.fixture
def folder(tmp_path):
    tokenizer = character_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2)).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, expected 0 to 1024"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1, expected 0 to 1024"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, expected 0 to 16777216"),
        (
            {"text_config": {"num_local_experts": 10**7}},
            "text_config.num_local_experts is 10000000, expected 0 to 1024",
        ),
        ({"num_hidden_layers": [1]}, "is not a config of a model: .*num_hidden_layers"),
        ({"hidden_size": float("inf")}, "is not a config of a model: .*hidden_size"),
        ({"num_attention_heads": 0}, "is not a config of a model|no model can be made of it: "),
        (
            {"_attn_implementation": "owner/kernel"},
            "_attn_implementation names code, 'owner/kernel', which is never run",
        ),
        ({"attn_implementation": {"": "owner/kernel:f"}}, "attn_implementation. names code, 'owner/kernel:f'"),
        ({"hidden_act": "__import__"}, "no model can be made of it: "),
        (
            {"model_type": "openai-gpt", "max_position_embeddings": 10**6, "n_embd": 16, "n_layer": 1, "n_head": 2},
            r"describes masks and tables of \d+ GiB beside the weights; lower its positions",
        ),
    ],
)
def test_a_config_of_impossible_sizes_is_named_before_anything_is_built(folder, fields, message):
    change(folder / "config.json", **fields)
    with pytest.raises(ConfigError, match=message):
        empty_model(folder, character_tokenizer())


@pytest.mark.parametrize("size", [2**20, 2**24])
def test_a_model_that_its_files_cannot_hold_gets_no_memory(folder, size, monkeypatch):
    change(folder / "config.json", hidden_size=size)
    monkeypatch.setattr("torchyard_trainers.lm.generation.talk.allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(DataMismatchError, match=r"config.json describes \d+ weights, and its files have \d+ bytes"):
        open_speaker(folder, "cpu")


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_tensors_that_hold_no_weights_are_named_with_their_type(folder, kind):
    tensors = load_file(folder / FILE)
    save_file(tensors | {UP: tensors[UP].to(kind)}, folder / FILE)
    with pytest.raises(DataMismatchError, match=rf"1 of a type that holds no weights .*: {UP} [A-Z0-9_]+\."):
        open_speaker(folder, "cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder, value):
    tensors = load_file(folder / FILE)
    tensors[UP][3, 2] = value
    save_file(tensors, folder / FILE)
    with pytest.raises(DataMismatchError, match=f"{UP} has values that are not finite numbers"):
        open_speaker(folder, "cpu")


def test_a_model_without_some_of_its_weights_does_not_talk(folder):
    tensors = load_file(folder / FILE)
    del tensors[UP]
    save_file(tensors, folder / FILE)
    with pytest.raises(DataMismatchError, match=f"1 missing: {UP}"):
        open_speaker(folder, "cpu")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[" * 200_000, "is not a config of a model"),
        ("generation_config.json", "[" * 200_000, "is not a config of generation"),
        ("generation_config.json", '{"eos_token_id": ["x"]}', r"eos_token_id is \"\['x'\]\", expected the number"),
        (ADAPTERS, "[" * 200_000, "is not a config of adapters"),
        (INDEX, "[" * 200_000, "has no weight_map .it is nested too deeply"),
        ("run.json", "[" * 200_000, "is not that of a run"),
        ("chat_template.jinja", "x" * (1 << 20) + "x", "chat_template.jinja has 1 MiB, more than 1"),
        ("tokenizer.json", "[" * 200_000, "the tokenizer of .* cannot be read"),
        ("tokenizer_config.json", "[" * 200_000, "the tokenizer of .* cannot be read"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["code.T", null]}}',
            "the tokenizer of .* is code in the folder, which is never run",
        ),
    ],
)
def test_files_of_another_kind_are_named(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        open_speaker(folder, "cpu")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", FILE, "generation_config.json"])
@pytest.mark.parametrize("target", ["/dev/zero", None], ids=["a device", "a pipe"])
def test_what_has_no_end_is_not_read(folder, name, target):
    (folder / name).unlink()
    if target is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(target)
    if name == "generation_config.json":
        assert open_speaker(folder, "cpu"), "it is as if there were none"
        return
    with pytest.raises((ConfigError, DataMismatchError)):
        open_speaker(folder, "cpu")


def extend(path, text):
    path.write_text(path.read_text().rstrip().removesuffix("}") + text)


def index_of(folder, files):
    names = list(load_file(folder / FILE))
    (folder / FILE).unlink()
    weights = dict(zip(names, files, strict=False))
    (folder / INDEX).write_text(json.dumps({"weight_map": weights or {f"x{n}": each for n, each in enumerate(files)}}))


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


# What a stranger may put into a folder, and what the error says about it: config and tokenizer, then weights.
READ_FIRST = {
    "layers": (lambda at: change(at / "config.json", num_hidden_layers=10**6), "num_hidden_layers is 1000000"),
    "units": (lambda at: change(at / "config.json", hidden_size=10**12), "hidden_size is 1000000000000"),
    "a config of 1 GiB": (
        lambda at: sparse(at / "config.json", 1 << 30),
        "config.json (is not a file of a model|has 1024 MiB, more than 1)",
    ),
    "a TiB beside the tokenizer": (
        lambda at: sparse(at / "tokenizer_config.json", 1 << 40),
        "tokenizer_config.json has 1048576 MiB, more than 16",
    ),
    "tokens": (
        lambda at: change_model(at, vocab={f"t{number}": number for number in range(300)}),
        "tokenizer.json has more than 200 tokens",
    ),
    "merges": (
        lambda at: change_model(at, merges=[["a", "b"]] * 300),
        "tokenizer.json has more than 200 merges",
    ),
    "added tokens": (
        lambda at: change(at / "tokenizer_config.json", added_tokens_decoder={str(n): {} for n in range(300)}),
        "tokenizer_config.json has more than 200 added tokens",
    ),
    "a model that stands twice": (
        lambda at: extend(at / "tokenizer.json", ',"model":' + json.dumps({"vocab": {"a": 0}, "x": [""] * 300}) + "}"),
        "tokenizer.json has more than 200 texts beside its tokens",
    ),
}
WEIGHTS = {
    "paths out of the folder": (
        lambda at: index_of(at, ["../../etc/passwd"] * 50),
        r"names \.\./\.\./etc/passwd; only safetensors files of the same folder",
    ),
    "100,000 files": (
        lambda at: index_of(at, [f"m-{number}.safetensors" for number in range(10**5)]),
        "names m-0.safetensors, which does not exist",
    ),
    "a header of 90 MB": (
        lambda at: (at / FILE).write_bytes((90_000_000).to_bytes(8, "little") + bytes(60_000)),
        "model.safetensors: the list of tensors, .* more than 32 MiB, which no model has",
    ),
    "a link to another file": (
        lambda at: ((at / FILE).unlink(), (at / FILE).symlink_to("/bin/sh")),
        "the list of tensors|not a safetensors file",
    ),
}


@pytest.fixture
def low_limits(monkeypatch):
    """Limits for small files."""
    for limit in ("MAX_TOKENS", "MAX_MERGES", "MAX_ADDED_TOKENS", "MAX_OTHERS"):
        monkeypatch.setattr(tokenizer_file, limit, 200)
    return monkeypatch


def change_model(folder, **fields):
    tree = json.loads((folder / "tokenizer.json").read_text())
    change(folder / "tokenizer.json", model=tree["model"] | fields)


@pytest.mark.parametrize(
    ("hostile", "command"),
    [
        *itertools.product(READ_FIRST, ["plan", "train", "eval", "dataset", "chat"]),
        *itertools.product(WEIGHTS, ["train", "eval", "chat", "initFrom"]),
    ],
)
def test_every_command_rejects_a_hostile_folder_by_name(folder, low_limits, capfd, hostile, command):
    """What a command does not read, it need not reject."""
    tmp_path, monkeypatch = folder.parent, low_limits
    good = tmp_path / "good"
    shutil.copytree(folder, good)
    spoil, message = (READ_FIRST | WEIGHTS)[hostile]
    spoil(folder)
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps({"messages": SAID}) + "\n") * 40)
    source = {"validation" if command == "eval" else "data": [str(data)]}
    params = {
        "pretrained": str(good if command == "initFrom" else folder),
        "steps": 1,
        "batch": 2,
        "maxLength": 32,
        **source,
    }
    config = {"trainer": {"name": "lm", "mode": "eval" if command == "eval" else "train", "params": params}}
    start = {"checkpoint": {"initFrom": str(folder)}} if command == "initFrom" else {}
    (tmp_path / "job.json").write_text(json.dumps(config | start | {"device": "cpu"}))
    job = ["--config", str(tmp_path / "job.json"), "--checkpoint-dir", str(tmp_path / "checkpoints")]
    words = {
        "plan": [*job, "plan", "--world", "1", "--local", "1"],
        "dataset": ["dataset", str(data), "--tokenizer", str(folder)],
        "chat": ["chat", str(folder), "--device", "cpu"],
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"messages": SAID[:1]}) + "\n"))
    assert main(words.get(command, job)) in (64, 65)
    assert re.search(message, capfd.readouterr().err)


def test_code_in_a_folder_is_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: ...\n")
    names = ["evil.C", "evil.C"]
    change(folder / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": names})
    read_config(folder)
    read_tokenizer(folder)
    assert open_speaker(folder, "cpu")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_makes_much_of_a_text_is_named(folder):
    def saved(**parts):
        change(folder / "tokenizer.json", **({"normalizer": None} | parts))
        return folder

    doubled = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    inserted = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 300}
    prepended = {"type": "Prepend", "prepend": "x" * 300}
    table = (4).to_bytes(4, "little") + bytes(4) + b"short\0" + b"x" * 300 + b"\0"
    mapped = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    for hostile in ({"type": "Sequence", "normalizers": [doubled] * 40}, inserted, prepended, mapped):
        with pytest.raises(ConfigError, match=r"normalizer may make .* bytes of one, expected at most 256; copy"):
            read_tokenizer(saved(normalizer=hostile))
    with pytest.raises(ConfigError, match=r"its decoder may make 1\.1e\+12 bytes of one"):
        read_tokenizer(saved(decoder={"type": "Sequence", "decoders": [doubled] * 40}))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: its normalizer may make 301 bytes of one"):
        open_vocabulary(saved(normalizer=prepended), None, source="")


@pytest.mark.parametrize(("data", "message"), [(b"a" * (1 << 20) + b"b", "1048577 bytes, more"), (b"\xff", "not text")])
def test_the_words_of_an_export_are_bounded_text(tmp_path, data, message):
    (tmp_path / WORDS).write_bytes(data)
    with pytest.raises(ConfigError, match=rf"trainer\.params\.pretrained: .*words\.txt .*{message}"):
        open_vocabulary(tmp_path, None, source="")


def test_normalizers_of_published_tokenizers_are_allowed(folder):
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    steps = [{"type": "Prepend", "prepend": "\u2581"}, {"type": "NFKC"}, {"type": "Lowercase"}, space, spaces]
    change(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    assert read_tokenizer(folder).backend_tokenizer.normalizer.normalize_str("A  b") == "\u2581a\u2581\u2581b"


def test_a_tokenizer_whose_pattern_never_ends_is_named(folder, monkeypatch, capfd):
    tree = json.loads((folder / "tokenizer.json").read_text())
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(tree | {"pre_tokenizer": pattern}))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"text": "a" * 40 + "!"}) + "\n"))
    assert main(["chat", str(folder), "--device", "cpu"]) == 65
    assert "a library stopped: Onig: Regex search error: retry-limit" in capfd.readouterr().err


@pytest.fixture(scope="module")
def chat():
    """Renders with a template that is set afterwards, and in one process for all."""
    tokenizer = character_tokenizer()
    return tokenizer, Chat(tokenizer)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__'"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "'__init__'|unsafe"),
        ("{{ raise_exception.__globals__.os }}", "'__globals__'|unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 'x' * 10**11 }}", "MemoryError"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
    ],
)
def test_a_template_reaches_nothing(chat, template, message):
    tokenizer, rendered = chat
    tokenizer.chat_template = template
    with pytest.raises(BadRecordError, match=f"(?s)cannot be rendered by the chat template: .*({message})"):
        rendered.prompt(SAID)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(31) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s|length }}",
        "{{ 'x' * 2**28 }}",
    ],
    ids=["a loop without end", "memory without end", "a text without end"],
)
def test_a_template_takes_little_time_memory_and_text(chat, template):
    tokenizer, _ = chat
    rendered = Chat(tokenizer, templates.TemplateProcess(0.5))
    tokenizer.chat_template = template
    with pytest.raises((ConfigError, BadRecordError), match="the chat template"):
        rendered.prompt(SAID)
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert rendered.prompt(SAID)[0] == "hi", "the next conversation has a process"


def test_a_template_of_others_renders_as_transformers_does(chat):
    tokenizer, rendered = chat
    each = "{{ m.role }}:{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}" + each + "{% endfor %}"
    words = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    theirs = tokenizer.apply_chat_template(SAID, **words)
    marking = Chat(tokenizer)
    assert marking.turns(SAID) == (theirs["input_ids"], [bool(each) for each in theirs["assistant_masks"]])
    assert rendered.prompt(SAID)[1] == tokenizer.apply_chat_template(SAID, add_generation_prompt=True)["input_ids"]


LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


def adapters(folder, rank=2, **tensors):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=rank, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False)
    adapted = get_peft_model(LlamaForCausalLM.from_pretrained(folder), config)
    adapted.save_pretrained(folder.parent / "a")
    if tensors:
        path = folder.parent / "a" / "adapter_model.safetensors"
        save_file(load_file(path) | tensors, path)
    return adapted


def test_adapters_are_merged_as_peft_does(folder):
    theirs = adapters(folder).merge_and_unload().state_dict()
    saved = folder.parent / "a"
    lora = saved_lora(saved, json.loads((saved / ADAPTERS).read_text()), "a")
    ours = merged_with(LlamaForCausalLM.from_pretrained(folder), lora).state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(each, ours[name]) for name, each in theirs.items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 10**9}, "has the rank 2, and .* says r: 1000000000"),
        ({"r": 0}, "r is 0, expected the rank"),
        ({"peft_type": "EVIL"}, "peft_type is 'EVIL', expected 'LORA'"),
        ({"target_modules": "(m|.)*$x"}, "target_modules is .* expected a list of names"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_config is set"),
        ({"rank_pattern": {"(.|.)*": 3}}, "rank_pattern is set"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights or bias changes the model"),
    ],
)
def test_adapters_with_options_that_reach_further_are_refused(folder, fields, message):
    adapters(folder)
    with pytest.raises((ConfigError, DataMismatchError), match=message):
        saved_lora(folder.parent / "a", LORA | fields, "adapter_config.json")


def test_adapters_in_a_pickle_or_of_odd_numbers_are_refused(folder):
    adapters(folder, odd=torch.tensor([float("nan")]))
    with pytest.raises(DataMismatchError, match="odd does not consist of finite numbers"):
        saved_lora(folder.parent / "a", LORA, "adapter_config.json")
    (folder.parent / "a" / "adapter_model.safetensors").rename(folder.parent / "a" / "adapter_model.bin")
    with pytest.raises(ConfigError, match="save the adapters with safetensors"):
        saved_lora(folder.parent / "a", LORA, "adapter_config.json")


def test_large_numbers_that_are_no_sizes_are_allowed(folder):
    change(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 10**10}, pad_token_id=-1)
    assert read_config_json(folder, "f")[0]["pad_token_id"] == -1
    assert templates.SECONDS == 10.0
