"""Tools: formats of calls, functions with limits, completions of several turns, and runs that are the same again."""

import json
import re
from pathlib import Path

import pytest
import torch
from little_rl import session_of
from tests.support.trainers.gangs import Yard, until

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.chat.tool_calls import ToolCall, ToolFormat
from torchyard_trainers.lm.functions.tools import Tools
from torchyard_trainers.lm.generation.engine import Completions, Sampling
from torchyard_trainers.lm.generation.tool_engine import ToolEngine, ToolUse
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling
from torchyard_trainers.lm.tokens import character_tokenizer

MODULES = Path(__file__).parents[1] / "support" / "worker_modules"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Double a number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "The number."}},
            "required": ["number"],
        },
        "return": {"type": "string"},
    },
}
# In the manner of Qwen 3 and 3.5, Llama 3.1, Mistral and gpt-oss.
QWEN = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user"
    "\n<tool_response>{{ m.content }}</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}"
    '{% for c in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGS = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n"
    "{{ m.content }}<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>\n{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
LLAMA = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<h>{{ m.role }}</h>\n\n"
    '{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": '
    "{{ f.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}"
)
MISTRAL = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] ["
    '{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    "\"id\": \"{{ c.id }}\"}{{ ', ' if not loop.last }}{% endfor %}]</s>{% elif m.role == 'tool' %}[RESULTS]"
    "{{ m.content }}[/RESULTS]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>"
    "{% endif %}{% endfor %}"
)
GPT_OSS = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<start>{% if m.tool_calls %}assistant to="
    "{{ m.tool_calls[0].function.name }}<chan>json<msg>{{ m.tool_calls[0].function.arguments | tojson }}<call>"
    "{% else %}{{ m.role }}<msg>{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant{% endif %}"
)
CALLS = [ToolCall("double", {"number": 21}), ToolCall("double", {"number": {"ä": [1, "}"]}})]


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(MODULES))


def form(template, ends):
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages, opens):
        try:
            words = {"chat_template": template, "add_generation_prompt": opens, "tools": [SCHEMA]}
            return render_jinja_template(conversations=[list(messages)], **words)[0][0]
        except Exception as error:
            raise BadRecordError("messages", str(error)) from error

    return ToolFormat(render, [SCHEMA], ends)


@pytest.mark.parametrize(
    ("template", "ends", "said", "calls", "answered"),
    [
        (
            QWEN,
            ["<|im_end|>"],
            (
                'Well.\n<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call>\n<tool_call>\n'
                '{"arguments": {"number": {"ä": [1, "}"]}}, "name":"double"}\n</tool_call>'
            ),
            CALLS,
            (
                "\n<|im_start|>user\n<tool_response>42</tool_response><|im_end|>\n<|im_start|>user\n<tool_response>no"
                "</tool_response><|im_end|>\n<|im_start|>assistant\n"
            ),
        ),
        (
            TAGS,
            ["<|im_end|>"],
            (
                "Hm.\n</think>\n\n<tool_call>\n<function=double>\n<parameter=number>\n21\n</parameter>\n</function>\n"
                '</tool_call>\n<tool_call><function=double><parameter=number>{"ä": [1, "}"]}</parameter></function>'
            ),
            CALLS,
            "\n<|im_start|>user\n42<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n<think>\n",
        ),
        (
            LLAMA,
            ["<|eot|>"],
            '{"name": "double", "parameters": {"number": 21}}',
            CALLS[:1],
            "<h>tool</h>\n\n42<|eot|><h>assistant</h>\n\n",
        ),
        (
            MISTRAL,
            ["</s>"],
            (
                '[TOOL_CALLS][{"name": "double", "arguments": {"number": 21}, "id": "callcall0"}, '
                '{"name": "double", "arguments": {"number": {"ä": [1, "}"]}}}]'
            ),
            CALLS,
            "[RESULTS]42[/RESULTS][RESULTS]no[/RESULTS]",
        ),
        (
            GPT_OSS,
            ["<end>", "<call>"],
            ' to=double<chan>json<msg>{"number": 21}',
            CALLS[:1],
            "<start>tool<msg>42<end><start>assistant",
        ),
    ],
    ids=["qwen", "qwen-3.5", "llama", "mistral", "gpt-oss"],
)
def test_calls_are_read_and_answers_written_as_the_template_writes_them(template, ends, said, calls, answered):
    found = form(template, ends)
    assert found.calls(said) == calls
    assert found.answer(calls, ["42", "no"][: len(calls)], ends[-1]) == answered
    assert found.answer(calls[:1], ["42"], None).startswith(ends[-1]), "a turn that a text of stop ended has no end yet"


@pytest.mark.parametrize("said", ["42", '<tool_call>\n{"name": "double", "argum', '<tool_call>\n["double"]', "{}", ""])
def test_what_is_no_call_is_an_answer(said):
    assert form(QWEN, ["<|im_end|>"]).calls(said) == []
    assert form(LLAMA, ["<|eot|>"]).calls(said) == []


def test_a_template_that_cannot_be_used_with_tools_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match=r"does not write the tools \(double is missing in its prompt\)"):
        form("{% for m in messages %}{{ m.content }}{% endfor %}", [])
    names = QWEN.replace('{"name": "{{ c.function.name }}", "arguments": ', "{{ c.function.name }}: ")
    with pytest.raises(ConfigError, match="does not write the calls of functions as JSON or between tags"):
        form(names.replace("arguments | tojson }}}", "arguments.zq5jx }}"), [])


def test_what_a_call_does_wrong_is_its_answer():
    names = ("double", "meet", "wait", "hang", "leave", "much")
    tools = Tools([f"model_tools:{name}" for name in names], seconds=0.5, workers=2)
    assert tools.schemas[0] == SCHEMA
    calls = [
        *(ToolCall("meet", {"name": each}) for each in "pq"),
        ToolCall("double", {"number": 4}),
        ToolCall("double", {"number": "x", "more": 1}),
        ToolCall("nothing", {}),
        ToolCall("wait", {"name": "w"}),
        ToolCall("hang", {"name": "h"}),
        ToolCall("leave", {"name": "l"}),
        ToolCall("much", {"count": 20_000}),
        ToolCall("double", {"number": 5}),
    ]
    found = tools(calls)
    tools.close()
    assert [each.text for each in found[:3]] == ['{"met": "p"}', '{"met": "q"}', "8"]
    assert found[9].text == "10"
    assert [each.failed for each in found] == [False] * 3 + [True] * 6 + [False]
    expected = ["unexpected keyword", "there is no tool 'nothing'; use double, meet", "no answer within 0.5 s"]
    expected += ["no answer within 0.5 s", "the process of the tool ended", "an answer of 20000 characters"]
    for each, text in zip(found[3:9], expected, strict=True):
        assert text in json.loads(each.text)["error"]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (["model_tools:undocumented"], "the tool model_tools:undocumented has no description of its arguments"),
        (["model_tools:without_types"], "the tool model_tools:without_types has no description of its arguments"),
        (["model_tools:no"], "model_tools has no function 'no'"),
        (["nowhere:f"], "there is no module 'nowhere'; set workingDir"),
        (["model_tools:double", "model_tools:double"], "two functions have the name 'double'; rename one"),
    ],
)
def test_a_function_that_is_no_tool_is_an_error_of_the_configuration(tools, message):
    with pytest.raises(ConfigError, match=message):
        Tools(tools, seconds=1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "ppo", "tools": ["a:b"], "data": ["x"]}, "tools: is of method grpo, not ppo"),
        ({"method": "grpo", "tools": ["a:b"]}, "tools: a:b, but the prompts of the task reverse are no conversations"),
        ({"method": "grpo", "maxTurns": 3}, "maxTurns: 3, but trainer.params.tools is not set; set it"),
        ({"method": "grpo", "tools": ["a.py:b"], "data": ["x"]}, "tools: a.py:b names a file; write its module: a:b"),
        ({"method": "grpo", "tools": ["a:b"], "data": ["x"], "engine": "vllm"}, "tools need the engine torch"),
        ({"method": "grpo", "tools": ["a"], "data": ["x"]}, "trainer.params.tools"),
    ],
)
def test_parameters_of_tools_that_contradict_others_are_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        resolve_params(params, Parallelism())


class Script:
    """An engine that says what a test has written, turn by turn."""

    def __init__(self, tokenizer, turns):
        self._tokenizer, self._turns, self.asked = tokenizer, turns, []

    def generate(self, prompts, ids, sampling):
        self.asked.append([self._tokenizer.decode(each) for each in prompts])
        said = [self._turns[int(each)].pop(0) for each in ids]
        rows = [self._tokenizer.encode(each)[: sampling.max_new_tokens] for each in said]
        ends = [row[-1] == self._tokenizer.eos_token_id for row in rows]
        tokens = [torch.tensor(row) for row in rows]
        mask = [torch.ones(len(row), dtype=torch.bool) for row in rows]
        padded = [torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in (tokens, mask)]
        return Completions(*padded, torch.tensor(ends))


def call(number):
    return f'<call>{{"name": "double", "arguments": {{"number": {number}}}}}<eos>'


def test_turns_and_answers_are_one_completion_in_which_the_model_learns_its_own_tokens():
    tokenizer, session = character_tokenizer(), session_of(LanguageModeling(resolve_params({}, Parallelism())))
    tools = Tools(["model_tools:double"], seconds=10)
    form = Chat(tokenizer).tool_format(tools.schemas)
    turns = [
        [call(1) + "", call(2), "4<eos>"],  # two calls, then an answer
        ["hi<eos>"],
        [call(3), call(4), call(5)],  # more turns than allowed
        [call(6), "9" * 200],  # longer than allowed
    ]
    script = Script(tokenizer, turns)
    engine = ToolEngine(script, ToolUse(tools, form, tokenizer, (tokenizer.eos_token_id,), 3), session)
    found = engine.generate([[5], [6], [7], [8]], torch.arange(4), Sampling(200))
    tools.close()

    def shown(row, *, own):
        kept = found.mask[row] & (found.generated[row] if own else ~found.generated[row])
        return tokenizer.decode(found.tokens[row][kept].tolist())

    assert shown(0, own=True) == call(1) + call(2) + "4<eos>"
    assert shown(0, own=False) == "tool: 2\nassistant: tool: 4\nassistant: "
    assert shown(1, own=True) == "hi<eos>"
    assert shown(3, own=True) == call(6) + "9" * (200 - len(tokenizer.encode(call(6) + "tool: 12\nassistant: ")))
    assert found.stopped.tolist() == [True, True, False, False]
    assert found.calls.tolist() == [[2, 0], [0, 0], [2, 0], [1, 0]]
    assert found.lengths.tolist()[3] == 200
    assert [len(each) for each in script.asked] == [4, 3, 2]
    assert script.asked[1][0] == tokenizer.decode([5]) + call(1) + "tool: 2\nassistant: ", "as it was sampled"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    file = tmp_path_factory.mktemp("tools") / "rows.jsonl"
    rows = []
    for number in range(12):
        calls = [{"type": "function", "function": {"name": "double", "arguments": {"number": 7}}}]
        said = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "14"}]
        said.append({"role": "assistant", "content": "14"})
        rows.append({"prompt": [{"role": "user", "content": f"{number}"}], "completion": said, "answer": "14"})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def job(records, steps, **sections):
    params = {
        "method": "grpo",
        "data": [str(records)],
        "validation": [str(records)],
        "tools": ["model_tools:double"],
        "rewards": [{"reward": "shaped"}, {"reward": "model_rewards:turns", "weight": 0.1}],
        "steps": steps,
        "sftSteps": 30,
        "sftLr": 1e-2,
        "batch": 8,
        "group": 4,
        "maxNewTokens": 90,
        "maxTurns": 3,
        "evalSamples": 2,
        "evalEvery": 100,
        "logEvery": 1,
        "schedule": "constant",
        "warmupSteps": 0,
    }
    trainer = {"name": "lm", "params": params}
    return {"trainer": trainer, "device": "cpu", "logging": {"tensorboard": False}, **sections}


@pytest.mark.e2e
def test_rollouts_with_tools_are_the_same_after_a_kill_and_on_two_processes(fork_server, tmp_path_factory, records):
    whole, stopped, sharded = (Yard(fork_server, tmp_path_factory.mktemp(name)) for name in ("one", "two", "three"))
    here = {"PYTHONPATH": str(MODULES)}
    whole.train(job(records, 34), env=here)
    expected = {line["step"]: line for line in whole.metrics()}
    assert expected[32]["toolCalls"] > 0, "the model has learned to call"
    every = job(records, 34, checkpoint={"interval": {"steps": 1}})
    folder = re.escape(str(stopped.checkpoints))
    gang = stopped.start(every, env=here, hold=(0, rf"os.rename {folder}/\.step-00000033\."))
    until(stopped.held.exists)
    gang.kill()
    gang.wait()
    stopped.train(every, env=here)
    assert stopped.weights() == whole.weights()
    for name in ("loss", "reward", "toolCalls", "reward2", "gradNorm"):
        assert stopped.metrics()[-1][name] == expected[34][name]
    sharded.train(job(records, 32, parallelism={"strategy": "fsdp"}), 2, env=here)
    last = sharded.metrics()[-1]
    assert last["loss"] == pytest.approx(expected[32]["loss"], abs=1e-4)
    assert last["toolCalls"] == expected[32]["toolCalls"]
