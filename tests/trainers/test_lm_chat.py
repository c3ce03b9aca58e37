"""Conversations as tokens: turns, their ends and calls of functions, by templates that behave as published ones."""

import json

import pytest
from tests.support.trainers.tokenizers import byte_level, metaspace, shown
from tokenizers import AddedToken

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.chat.messages import conversation, tools_of
from torchyard_trainers.lm.chat.templates import TemplateProcess

SPECIAL = ("<user>", "<model>", "<end>", "<return>", "<call>", "<tool>", "<think>", "</think>")
ASK, SAY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
MORE, LAST = {"role": "user", "content": "and"}, {"role": "assistant", "content": " ok "}
THOUGHT = {"role": "assistant", "content": "<think>hm</think>yo"}
TALK = [ASK, SAY, MORE, LAST]
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"

# In the manner of DeepSeek: system messages first; thoughts are dropped, and answers begin with one.
DROPS = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}<user>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<model>{{ m.content.split('</think>')[-1] }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<model><think>\n{% endif %}"
)
# Nemotron: each turn has thoughts, if empty ones; the content is trimmed.
EMPTY_THOUGHTS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<model>\n{{ '' if '<think>' in m.content else "
    "'<think></think>' }}{{ m.content | trim }}<end>\n{% else %}<user>\n{{ m.content }}<end>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<model>\n<think>\n{% endif %}"
)
# Qwen 3.5: thoughts in the last turn only, which answers begin with, and no conversation without a question.
LAST_THINKS = (
    "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no query') }}{% endif %}"
    "{% for m in messages %}{% set c = m.content | trim %}<{{ 'user' if m.role == 'user' else 'model' }}>\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ c.split('</think>')[0][7:] if '</think>' in c }}\n"
    "</think>\n\n{% endif %}{{ c.split('</think>')[-1] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<model>\n<think>\n{% endif %}"
)
# Phi-3: the whole conversation ends with another token.
WHOLE_ENDS = (
    "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'model' }}>\n{{ m.content }}<end>\n{% endfor %}"
    "{{ '<model>\n' if add_generation_prompt else eos_token }}"
)
# gpt-oss: the last turn ends otherwise, answers have a header, and all turns begin alike.
RETURNS = (
    "{% for m in messages %}<tool>{% if m.role == 'user' %}user:{{ m.content }}<end>{% else %}assistant<call>final:"
    "{{ m.content }}{{ '<return>' if loop.last and not add_generation_prompt else '<end>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<tool>assistant{% endif %}"
)
# GLM 4: the next turn is the end of one.
NO_END = (
    "{% for m in messages %}{% if m.role == 'tool' %}<tool>{{ m.content }}{% elif m.role == 'user' %}<user>\n"
    "{{ m.content }}{% else %}<model>\n{{ m.content | default('', true) | trim }}{% for c in m.tool_calls or [] %}"
    "({{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}){% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
# Gemma: the system message is a part of the first question, and roles must alternate.
ALTERNATES = (
    "{% set first = messages[0].content ~ '\n' if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if first else messages) %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ 'user' if m.role == 'user' else 'model' }}>"
    "{{ first if loop.first }}{{ m.content | trim }}<end>\n{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
# Command R7B: the beginning of an answer is written behind every conversation; messages begin and end alike.
OPENS = (
    "{% for m in messages %}<tool>{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<model><call>{{ m.content }}"
    "<return>{% endif %}<end>{% endfor %}<tool><model>{% if not quick %}<think></think>{% endif %}"
)
# Kimi K3: a token ends each part of an answer, and another one all of it.
PARTS = (
    "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'model' }}>{% if m.role != 'user' %}<call>thoughts"
    "<return><call>{% endif %}{{ m.content }}<return><end>{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be."}


@pytest.fixture(scope="module")
def process():
    """Renders for all tests: it takes seconds to start."""
    return TemplateProcess()


def turns(process, template, messages, tokenizer=None, **options):
    tokenizer = tokenizer or byte_level(SPECIAL, template)
    tokenizer.chat_template = template
    return shown(tokenizer, *Chat(tokenizer, process).turns(conversation(messages, "messages"), **options))


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (DROPS, TALK, "<user>hi<model>[yo<end>]<user>and<model>[ ok <end>]"),
        (DROPS, [ASK, SAY, SYSTEM, MORE, LAST], "Be.<user>hi<model>[yo<end>]<user>and<model>[ ok <end>]"),
        (DROPS, [ASK, THOUGHT], "<user>hi<model>[yo<end>]"),
        (
            EMPTY_THOUGHTS,
            TALK,
            "<user>\nhi<end>\n<model>\n<think>[</think>yo<end>\n]<user>\nand<end>\n<model>\n<think>[</think>ok<end>\n]",
        ),
        (
            LAST_THINKS,
            [ASK, THOUGHT, MORE, LAST],
            "<user>\nhi<end>\n<model>\n[yo<end>\n]<user>\nand<end>\n<model>\n<think>[\n\n</think>\n\nok<end>\n]",
        ),
        (LAST_THINKS, [ASK, THOUGHT], "<user>\nhi<end>\n<model>\n<think>\n[hm\n</think>\n\nyo<end>\n]"),
        (
            WHOLE_ENDS,
            TALK,
            "<user>\nhi<end>\n<model>\n[yo<end>\n]<user>\nand<end>\n<model>\n[ ok <end>\n<eos>]",
        ),
        (
            RETURNS,
            TALK,
            (
                "<tool>user:hi<end><tool>assistant[<call>final:yo<end>]"
                "<tool>user:and<end><tool>assistant[<call>final: ok <return>]"
            ),
        ),
        (NO_END, TALK, "<user>\nhi<model>[\nyo<user>]\nand<model>[\nok<user>]"),
        (
            OPENS,
            TALK,
            (
                "<tool><user>hi<end><tool><model>[<call>yo<return><end>]"
                "<tool><user>and<end><tool><model>[<call> ok <return><end>]"
            ),
        ),
        (ALTERNATES, [SYSTEM, *TALK], "<user>Be.\nhi<end>\n<model>[yo<end>\n]<user>and<end>\n<model>[ok<end>\n]"),
    ],
)
def test_turns_are_what_follows_the_prompt_of_generation_with_what_ends_them(process, template, messages, text):
    assert turns(process, template, messages) == text
    last = text[: text.rfind("[")].replace("[", "").replace("]", "") + text[text.rfind("[") :]
    assert turns(process, template, messages, last_only=True) == last
    whole = "[" + text.replace("[", "").replace("]", "") + "]"
    assert turns(process, template, messages, everything=True) == whole


def test_the_answer_of_another_turn_is_not_taken_for_a_turn(process):
    for template in (DROPS, RETURNS, WHOLE_ENDS):
        same = turns(process, template, [ASK, {"role": "assistant", "content": "hi"}, ASK, ASK | {"role": "assistant"}])
        assert same.count("hi") == 4
        assert same.count("[") == same.count("]") == 2


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (
            "{% for m in messages %}{{ m.content if m.role != 'user' }}{% endfor %}" + DROPS,
            TALK,
            "turn 2 whose place is not certain: the chat template writes its",
        ),
        (
            (
                "{% for m in messages %}{{ 'A:' if m.role == 'user' else 'B' ~ loop.revindex }}{{ m.content }}<end>"
                "{% endfor %}{% if add_generation_prompt %}C:{% endif %}"
            ),
            TALK,
            "turn 2 whose place is not certain: the chat template begins it otherwise than 'C:', as answers begin",
        ),
        (
            (
                "{% for m in messages %}<user>{{ m.content }}{{ '!' if loop.last else ';' }}{% endfor %}"
                "{% if add_generation_prompt %}<user>{% endif %}"
            ),
            TALK,
            "the chat template ends it in another way when others follow; mark the turns in chat_template.jinja with",
        ),
        (
            EMPTY_THOUGHTS,
            [ASK, {"role": "assistant", "content": "", "reasoning_content": "hm"}],
            "turn 2 whose place is not certain: the chat template leaves its content out",
        ),
    ],
)
def test_a_turn_whose_place_is_not_certain_is_refused_by_what_the_template_does(process, template, messages, message):
    with pytest.raises(BadRecordError) as caught:
        turns(process, template, messages)
    assert message in str(caught.value)
    assert turns(process, template, messages, everything=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\n' if not loop.last }}{% endfor %}",
            "writes nothing behind a turn of the assistant, so the model would never learn to stop; add {{ eos",
        ),
        (
            "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}<end>{% endfor %}",
            "leaves out the content of messages that is text",
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}<end>{% endfor %}",
            "marks turns without <end>, which ends them, so the model would never learn to stop; move {% endgen",
        ),
    ],
)
def test_a_template_from_which_no_model_learns_to_answer_is_an_error_of_the_configuration(process, template, message):
    with pytest.raises(ConfigError) as caught:
        turns(process, template, TALK)
    assert message in str(caught.value)


def test_marks_of_a_template_decide_also_for_the_last_turn_alone(process):
    marked = (
        "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<model>{% generation %}#"
        "{{ m.content }}<end>{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
    )
    assert turns(process, marked, TALK) == "<user>hi<model>[#yo<end>]<user>and<model>[# ok <end>]"
    assert turns(process, marked, TALK, last_only=True) == "<user>hi<model>#yo<end><user>and<model>[# ok <end>]"
    apart = marked.replace("<end>{%", "{% endgeneration %}{% generation %}<end>{%")
    assert turns(process, apart, TALK, last_only=True) == "<user>hi<model>#yo<end><user>and<model>[# ok <end>]"


def test_space_beside_special_tokens_belongs_to_the_turn_that_it_is_in(process):
    lines = "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'model' }}>\n{{ m.content }}<end>\n{% endfor %}"
    lines += "{% if add_generation_prompt %}<model>\n{% endif %}"
    greedy = [AddedToken(each, special=True, lstrip=True, rstrip=True) for each in SPECIAL]
    for make in (byte_level, metaspace):
        for special in (SPECIAL, greedy):
            tokenizer = make(special, lines)
            for said in ("yo", " yo", "\nyo\n"):
                chat = Chat(tokenizer, process)
                tokens, learned = chat.turns([ASK, SAY | {"content": said}, MORE, LAST])
                names = tokenizer.convert_ids_to_tokens(tokens)
                counted = [name for name, each in zip(names, learned, strict=True) if each]
                assert "".join(counted).count("o") == 2, counted
                assert counted.count("<end>") == 2
                assert not {"<user>", "<model>", "h", "a"} & set(counted)


def test_a_template_that_writes_the_date_is_rendered_again_after_midnight(process):
    class Night:
        day = "1"

        def render(self, arguments):
            day = self.day
            if arguments["conversations"] == [TALK]:  # after the whole conversation, before its parts
                self.day = "2"
            template = "{% set day = '" + day + "' %}" + arguments["chat_template"]
            return process.render({**arguments, "chat_template": template})

    tokenizer = byte_level(SPECIAL, "{{ day }}" + RETURNS)
    chat, night = Chat(tokenizer, Night()), "2<tool>user:hi<end><tool>assistant[<call>final:yo<end>]<tool>"
    assert shown(tokenizer, *chat.turns(TALK)).startswith(night)


def test_what_ends_turns_ends_answers(process):
    tools = CALLS + "{{ '<return>' if m.tool_calls else '<end>' }}"
    for template, ends in {
        DROPS: ["<end>"],
        WHOLE_ENDS: ["<end>"],
        RETURNS: ["<return>"],
        NO_END: ["<user>", "<tool>"],
        OPENS: ["<return>"],
        PARTS: ["<end>"],
        "{% for m in messages %}<user>{{ m.content }}" + tools + "{% endfor %}": ["<end>", "<return>"],
        "{{ raise_exception('no') }}": [],
    }.items():
        tokenizer = byte_level(SPECIAL, template)
        assert tokenizer.convert_ids_to_tokens(Chat(tokenizer, process).end_tokens) == ends, template


THINKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}(no){% endif %}{{ effort }}{% endif %}"
)


def test_arguments_of_a_template_are_those_of_transformers(process):
    tokenizer, asked = byte_level(SPECIAL, THINKS), [{"role": "user", "content": "1"}]
    for arguments in ({}, {"enable_thinking": False}, {"enable_thinking": True, "effort": "low"}):
        text, _ = Chat(tokenizer, process, arguments=arguments).prompt(asked)
        assert text == tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False, **arguments)
    talk = conversation([*asked, {"role": "assistant", "content": "(no)2"}], "messages")
    chat = Chat(tokenizer, process, arguments={"enable_thinking": False})
    assert shown(tokenizer, *chat.turns(talk)) == "<user>1<end><assistant>(no)[2<end>]", "what the prompt has already"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"enable_thought": True},
            "the chat template does not use 'enable_thought' (it uses enable_thinking); remove it",
        ),
        ({"messages": "x"}, "'messages' is set for each conversation; remove it"),
        ({"eos_token": "x"}, "'eos_token' is set for each conversation; remove it"),
    ],
)
def test_an_argument_that_a_template_does_not_use_is_an_error(process, arguments, words):
    with pytest.raises(ConfigError) as caught:
        Chat(byte_level(SPECIAL, THINKS), process, arguments=arguments)
    assert words in str(caught.value)


ARGUMENTS = {"city": "Rom", "days": [1, None], "at": {"lat": 1.5}}
AS_TEXT = json.dumps(ARGUMENTS)
PIECES = {
    "an object": "{{ c.function.arguments | tojson }}",  # Llama, Qwen2.5
    "text": "{{ '' + c.function.arguments }}",  # DeepSeek
    "either": "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
    "any": "{{ c.function.arguments }}",  # an object would be written as Python
}
CONTENTS = {
    "missing": "{{ raise_exception('empty') if m.content is defined }}",
    "empty": "{{ '' + m.content }}",
    "null": "{% set m = {'tool_calls': m.tool_calls if m.content is none else []} %}",  # R1, which says nothing
    "not null": "{% if m.content is defined and m.content is none %}{{ raise_exception('null') }}{% endif %}",
}


@pytest.mark.parametrize("arguments", PIECES)
@pytest.mark.parametrize("content", CONTENTS)
def test_calls_are_written_once_by_templates_that_take_objects_or_text(process, arguments, content):
    template = (
        "{% for m in messages %}{% if m.tool_calls %}<model>" + CONTENTS[content] + "{% for c in m.tool_calls %}"
        "<call>{{ c.function.name }}"
        + PIECES[arguments]
        + "{% endfor %}{% else %}<user>{{ m.content }}{% endif %}<end>"
        "{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
    )
    for given in (ARGUMENTS, AS_TEXT):
        call = {"type": "function", "id": None, "function": {"name": "sky", "arguments": given}}
        ask = ASK | {"content": str(ARGUMENTS)}
        messages = [ask, {"role": "assistant", "content": None, "tool_calls": [call, call]}]
        written = f"<call>sky{AS_TEXT}" * 2
        assert turns(process, template, messages) == f"<user>{ARGUMENTS}<end><model>[{written}<end>]"


def test_what_files_of_columns_fill_with_nulls_is_not_in_calls_and_tools():
    call = {"function": {"name": "sky", "arguments": {"city": "Rom", "day": None, "at": {"lat": None}}}, "index": None}
    rest = {"function": {"name": "now", "arguments": {"city": None, "day": None, "at": None}}, "index": None}
    found = conversation([{"role": "assistant", "tool_calls": [call, rest], "name": None}], "messages")
    sky, now = (
        {"function": {"name": name, "arguments": given}} for name, given in (("sky", {"city": "Rom"}), ("now", {}))
    )
    assert found == [{"role": "assistant", "tool_calls": [sky, now]}]
    properties = {"city": {"type": "string", "enum": ["Rom", None]}, "day": {"type": None, "enum": None}}
    tool = {"name": "sky", "strict": None, "parameters": {"properties": properties}}
    assert tools_of({"tools": [tool, {"name": "now", "parameters": {"properties": {"city": None}}}]}) == [
        {"name": "sky", "parameters": {"properties": {"city": {"type": "string", "enum": ["Rom", None]}}}},
        {"name": "now", "parameters": {"properties": {}}},
    ]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            [{"function": {"name": "sky", "arguments": "{'a': 1}"}}],
            "'sky' with arguments that cannot be read as JSON: Exp",
        ),
        (
            [{"function": {"name": "sky", "arguments": "[1]"}}],
            "call 'sky' with arguments that are a list, expected an ob",
        ),
        ([{"name": "sky", "arguments": 3}], "call 'sky' with arguments that are a number, expected an object"),
        ("[{", "message 1 whose tool_calls are text, and cannot be read as JSON"),
        ({"name": "sky"}, "whose tool_calls are a map, expected a list of calls"),
        ([{"function": {"arguments": {}}}], "whose tool_calls have a call without the name of a function"),
    ],
)
def test_calls_that_cannot_be_read_are_named(calls, message):
    with pytest.raises(BadRecordError) as caught:
        conversation([{"role": "assistant", "tool_calls": calls}], "messages")
    assert message in str(caught.value)


def test_calls_that_a_template_leaves_out_or_does_not_end_are_refused(process):
    call = {"function": {"name": "sky", "arguments": {}}}
    messages = [ASK, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(BadRecordError, match="has calls of functions that the chat template leaves out, or does not"):
        turns(process, WHOLE_ENDS, messages)
    never = "{% for m in messages %}<user>{{ m.content }}" + CALLS + "{{ '<end>' if not m.tool_calls or "
    never += "m.tool_calls | length > 1 }}{% endfor %}{% if add_generation_prompt %}<user>{% endif %}"
    with pytest.raises(
        BadRecordError, match=r"turn 2 that calls functions and that .* does not end \(its last token is"
    ):
        turns(process, never, messages)
    again = [*messages, {"role": "tool", "content": "sun"}, SAY, ASK, messages[1]]
    assert (
        turns(process, NO_END, again)
        == "<user>\nhi<model>[\n(sky)<tool>]sun<model>[\nyo<user>]\nhi<model>[\n(sky)<tool>]"
    )


def test_a_note_says_that_turns_end_with_plain_text(process):
    chat = Chat(byte_level(["<user>"], WHOLE_ENDS.replace("eos_token", "''")), process)
    chat.turns(TALK)
    assert "the chat template ends turns with '<end>', which is no special token of the tokenizer" in chat.notes[0]


def test_notes_say_once_what_is_not_trained(process):
    tokenizer = byte_level(SPECIAL, DROPS)
    chat = Chat(tokenizer, process)
    assert chat.notes == []
    for _ in range(2):
        chat.turns([ASK, THOUGHT])
    first, second = chat.notes
    assert first.startswith(
        "the chat template leaves out thoughts (<think>...</think>, reasoning_content) of the assis"
    )
    assert second.startswith("the chat template begins answers with '<think>\\n' when the model generates, but not")


def test_a_note_says_that_thoughts_beside_the_content_are_left_out(process):
    chat = Chat(byte_level(SPECIAL, NO_END), process)
    chat.turns([ASK, SAY | {"reasoning_content": "yo"}])  # as in the answer
    assert chat.notes == []
    chat.turns([ASK, SAY | {"reasoning_content": "hm"}])
    assert "leaves out thoughts" in chat.notes[0]
    opens = Chat(byte_level(SPECIAL, OPENS), process)
    opens.turns(TALK)
    assert "begins answers with '<think></think>' when the model generates" in opens.notes[0]
