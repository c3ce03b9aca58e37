"""The job file of a script: what can be read from the script, and what else may be wanted as comments."""

import json
import re
from collections.abc import Iterator, Sequence

from torchyard.api.resource import API_VERSION, KIND
from torchyard.api.yaml_text import comment, readable_json
from torchyard.client.scaffold.options import Option
from torchyard.client.scaffold.summary import CHECKPOINT_FOLDER, Framework, Summary

CHANGE = "CHANGE-ME"
_MAX_TEXT, _MAX_LISTED = 80, 40
_PLAIN = re.compile(r"--|torchrun|python|[A-Za-z_./][A-Za-z0-9_./-]*\.py")
_HINTS = {
    Framework.TRANSFORMERS: "TrainingArguments(output_dir=FOLDER), and train(resume_from_checkpoint=...) with its "
    "get_last_checkpoint(FOLDER)",
    Framework.LIGHTNING: "ModelCheckpoint(dirpath=FOLDER, save_last=True), and fit(..., ckpt_path='last')",
    Framework.ACCELERATE: "accelerator.save_state(FOLDER), and load_state(FOLDER) if it is not empty",
    Framework.TORCH: "save to FOLDER, and load from it if it is not empty",
}


def job_file(script: str, name: str, summary: Summary, gpus: int, file: str) -> str:
    """Return the text of a job file.

    Args:
        script: path of the script, relative to the folder of the job file.
        name: of the job.
        summary: about the script.
        gpus: of this machine.
        file: path of the job file, for the comments.
    """
    required = [each for each in summary.options if each.required]
    lines = [
        f"Written by `torchyard init {script}`. `torchyard validate {file}` checks it, and `torchyard run` starts it.",
        f"The script: {_title(summary)}.",
        "`kubectl explain trainingjob.spec` and docs/reference/trainingjob.md describe all fields.",
    ]
    text = "".join(map(comment, lines))
    text += f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: {name}}}\nspec:\n"
    sections = (
        *_command(script, summary),
        *_arguments(summary.options, required),
        *_processes(summary, gpus),
        *_resume(summary),
        *_metrics(summary),
        *_cluster(script),
    )
    return text + "".join(f"  {line}\n" for line in sections)


def _title(summary: Summary) -> str:
    gang = ", several processes that train one model" if summary.distributed else ""
    count = len(summary.options)
    options = f"{count} option{'' if count == 1 else 's'} of {summary.parser}" if summary.parser else "no option"
    return f"{summary.framework}{gang}{', CUDA' if summary.cuda else ''}, {options}"


def _command(script: str, summary: Summary) -> Iterator[str]:
    if summary.framework is Framework.PYTHON:
        yield f"command: {_flow(['python', script])}"
        return
    head = ["torchrun", "--"] if summary.options else ["torchrun"]  # behind `--`, all options are the script's
    yield f"command: {_flow([*head, script])} # sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
    if summary.framework is Framework.TRANSFORMERS:
        yield "preload: [transformers] # imported once for all rounds"


def _arguments(options: Sequence[Option], required: Sequence[Option]) -> Iterator[str]:
    others = [each for each in options if not each.required]
    if required:
        yield "args:"
        for each in required:
            said = f" # required{_about(each)}"
            if each.positional or each.flag:
                yield f"- {CHANGE if each.positional else json.dumps(each.name)}{said}"
            else:
                yield f"- {json.dumps(f'{each.name}={CHANGE}')}{said}"
    elif others:
        yield "# args: # defaults of the script; uncomment to change them"
    for each in others[:_MAX_LISTED]:
        value = "" if each.flag or each.positional else f"={_short(each.default or '...')}"
        yield _commented(
            f"- {json.dumps(_short(each.name) + value)}{f' # {about}' if (about := _short(each.help)) else ''}"
        )
    if len(others) > _MAX_LISTED:
        yield f"# and {len(others) - _MAX_LISTED} more"


def _processes(summary: Summary, gpus: int) -> Iterator[str]:
    if not summary.distributed:
        if summary.cuda and gpus:
            yield "gpusPerNode: 1"
        if summary.framework is Framework.TORCH:
            yield "# The script does not call init_process_group: each of several processes would train its own model."
        return
    yield "nodes: 1"
    if not summary.cuda:
        yield "procsPerNode: 1 # on the CPU"
    elif gpus:
        yield f"gpusPerNode: {gpus} # of this machine; one process on each"
    else:
        yield "# gpusPerNode: 1 # this machine has none, so the script trains on the CPU; one process on each GPU"


def _resume(summary: Summary) -> Iterator[str]:
    if not summary.checkpoints and (hint := _HINTS.get(summary.framework)):
        yield f"# After a failure the script starts again. FOLDER = os.environ['{CHECKPOINT_FOLDER}'] is kept:"
        yield f"# {hint}."


def _metrics(summary: Summary) -> Iterator[str]:
    if summary.framework in {Framework.TRANSFORMERS, Framework.LIGHTNING} or summary.reports:
        return  # read without a setting
    yield "# metrics: {patterns: ['loss (?P<loss>[0-9.e+-]+)']} # read from the output, for status and curves"


def _cluster(script: str) -> Iterator[str]:
    yield "# For `torchyard submit`, which starts the job on a cluster:"
    yield f"# image: registry.example.com/me/train:1 # has {script} and what it imports in its working directory"
    yield "# resources: {cpu: 4, memory: 16Gi}"
    yield f"# checkpoint: {{volume: {{claim: checkpoints}}}} # the claim behind {CHECKPOINT_FOLDER}"
    yield "# profile: research # defaults and limits of the cluster's administrators; `kubectl get trainingprofiles`"


def _about(option: Option) -> str:
    return f": {_short(option.help)}" if option.help else f" ({_short(option.name)})" if option.positional else ""


def _commented(line: str) -> str:
    return comment(line).rstrip("\n")


def _short(text: str) -> str:
    one = comment(" ".join(text.split()))[2:-1]  # printable
    return one if len(one) <= _MAX_TEXT else one[: _MAX_TEXT - 3] + "..."


def _flow(words: Sequence[str]) -> str:
    """Return texts as a list on one line; JSON is YAML."""
    plain = all(map(_PLAIN.fullmatch, words))
    return f"[{', '.join(words)}]" if plain else readable_json(json.dumps(list(words)))
