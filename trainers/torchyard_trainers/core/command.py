"""The command line, and the guard that turns every error into an exit code and a failure file."""

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from torchyard_trainers.core import gpus_command
from torchyard_trainers.core.collection import no_collections
from torchyard_trainers.core.exits import (
    ConfigError,
    DataError,
    Exit,
    GpuMemoryError,
    HungError,
    PreemptedError,
    TrainerError,
    exit_code,
)
from torchyard_trainers.core.hub import folder_fix

PROG = "torchyard_trainers"
# Libraries in Rust raise what is no Exception of Python: tokenizers, for example, for a pattern that is too costly.
_PANIC = "a library stopped: {}; where it says Onig, replace tokenizer.json, whose pattern takes too long for a text"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; errors go to stderr and to `failure.<rank>.json`."""
    options = parse(arguments)
    faulthandler.enable()
    try:
        act(options)
    except Exception as error:  # noqa: BLE001 - the guard: every ending gets its code
        return end(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return end(DataError(_PANIC.format(" ".join(str(error).split())[:300])))
    return Exit.DONE


def act(options: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    if options.command == "schema":
        from torchyard_trainers.registry import schema

        sys.stdout.write(schema(options.trainer))
        return
    if options.command == "gpus":
        sys.stdout.write(gpus_command.text(options))
        return
    if options.command == "dataset":
        sys.stdout.write(json.dumps(described(options.path, options.tokenizer)) + "\n")
        return
    if options.command == "chat":
        talk(options)
        return
    if options.command == "check":
        with no_collections():
            from torchyard_trainers import registry
            from torchyard_trainers.core import config

        registry.dry_run(config.load(config_of(options)))
        return
    if options.command == "plan":
        check_plan(options)
        with no_collections():
            from torchyard_trainers.core import config
            from torchyard_trainers.core.memory import plan

        asked = {"ranks": options.world, "local": options.local, "memory": options.memory, "bf16": options.bf16}
        sys.stdout.write(plan.plan(config.load(config_of(options)), **asked))
        return
    with no_collections():
        from torchyard_trainers.core.worker import work

    answer_with_stacks()
    work(options, on_hang=leave_at_once)


def described(path: str, tokenizer: Path | None) -> dict[str, Any]:
    """Return what a dataset holds: records of text, or a LeRobot dataset."""
    from torchyard_trainers.core.data.opening import is_text

    if is_text(path):
        with no_collections():
            from torchyard_trainers.lm.data.inspection import inspect
        return inspect(path, tokenizer)
    from torchyard_trainers.core.data import inspection  # without torch

    return inspection.inspect(Path(path))


def talk(options: argparse.Namespace) -> None:
    """Answer conversations on stdin until it ends.

    Raises:
        ConfigError: the path does not exist; said before PyTorch is imported, which takes seconds.
    """
    if not options.path.exists():
        raise ConfigError(f"{options.path} does not exist; {folder_fix(str(options.path), 'model')}")
    with no_collections():
        from torchyard_trainers.lm.generation.engine import Sampling
        from torchyard_trainers.lm.generation.talk import answer

    chosen = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed, "stream": "chat"}
    sampling = Sampling(options.max_new_tokens, **chosen)
    template = json.loads(options.template_arguments)
    answer(options.path, options.device, sampling, sys.stdin, sys.stdout, template_arguments=template)


def answer_with_stacks() -> None:
    """Write the stacks of all threads to stderr on SIGUSR2, unless the agent has installed a handler already."""
    status = Path("/proc/self/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    if not int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1:
        faulthandler.register(signal.SIGUSR2, all_threads=True)


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, with the exit code of a wrong config."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.CONFIG, f"{PROG}: {message}; see --help\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; without a command it trains."""
    parser = _Parser(prog=PROG, description="Train a built-in workload; settings come from TORCHYARD_CONFIG.")
    parser.set_defaults(command="work")
    parser.add_argument("--config", type=Path, help="JSON config instead of $TORCHYARD_CONFIG")
    parser.add_argument(
        "--checkpoint-dir", type=Path, help="instead of $TORCHYARD_CHECKPOINT_DIR; default ./checkpoints"
    )
    commands = parser.add_subparsers(title="commands", metavar="")
    describe = commands.add_parser("schema", help="print the JSON Schema of a workload's params")
    describe.add_argument("trainer")
    describe.set_defaults(command="schema")
    look = commands.add_parser("gpus", help="print the GPUs of this machine as JSON")
    gpus_command.arguments(look)
    look.set_defaults(command="gpus")
    data = commands.add_parser("dataset", help="print what a dataset holds, and its problems, as JSON")
    data.add_argument("path", help="folder of a LeRobot dataset, or files of text (.jsonl, .json, .parquet, .csv, ...)")
    data.add_argument("--tokenizer", type=Path, help="of text: folder of a model, whose tokens are counted")
    data.set_defaults(command="dataset")
    chat = commands.add_parser("chat", help="answer conversations, as lines of JSON, with a language model")
    chat.add_argument("path", type=Path, help="Hugging Face folder, or checkpoint folder of a run of lm")
    chat.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    chat.add_argument("--temperature", type=float, default=1.0)
    chat.add_argument("--top-p", type=float, default=1.0)
    chat.add_argument("--max-new-tokens", type=int, default=512)
    chat.add_argument("--seed", type=int, default=0)
    chat.add_argument("--template-arguments", default="{}", help="of the chat template, as a JSON object")
    chat.set_defaults(command="chat")
    check = commands.add_parser("check", help="check the job of --config as its first round would")
    check.set_defaults(command="check")
    plan = commands.add_parser("plan", help="print how much memory of a rank a step of --config will need")
    plan.add_argument("--world", type=int, required=True, help="ranks")
    plan.add_argument("--local", type=int, required=True, help="ranks of a node")
    plan.add_argument("--memory", type=int, help="bytes of a rank's GPU; without it, ranks are on a CPU")
    plan.add_argument("--no-bf16", dest="bf16", action="store_false", help="that GPU is too old to compute in bf16")
    plan.set_defaults(command="plan")
    return parser.parse_args(arguments)


def config_of(options: argparse.Namespace) -> Path:
    """Return the path of `--config`; these commands ignore `TORCHYARD_CONFIG`.

    Raises:
        ConfigError: `--config` is missing.
    """
    if options.config is None:
        what = options.command
        raise ConfigError(f"--config: is missing, so there is no job to {what}; pass --config FILE before {what}")
    path: Path = options.config
    return path


def check_plan(options: argparse.Namespace) -> None:
    """Check `--world` and `--local`.

    Raises:
        ConfigError: one of them is out of range.
    """
    if options.world < 1:
        raise ConfigError(f"--world: {options.world} is not a number of ranks; pass at least 1")
    if not 1 <= options.local <= options.world:
        raise ConfigError(f"--local: a node cannot have {options.local} of {options.world} ranks; pass 1 to --world")


def end(error: Exception) -> Exit:
    """Report why this worker ends and return the exit code."""
    code = exit_code(error)
    rank = int(os.environ.get("RANK", "0"))
    if code is Exit.PREEMPTED:
        if rank == 0:
            sys.stderr.write(f"{PROG}: {error}\n")
        return code
    if isinstance(error, TrainerError):
        if rank == 0 or not isinstance(error, ConfigError):
            sys.stderr.write(f"{PROG}: {error}\n")
    elif code is Exit.PEER_LOST:
        sys.stderr.write(f"{PROG}: rank {rank} lost a peer: {str(error).splitlines()[0] if str(error) else error!r}\n")
    else:
        traceback.print_exception(error)
    write_failure(error, code, rank)
    return code


def leave_at_once(error: HungError) -> NoReturn:
    """End a worker whose main thread hangs: write the stacks of all threads to its log, then exit."""
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(end(error))


def write_failure(error: Exception, code: Exit, rank: int) -> None:
    """Write `failure.<rank>.json`; an error that peers caused is marked secondary."""
    run_dir = os.environ.get("TORCHYARD_RUN_DIR")
    if not run_dir or isinstance(error, PreemptedError):
        return
    facts = {
        "rank": rank,
        "code": int(code),
        "exception": type(error).__name__,
        "message": str(error)[:2000],
        "traceback": "".join(traceback.format_exception(error))[-6000:],
        "time": time.time(),
        "secondary": code is Exit.PEER_LOST,
    }
    if isinstance(error, GpuMemoryError):
        facts["nextMicroBatch"] = error.next_micro_batch
    if isinstance(error, HungError):
        facts |= {"secondary": error.secondary, "phase": error.phase, "step": error.step}
        facts["traceback"] = error.stack[-6000:]
    path = Path(run_dir) / f"failure.{rank}.json"
    try:
        path.with_suffix(".tmp").write_text(json.dumps(facts))
        path.with_suffix(".tmp").replace(path)
    except OSError as unwritable:
        sys.stderr.write(f"{PROG}: {path}: {unwritable.strerror}\n")
