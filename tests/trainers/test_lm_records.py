"""Records of files as samples of `lm`: every format against the tokens and labels that it must give."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.rows import BadRecordError, InMemory
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.lm.data import sets
from torchyard_trainers.lm.data.datasets import Datasets, RecordPrompts, within_positions
from torchyard_trainers.lm.data.records import Encoder
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.tokens import character_tokenizer

# As Qwen3's: the last turn has an empty block of thoughts, the others have none.
THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}()\n{% endif %}{{ m.content }};\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}"
    "{% else %}{{ m.content }}?{% endif %}{% endfor %}"
)
ASK, SAY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
ALPACA = {"fields": {"prompt": "instruction + input", "completion": "output"}}
MORE, LAST = {"role": "user", "content": "and"}, {"role": "assistant", "content": "ok"}


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


def encoder(tokenizer, *, prompts=False, **params):
    settings = resolve_params({"data": ["x.jsonl"]} | params, Parallelism())
    return Encoder(settings, tokenizer, len(tokenizer), prompts=prompts)


def shown(tokenizer, document):
    """The text of a document, what is learned in brackets."""
    text, inside = "", False
    for token, learned in zip(document.tokens, document.learned, strict=True):
        text += ("[" if learned and not inside else "]" if inside and not learned else "") + tokenizer.decode([token])
        inside = learned
    return text.replace("<eos>", "$") + ("]" if inside else "")


@pytest.mark.parametrize(
    ("row", "params", "wanted"),
    [
        ({"text": "abc"}, {}, "[abc$]"),
        ({"prompt": "1+1=", "completion": "2"}, {}, "1+1=[2$]"),
        ({"q": "1+1=", "a": "2"}, {"fields": {"prompt": "q", "completion": "a"}}, "1+1=[2$]"),
        ({"prompt": "1+1=", "completion": "2"}, {"trainOn": "all"}, "[1+1=2$]"),
        ({"prompt": "abcdef", "completion": "xyz"}, {"maxLength": 7}, "abcdef[xy]"),
        ({"prompt": "abcdef", "completion": "xyz"}, {"maxLength": 5, "truncation": "start"}, "ef[xyz$]"),
        ({"messages": [ASK, SAY, MORE, LAST]}, {}, "user: hi\nassistant: [yo$]user: and\nassistant: [ok$]"),
        (
            {"messages": [ASK, SAY, MORE, LAST]},
            {"trainOn": "last"},
            "user: hi\nassistant: yo$user: and\nassistant: [ok$]",
        ),
        ({"prompt": [ASK, SAY, MORE], "completion": [LAST]}, {}, "user: hi\nassistant: yo$user: and\nassistant: [ok$]"),
        ({"prompt": [ASK], "completion": "yo"}, {}, "user: hi\nassistant: [yo$]"),
        ({"prompt": "p", "completion": "c", "label": True}, {}, "p[c$]"),
        ({"text": "t", "label": False}, {}, "[t$]"),
        ({"text": "t", "prompt": "p", "completion": "c", "messages": [ASK, SAY]}, {"format": "prompt"}, "p[c$]"),
        ({"tokens": np.array([7, 8, 9])}, {}, "[345]"),
        ({"messages": [ASK, SAY | {"content": [{"type": "text", "text": "yo"}]}]}, {}, "user: hi\nassistant: [yo$]"),
        (
            {"messages": [ASK, SAY | {"weight": 0}, MORE, LAST | {"weight": 1}]},
            {},
            "user: hi\nassistant: yo$user: and\nassistant: [ok$]",
        ),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
            {"fields": {"messages": "conversations"}},
            "user: hi\nassistant: [yo$]",
        ),
        ({"instruction": "add", "input": "1+1", "output": "2"}, ALPACA, "add\n\n1+1[2$]"),
        ({"instruction": "add", "input": "", "output": "2"}, ALPACA, "add[2$]"),
    ],
)
def test_a_record_becomes_tokens_of_which_those_to_learn_are_marked(tokenizer, row, params, wanted):
    assert shown(tokenizer, encoder(tokenizer, **params)(row).document) == wanted


def test_a_text_begins_with_what_its_tokenizer_puts_before_texts(tokenizer):
    for template, begin in {"<bos> $A <eos>": ["<bos>"], "<pad> <bos> $A": ["<pad>", "<bos>"], "$A <eos>": []}.items():
        other = character_tokenizer()
        special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<pad>", "<bos>", "<eos>")]
        other.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
        found = encoder(other)({"prompt": "1", "completion": "2"}).document
        assert tokenizer.convert_ids_to_tokens(found.tokens) == [*begin, "1", "2", "<eos>"]


@pytest.mark.parametrize(
    ("row", "tokens", "field"),
    [
        ({"text": "<bos>1<eos>"}, "<bos>1<eos>", "text"),
        ({"text": "<bos>1<eos>\n"}, "<bos>1<eos>\n", "text"),
        ({"text": "1<eos>2"}, "<bos>1<eos>2<eos>", None),
        ({"prompt": "<bos>1", "completion": "2"}, "<bos>12<eos>", "prompt"),
        ({"prompt": "1", "completion": "2<eos>"}, "<bos>12<eos>", "completion"),
    ],
)
def test_special_tokens_that_a_text_has_are_not_added_twice_which_a_note_says(tokenizer, row, tokens, field):
    begins = character_tokenizer()
    special = [("<bos>", begins.bos_token_id)]
    begins.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=special)
    encode = encoder(begins)
    for _ in range(2):
        assert begins.decode(encode(row).document.tokens) == tokens
    assert [field for field in row if any(repr(field) in note for note in encode.notes)] == [field] * (
        field is not None
    )
    if "prompt" in row:
        asked = encoder(begins, method="grpo")({**row, "answer": "x"}).prompt
        assert begins.decode(asked.tokens) == "<bos>1"


def test_a_note_names_what_comes_before_a_conversation_and_is_not_read(tokenizer):
    record = {"messages": [ASK, SAY], "system": "Be brief.", "history": [["a", "b"]]}
    silent, joined, loud = (
        encoder(tokenizer),
        encoder(tokenizer, fields={"prompt": "system + prompt"}),
        encoder(tokenizer),
    )
    silent({"messages": [ASK, SAY], "system": "", "history": None})
    joined({"prompt": "hi", "completion": "yo", "system": "Be brief."})
    loud(record)
    assert (silent.notes, joined.notes) == ([], [])
    assert "('history', 'system'), which are not read" in loud.notes[0]


def test_descriptions_of_functions_may_be_json_as_text(tokenizer):
    other = character_tokenizer()
    tools = [{"name": "add"}, {"name": "sub"}]
    row = {"messages": [ASK, SAY]}
    wanted = 'tools: [{"name": "add"}, {"name": "sub"}]\nuser: hi\nassistant: yo<eos>'
    for given in (tools, json.dumps(tools)):
        assert other.decode(encoder(other)(row | {"tools": given}).document.tokens) == wanted
    assert other.decode(encoder(other)(row | {"tools": "null"}).document.tokens).startswith("user")


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (THINKS, "<user>hi;\n<assistant>[yo;\n]<user>and;\n<assistant>[()\nok;\n]"),
        (MARKED, "hi?[yo;]and?[ok;]"),
    ],
)
def test_turns_of_the_assistant_are_found_in_the_text_of_any_template(tokenizer, template, wanted):
    other = character_tokenizer()
    other.chat_template = template
    assert shown(other, encoder(other)({"messages": [ASK, SAY, MORE, LAST]}).document) == wanted


def test_a_first_token_with_the_space_before_its_turn_is_learned():
    words = Tokenizer(WordLevel({"<end>": 0, "user:": 1, " hi": 2, "assistant:": 3, " yo": 4, "?": 5}, "?"))
    words.pre_tokenizer = Split(Regex(r"<end>| ?[^ <]+"), "isolated")
    other = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", unk_token="?")
    other.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    found = encoder(other)({"messages": [ASK, SAY]}).document
    assert [each for each, learned in zip(found.tokens, found.learned, strict=True) if learned] == [4, 0]


def test_preference_pairs_share_a_prompt_that_is_given_or_that_both_begin_with(tokenizer):
    encode = encoder(tokenizer, method="dpo")
    for row in (
        {"prompt": "user: hi\nassistant: ", "chosen": "yo", "rejected": "ok"},
        {"prompt": [ASK], "chosen": [SAY], "rejected": [LAST]},
        {"chosen": [ASK, SAY], "rejected": [ASK, LAST]},
        # As UltraFeedback: both the prompt and whole conversations, which it begins.
        {"prompt": "hi", "chosen": [ASK, SAY], "rejected": [ASK, LAST]},
        {"prompt": [ASK], "chosen": [ASK, SAY], "rejected": [ASK, LAST]},
    ):
        found = encode(row)
        assert shown(tokenizer, found.document) == "user: hi\nassistant: [yo$]"
        assert shown(tokenizer, found.rejected) == "user: hi\nassistant: [ok$]"


@pytest.mark.parametrize(
    ("row", "text", "answer"),
    [
        ({"prompt": "1+1=", "answer": 2, "kind": "sum"}, "1+1=", "2"),
        ({"prompt": "1+1=", "completion": " 2"}, "1+1=", "2"),
        ({"prompt": [ASK], "answer": "yo"}, "user: hi\nassistant: ", "yo"),
        (
            {"prompt": "hi", "completion": "yo <eos>\n"},
            "hi",
            "yo",
        ),  # rendered: completions are judged without such tokens
        ({"messages": [ASK, SAY]}, "user: hi\nassistant: ", "yo"),
    ],
)
def test_a_prompt_to_complete_keeps_its_record_and_the_answer(tokenizer, row, text, answer):
    prompt = encoder(tokenizer, method="grpo")(row).prompt
    assert (prompt.text, tokenizer.decode(prompt.tokens)) == (text, text)
    assert prompt.row == row | {"answer": answer}


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ({"body": "x"}, {}, "field 'messages' is missing, and 'prompt' or 'text' too; the record has 'body'"),
        ({"text": 3}, {}, "field 'text' is a number, expected text"),
        ({"prompt": "p"}, {}, "field 'completion' is missing"),
        ({"prompt": None, "completion": "c"}, {}, "field 'prompt' is null"),
        ({"prompt": "p", "completion": None}, {}, "field 'completion' is null, expected text"),
        ({"prompt": "p", "completion": " \n"}, {}, "field 'completion' is empty"),
        ({"prompt": [ASK], "completion": ""}, {}, "field 'completion' has a turn 2 of the assistant that is empty"),
        (
            {"messages": [ASK, SAY | {"content": ""}, MORE, LAST]},
            {},
            "field 'messages' has a turn 2 of the assistant that is empty",
        ),
        ({"prompt": "p", "chosen": "x", "rejected": " "}, {"method": "dpo"}, "field 'rejected' is empty"),
        ({"messages": [ASK | {"content": None}, SAY]}, {}, "has a message 1 without content"),
        ({"messages": [ASK, SAY | {"content": 3}]}, {}, "has a message 2 whose content is a number, expected text"),
        (
            {"messages": [ASK | {"content": [{"type": "image"}]}, SAY]},
            {},
            "content has a part that is 'image', expected",
        ),
        ({"messages": []}, {}, "field 'messages' is empty, expected a list of messages"),
        ({"messages": [ASK]}, {}, "field 'messages' has no turn of the assistant; its roles are 'user': name them"),
        ({"messages": [ASK, SAY | {"weight": 0}]}, {}, "has no turn of the assistant whose weight is not 0"),
        ({"messages": '[{"role": "user"}]'}, {}, "field 'messages' is text, expected a list of messages; write the"),
        (
            {"turns": [{"from": "alien", "value": "x"}]},
            {"fields": {"messages": "turns"}},
            "field 'turns' has a message 1 from 'alien', expected human, gpt",
        ),
        ({"conversations": []}, {}, "the record has 'conversations'. Set trainer.params.fields: {messages: conversati"),
        (
            {"instruction": "add", "input": "1+1", "output": "2"},
            {},
            "Set trainer.params.fields: {prompt: instruction + input, completion: output}",
        ),
        (
            {"instruction": "x", "context": "y", "response": "z"},
            {},
            "fields: {prompt: instruction + context, completion",
        ),
        ({"custom_id": "1", "body": {"messages": []}}, {}, "has 'body', 'custom_id'. Name its fields in"),
        ({"Text": "x"}, {}, "Set trainer.params.fields: {text: Text}"),
        ({"prompt": "p", "response": "r"}, {}, "'completion' is missing; the record has 'prompt', 'response'. Set "),
        ({"instruction": "add", "input": 1, "output": "2"}, ALPACA, "field 'input' is a number, expected text"),
        ({"prompt": "p", "completion": [ASK, SAY]}, {}, "field 'completion' begins with a turn of 'user'; a whole"),
        ({"messages": [{"content": "x"}]}, {}, "field 'messages' has a message 1 without a role; it has 'content'"),
        ({"prompt": "abcdef", "completion": "x"}, {"maxLength": 4}, "has nothing to learn within 4 tokens; raise max"),
        ({"text": "abcdef"}, {"maxLength": 4, "truncation": "none"}, "has 7 tokens, and a sample at most 4"),
        ({"prompt": "abcdef", "answer": "x"}, {"maxLength": 4, "method": "grpo"}, "has 6 tokens, and a sample at most"),
        ({"prompt": "p"}, {"method": "grpo"}, "field 'answer' is missing, which reward exact compares with"),
        ({"prompt": "p", "chosen": "x"}, {"method": "dpo"}, "field 'rejected' is missing"),
        ({"chosen": [ASK, SAY], "rejected": [MORE, SAY]}, {"method": "dpo"}, "'rejected' does not begin with the mess"),
        ({"chosen": "x", "rejected": "y"}, {"method": "dpo"}, "without it. Add it, and leave it out of 'chosen' and"),
        (
            {"prompt": "no", "chosen": [ASK, SAY], "rejected": [ASK, LAST]},
            {"method": "dpo"},
            "field 'chosen' is a whole conversation, in which the field 'prompt' does not occur",
        ),
        (
            {"chosen": [ASK, ASK], "rejected": [ASK, SAY]},
            {"method": "dpo"},
            "field 'chosen' has no turn of the assista",
        ),
        (
            {"prompt": "p", "chosen": "x", "rejected": "x"},
            {"method": "dpo"},
            "'rejected' is the same answer as 'ch",
        ),
        (
            {"prompt": "p", "chosen": "xxxxxxxy", "rejected": "xxxxxxxz"},
            {"method": "dpo", "maxLength": 6},
            "field 'rejected' does not differ from 'chosen' within 6 tokens; raise maxLength",
        ),
        (
            {"prompt": "p", "completion": "c", "label": False},
            {},
            "field 'label' is false: the completion is a wrong",
        ),
        ({"tokens": np.array([7, 500])}, {}, "field 'tokens' has 500, but the model has 100 tokens"),
        ({"tokens": np.array([7, 8])}, {"method": "dpo"}, "only method sft uses; dpo needs chosen and rejected answ"),
        ({"tokens": np.array([7, 8])}, {"method": "ppo"}, "only method sft uses; ppo needs prompts: name other files"),
        ({"messages": [ASK, SAY], "tools": "[{"}, {}, "field 'tools' is text, and cannot be read as JSON: Expecting"),
        ({"messages": [ASK, SAY], "tools": ["add"]}, {}, "field 'tools' is a list, expected a list of descriptions of"),
    ],
)
def test_the_error_for_an_unusable_record_names_field_and_cause(tokenizer, row, params, message):
    with pytest.raises(BadRecordError) as caught:
        encoder(tokenizer, **params)(row)
    assert message in str(caught.value)


def test_a_text_whose_tokens_the_tokenizer_or_the_model_lacks_is_a_bad_record(tokenizer):
    few = character_tokenizer()
    few.add_special_tokens({"additional_special_tokens": ["<image>"]})
    for row in ({"text": "<image>"}, {"messages": [ASK, SAY | {"content": "<image>"}]}):
        with pytest.raises(BadRecordError, match=r"has the token '<image>', number 100, but the model knows 100 tok"):
            Encoder(resolve_params({"data": ["x"]}, Parallelism()), few, len(tokenizer))(row)
    letters = Tokenizer(WordLevel({"a": 0, "<end>": 1}))  # without a token for what it does not know
    plain = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>", pad_token="<end>")
    with pytest.raises(BadRecordError, match=r"'completion' cannot be encoded by the tokenizer of the model: WordL"):
        encoder(plain)({"prompt": "a", "completion": "b"})


def test_a_tokenizer_without_a_chat_template_is_an_error_of_the_configuration():
    plain = character_tokenizer()
    plain.chat_template = None
    with pytest.raises(ConfigError, match=r"has no chat template, which conversations need; add chat_template\.jinja"):
        encoder(plain)({"messages": [ASK, SAY]})


def opened(tokenizer, **params):
    return Datasets(resolve_params(params, Parallelism()), tokenizer, len(tokenizer), tokens_of="characters")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts(samples):
    return {samples.row(number)["prompt"] for number in range(len(samples))}


def test_sets_are_mixed_by_weight_and_none_trains_on_what_it_holds_out(tokenizer, tmp_path):
    sets = [
        write(tmp_path / f"{name}.jsonl", [{"prompt": f"{name}{number}", "completion": "x"} for number in range(count)])
        for name, count in (("a", 90), ("b", 10))
    ]
    data = opened(tokenizer, data=sets, dataWeights=[1, 1], holdOut=0.2)
    held, trained = prompts(data.held_out), prompts(data.train)
    assert (len(held), len(trained)) == (20, 80)
    assert not held & trained
    drawn = [data.train.row(number)["prompt"][0] for number in range(len(data.train))]
    assert drawn.count("a") == drawn.count("b") == 72
    other = write(tmp_path / "c.jsonl", [{"prompt": "c", "completion": "x"}])
    assert prompts(opened(tokenizer, data=sets, validation=[other]).held_out) == {"c"}
    assert opened(tokenizer, validation=[other]).train is None


def test_bad_records_end_the_job_with_their_place_or_are_skipped_and_counted(tokenizer, tmp_path):
    rows = [{"prompt": f"{number}", "completion": "x"} for number in range(20)]
    rows[7] = {"prompt": "7"}
    path, check = write(tmp_path / "d.jsonl", rows), write(tmp_path / "v.jsonl", rows[:5])
    with pytest.raises(DataError, match=r"^d\.jsonl, line 8: field 'completion' is missing.*the only one of 20 rec"):
        opened(tokenizer, data=[path], validation=[check])
    data = opened(tokenizer, data=[path], validation=[check], badRecords="skip")
    assert (len(data.train), data.metrics["skippedRecords"]) == (19, 1)
    assert "of 25 records, 1 cannot be used and are skipped (d.jsonl, line 8: field 'completion' is" in data.note
    assert "7" not in prompts(data.train)
    single = write(tmp_path / "single.jsonl", rows[:1])
    with pytest.raises(DataError, match=r"^single\.jsonl, line 1: is the only record of its set, and one of a set"):
        opened(tokenizer, data=[single])
    few = write(tmp_path / "few.jsonl", [{"prompt": "0", "completion": "x"}, *({"prompt": "x"} for _ in range(19))])
    with pytest.raises(DataError, match=r"^of the records that are held out to evaluate, none of the 1 records can be"):
        opened(tokenizer, data=[few], badRecords="skip")


def test_long_texts_become_windows_and_no_token_is_lost(tokenizer, tmp_path):
    rows = [{"text": letter * size} for letter, size in (("a", 50), ("b", 7), ("c", 16), ("d", 33))]
    path, check = write(tmp_path / "t.jsonl", rows), write(tmp_path / "v.jsonl", rows[:1])
    data = opened(tokenizer, data=[path], validation=[check], maxLength=16)
    learned = [each[each != IGNORE] for each in (data.train.read([number])["labels"] for number in range(9))]
    assert (len(data.train), len(data.held_out)) == (4 + 1 + 1 + 3, 4)
    expected = [token for row in rows for token in [*tokenizer(row["text"])["input_ids"][1:], tokenizer.eos_token_id]]
    assert torch.cat(learned).tolist() == expected
    assert (data.metrics["lostTokenFraction"], data.note) == (0.0, "")
    data = opened(tokenizer, data=[path], validation=[check], maxLength=16, truncation="end")
    assert (len(data.train), data.metrics["truncatedRecords"]) == (4, 3)
    assert data.metrics["lostTokenFraction"] == pytest.approx((34 + 17 + 34) / (50 + 7 + 16 + 33 + 50))
    assert "3 have more than trainer.params.maxLength: 16 tokens and are cut, which loses 54.5 % of all" in data.note


def test_a_prompt_that_is_too_long_is_skipped_and_counted(tokenizer, tmp_path):
    rows = [{"prompt": "x" * size, "completion": "y"} for size in (3, 40, 5, 16)]
    path, check = write(tmp_path / "p.jsonl", rows), write(tmp_path / "v.jsonl", rows[:1])
    for method in ("grpo", "sft"):
        data = opened(tokenizer, data=[path], validation=[check], maxLength=20, method=method)
        assert (len(data.train), data.metrics["skippedRecords"]) == (3, 1)
        assert "of 5 records, 1 have prompts of more than trainer.params.maxLength: 20 tokens and are skip" in data.note


def test_of_mixed_sets_the_records_with_prompts_are_completed(tokenizer, tmp_path):
    rows = [{"text": "abc"}, {"prompt": "1+1=", "completion": "2"}, {"prompt": "", "completion": "x"}]
    rows += [{"messages": [SAY]}, {"messages": [ASK, SAY]}]
    path = write(tmp_path / "mixed.jsonl", rows)
    data = opened(tokenizer, data=[path], validation=[path])
    asked = RecordPrompts(data._settings, tokenizer, data).held_out(range(len(data.asking)))
    assert [each.text for each in asked] == ["1+1=", "user: hi\nassistant: "]
    assert (data.asking, data.has_answers) == ([1, 4], False)
    assert opened(tokenizer, validation=[write(tmp_path / "a.jsonl", rows[1:2])]).has_answers


def test_tokens_of_a_file_are_windows_without_a_tokenizer(tokenizer, tmp_path):
    np.arange(90, dtype=np.uint16).tofile(tmp_path / "t.bin")
    data = opened(tokenizer, data=[str(tmp_path / "t.bin")], maxLength=8, holdOut=0.1)
    found = data.train.read([0])
    first = int(found["tokens"][0, 0])
    assert found["tokens"].tolist() == [list(range(first, first + 8))]
    assert found["labels"].tolist() == [list(range(first + 1, first + 9))]
    assert len(data.train) + len(data.held_out) == 11


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": ["x.jsonl"], "task": "sort"}, "trainer.params.task: sort, but samples are read from"),
        ({"maxLength": 8}, "trainer.params.maxLength: is set, but the task reverse has no files; set data or remove"),
        ({"data": ["a", "b"], "dataWeights": [1]}, "dataWeights: 1 weights for 2 sets of trainer.params.data; give"),
        ({"data": ["a"], "validation": ["b"], "holdOut": 0.1}, "holdOut: 0.1, but trainer.params.validation is set"),
        (
            {"method": "grpo", "reward": "a.b.py:score"},
            "reward: a.b.py:score names a file; write its module: a.b:score",
        ),
        ({"data": ["a"], "fields": {"question": "q"}}, "trainer.params.fields: 'question' is not a field of records"),
    ],
)
def test_parameters_of_data_that_contradict_each_other_are_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "positions", "length"),
    [
        ({}, None, 1024),
        ({}, 1024, 1024),
        ({}, 64, 64),
        ({"method": "grpo"}, 1024, 512),
        ({"method": "grpo"}, 512, 256),
        ({"maxLength": 100}, 64, r"trainer\.params\.maxLength: 100, but m has 64 positions; lower it"),
        ({"maxLength": 9, "method": "ppo"}, 64, r"maxLength: 9 and maxNewTokens 256, but m has 64 positions; lower it"),
        ({"method": "ppo"}, 256, r"maxNewTokens: 256, but m has 256 positions, of which prompts need some; lower it"),
    ],
)
def test_samples_are_as_long_as_the_positions_of_the_model_allow_unless_a_length_is_given(given, positions, length):
    settings = resolve_params({"data": ["a"], **given}, Parallelism())
    if isinstance(length, int):
        assert within_positions(settings, "m", positions).max_length == length
    else:
        with pytest.raises(ConfigError, match=length):
            within_positions(settings, "m", positions)


def test_lengths_for_packing_are_needed_before_the_first_step():
    packs = Parallelism(micro_batch_tokens=99)
    with pytest.raises(
        ConfigError, match=r"checkRecords: background, but parallelism.microBatchTokens: 99 needs the l"
    ):
        resolve_params({"data": ["a"], "checkRecords": "background"}, packs)
    settings = resolve_params({"data": ["a"]}, packs)
    encoder = Encoder(settings, character_tokenizer(), 100)
    many = InMemory([{"prompt": "1", "completion": "2"}] * 3)
    for limit, given, beside in ((2, {}, True), (3, {}, False), (2, {"checkRecords": "before"}, False)):
        chosen = resolve_params({"data": ["a"], **given}, Parallelism())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sets, "LARGE", limit)
            assert sets.in_background(chosen, [many], encoder) == beside
            assert not sets.in_background(settings, [many], encoder), "packed"
            texts = InMemory([{"text": "1"}] * 3)
            assert not sets.in_background(chosen, [texts], encoder), "windows"


def test_only_supervised_fine_tuning_packs():
    with pytest.raises(ConfigError, match=r"microBatchTokens: 99, but only method sft packs samples, not dpo"):
        resolve_params({"data": ["a"], "method": "dpo"}, Parallelism(micro_batch_tokens=99))
