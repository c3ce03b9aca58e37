"""`torchyard chat NAME`."""

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say

MAX_NEW_TOKENS = 512


def chat_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `chat`."""
    parser.add_argument(
        "name",
        metavar=common.RUN_NAME,
        help="run of this machine, or a folder with a Hugging Face model or with checkpoints",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message at the beginning of the conversation")
    parser.add_argument(
        "--temperature",
        metavar="NUMBER",
        type=_number(0, 100),
        default=0.7,
        help="sampling temperature; 0 always takes the most probable token; default 0.7",
    )
    parser.add_argument(
        "--top-p",
        metavar="SHARE",
        type=_number(0, 1),
        default=1.0,
        help="probability mass of the tokens that are sampled from; default 1",
    )
    parser.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=common.counted,
        default=MAX_NEW_TOKENS,
        help="longest answer, in tokens; default 512",
    )
    parser.add_argument(
        "--seed", metavar="N", type=common.natural, default=0, help="seed of the random numbers; default 0"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="device to use; default auto: a GPU if there is one",
    )
    parser.add_argument(
        "--template",
        metavar="NAME=VALUE",
        action="append",
        type=_template_argument,
        default=[],
        help="argument of the chat template, such as enable_thinking=false; repeatable",
    )
    parser.add_argument(
        "--raw", action="store_true", help="complete each line as it is, without a chat template and earlier turns"
    )


def chat(
    *,
    name: str,
    system: str | None,
    temperature: float,
    top_p: float,
    max_new_tokens: int,
    seed: int,
    device: Literal["auto", "cuda", "cpu"],
    template: list[tuple[str, Any]],
    raw: bool,
) -> int:
    """Carry out `torchyard chat`.

    The model of a run is its export `hf-merged` or `hf`, or else its newest checkpoint. For a job on a cluster, fetch
    the export first: `torchyard fetch NAME export/hf -o DIR`, then `torchyard chat DIR`.

    Answers are written to stdout as they are generated, everything else to stderr. If stdin is not a terminal, each
    line of it is one message.
    """
    if raw and (system is not None or template):
        given = "--system sets a message" if system is not None else "--template sets an argument of the chat template"
        raise RefusalError(f"{given}, and --raw has no messages", "leave one of them out")
    path = model_folder(name)
    sampling = ["--temperature", temperature, "--top-p", top_p, "--max-new-tokens", max_new_tokens, "--seed", seed]
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    arguments = ["--template-arguments", json.dumps(dict(template))] if template else []
    with Model(path, [*map(str, sampling), "--device", device, *arguments]) as model:
        if not raw and not model.has_template:
            raise RefusalError(
                f"{path}: the tokenizer has no chat template", "give --raw, or add chat_template.jinja to the folder"
            )
        if terminal:
            say("Write a message to the model; Ctrl-D ends the chat.")
        messages = [{"role": "system", "content": system}] if system is not None else []
        for line in lines(terminal=terminal):
            messages.append({"role": "user", "content": line})
            pieces = []
            for piece in model.ask({"text": line} if raw else {"messages": messages}):
                print(piece, end="", flush=True)
                pieces.append(piece)
            print(flush=True)
            messages.append({"role": "assistant", "content": "".join(pieces)})
    return SUCCEEDED


def model_folder(name: str) -> Path:
    """Return the folder that a name means: that of an export or of checkpoints.

    Raises:
        RefusalError: it is no folder of a model, and there is no such run.
    """
    from torchyard.client.local import find

    path = Path(name)
    if os.sep in name or path.is_dir():
        for each in (path, path / "export" / "hf-merged", path / "export" / "hf"):
            if any((each / file).is_file() for file in ("config.json", "adapter_config.json")):
                return each.absolute()
        if (path / "run.json").is_file():
            return path.absolute()
        if not path.exists():
            return path  # the trainers know what may be meant
        raise RefusalError(f"{name} has neither config.json nor checkpoints", "name a folder of a model, or a run")
    root = find(name).checkpoints
    for each in (root / "export" / "hf-merged", root / "export" / "hf", root):
        if (each / "manifest.json").is_file() or (each / "run.json").is_file():
            return each
    raise RefusalError(f"the run {name!r} has no checkpoint yet", f"`torchyard status {name}`", FAILED)


def lines(*, terminal: bool) -> Iterator[str]:
    """Yield the turns of the user that are not empty.

    Raises:
        RefusalError: a line is not UTF-8.
    """
    from torchyard.cli.output import console

    shown = console(stderr=True) if terminal else None
    for number in count(1):
        if shown is not None:
            shown.print("> ", style="bold cyan", end="")
        line = sys.stdin.buffer.readline()
        if not line:
            break
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            problem = f"stdin, line {number}: not UTF-8 ({error})"
            raise RefusalError(problem, "convert it, for example by iconv") from None
        if text.strip():
            yield text
    if shown is not None:
        shown.print()


class Model:
    """A process of the trainers that holds the model; it ends with the context."""

    def __init__(self, path: Path, options: list[str]) -> None:
        """Load the model of a folder.

        Raises:
            RefusalError: it cannot be loaded, or trainers are not installed here.
        """
        from torchyard.interpreter import own_environment, own_python

        words = own_python("-m", "torchyard_trainers", "chat", str(path), *options)
        quiet = own_environment(os.environ, TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=quiet
        )
        try:
            self.has_template: bool = self._read()["template"]
        except BaseException:
            self._close()
            raise

    def ask(self, request: dict[str, Any]) -> Iterator[str]:
        """Yield the pieces of an answer.

        Raises:
            RefusalError: the model cannot answer.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        while "piece" in (reply := self._read()):
            yield reply["piece"]
        if "error" in reply:
            raise RefusalError(reply["error"], code=FAILED)

    def _read(self) -> dict[str, Any]:
        from torchyard.client.trainers import refusal

        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            reply: dict[str, Any] = json.loads(line)
            return reply
        code = self._process.wait()
        self._errors.seek(0)
        raise refusal(
            self._errors.read(),
            code,
            {"trainer.params.pretrained: ": "", "trainer.params.templateArguments": "--template"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _template_argument(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE`; true, false and numbers are those of JSON, everything else is text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, parsed if isinstance(parsed, bool | int | float) else value


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse
