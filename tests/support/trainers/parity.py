"""What the trainer does with each family of models beside transformers: the table in docs/language-models.md.

    python -m tests.support.trainers.parity [FAMILY ...] [--write docs/language-models.md]

Each row is found by a tiny model with random weights; `tests/trainers/test_lm_parity.py` finds them again.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from tests.support.trainers.families import FAMILIES, save_family, save_vision_family

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.vision_language import FAMILIES as SEEING
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World
from torchyard_trainers.lm.agreement import cache_problem, check_agreement, packing_problem
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

DOCUMENT = Path(__file__).parents[3] / "docs" / "language-models.md"
BEGIN, END = "<!-- families: python -m tests.support.trainers.parity --write -->", "<!-- end of families -->"
VISION = {"qwen2_vl": "tiny-qwen2-vl", "qwen2_5_vl": "tiny-qwen2.5-vl", "qwen3_vl": "tiny-qwen3-vl"}
ROWS = (*FAMILIES, *VISION)
ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1)
TOLERANCE = 1e-5  # of logits


class Row(NamedTuple):
    """Whether each of these is as in transformers."""

    family: str
    logits: bool
    packed: bool
    cached: bool
    lora: bool
    exported: bool

    def __str__(self) -> str:
        """Return a line of the table."""
        cells = ["yes" if each else "no" for each in self[1:]]
        return f"| `{self.family}` | {' | '.join(cells)} |"


def row_of(family: str, folder: Path) -> Row:
    """Find the row of a family, with files in an empty folder."""
    source = folder / "model"
    if family in VISION:
        save_vision_family(VISION[family], source)
    else:
        save_family(family, source)
    try:
        work, session = begun(source, folder)
        check_agreement(session, family, packs=False)
    except ConfigError:
        return Row(family, *[False] * 5)
    with torch.no_grad():
        cached = cache_problem(session.parallel.module, ALONE.device, dtype=torch.float32) is None
    packed = family not in VISION and packs(source, folder)
    return Row(family, True, packed, cached, adapts(source, folder), exports(work, session, source, folder))


def begun(
    source: Path, folder: Path, parallelism: Parallelism | None = None, **params: object
) -> tuple[LanguageModeling, Session]:
    """Return a workload and a session whose model has the weights of a folder."""
    data = folder / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    chosen = {"pretrained": str(source), "steps": 2, "data": [str(data)], **params}
    work = LanguageModeling(resolve_params(chosen, parallelism or Parallelism()))
    model = built(work)
    allocate(model, ALONE.device)
    fill(work, model, ALONE)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    precision = Precision("fp32", ALONE.device, sharded=False)
    return work, Session(Parallel("single", model, model.eval()), precision, ALONE, reporter, None)


def packs(source: Path, folder: Path) -> bool:
    """Return whether a job with `microBatchTokens`, which computes attention as such jobs do, keeps documents apart."""
    _, session = begun(source, folder, Parallelism(micro_batch_tokens=64))
    with torch.no_grad():
        return packing_problem(session.parallel.module, torch.arange(36).view(3, 12), torch.float32) is None


def adapts(source: Path, folder: Path) -> bool:
    """Return whether adapters of all linear layers, and nothing else, get gradients."""
    try:
        work, session = begun(source, folder, loraRank=2)
    except ConfigError:
        return False
    model = session.parallel.module
    read = work.source.read([0])
    seen = {"seen": read["seen"], "position_ids": read["seen"].positions} if "seen" in read else {}
    model(read["tokens"], read["labels"], **seen).backward()
    graded = {name for name, each in model.named_parameters() if each.grad is not None}
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    return graded == trained and all("lora_" in name for name in trained)


def exports(work: LanguageModeling, session: Session, source: Path, folder: Path) -> bool:
    """Return whether transformers reads an export with the same logits."""
    import transformers

    out = folder / "out"
    out.mkdir()
    try:
        hf.write(work, session, out, "hf", shared=True, verify=True)
    except ConfigError:
        return False
    kind = session.parallel.module.lm.config.model_type
    library = getattr(transformers, SEEING[kind][1]) if kind in SEEING else transformers.AutoModelForCausalLM
    text = torch.randint(3, 90, (2, 17), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours, theirs = (library.from_pretrained(each).eval()(input_ids=text).logits for each in (out, source))
    return bool(torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE))


def table(rows: list[Row]) -> str:
    """Return rows as Markdown."""
    head = ["| `model_type` | Logits | Packed | Cached | LoRA | Export |", "| -- | -- | -- | -- | -- | -- |"]
    return "\n".join([*head, *map(str, rows)])


def written_rows() -> list[str]:
    """Return the lines of the table in the documentation."""
    inside = DOCUMENT.read_text().split(BEGIN)[1].split(END)[0]
    return [line for line in inside.splitlines() if line.startswith("| `") and "`model_type`" not in line]


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=ROWS)
    parser.add_argument("--write", type=Path, help="documentation whose table is replaced")
    options = parser.parse_args()
    rows = []
    for family in options.families or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row_of(family, Path(folder)))
        sys.stdout.write(f"{rows[-1]}\n")
    if options.write is not None:
        before, rest = options.write.read_text().split(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
