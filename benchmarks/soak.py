"""A soak: faults of every kind, one after the other, on one training job; its weights must not differ by a bit.

    python benchmarks/soak.py [--faults 1200] [--seed 1] [--strategy ddp] [--disk 256] [--folder FOLDER]

`torchyard run` trains a small cvrp job. Whenever it has made progress since the last fault, the next is drawn, each
kind once and then by weight. After each the status is held against what was done: cause, rank, pod, code, budget,
counters, size. At the end nothing may be left of the run, no process may have grown, and the weights are those of an
undisturbed run. Everything is real. Anomalies are printed at once, with what the status said; exit code 1 if
there were any. `--steps` bounds it: some thirty are made between two faults, and again in the undisturbed run. With
`--pause` a fast machine makes no more: the disturbed run waits after each step.

With `--folder`, the run and what is known of it stay there: after an interruption, or once `--minutes` are over, the
job is stopped, the exit code is 75, and the same command continues with the next fault.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from soak_checks import differences, leftovers
from soak_faults import FAULTS, Expected, Scene, has_own_disk
from soak_run import DEADLINE_SECONDS, NAME, STOPPED, Run, StuckError, footprint, read, until

MAX_DESCRIPTORS_GAINED = 4
RECORD = "soak.json"
SETTINGS = ("seed", "steps", "interval", "pause", "strategy", "nodes", "procs", "only")
PATIENT = Path(__file__).parents[1] / "tests" / "support" / "worker_modules" / "patient.py"


def document(given: argparse.Namespace, *, calm: bool = False) -> dict[str, Any]:
    """Return the job file. The undisturbed run neither pauses nor saves: no bit depends on that."""
    small = {"customers": 5, "samples": 4, "embedding": 16, "heads": 2, "layers": 1, "evalInstances": 16}
    ranks = given.nodes * given.procs
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": NAME},
        "spec": {
            "trainer": {
                "name": "patient:Patient" if given.pause else "cvrp",
                "params": {"preset": "tiny", "steps": given.steps, "seed": given.seed, "evalEvery": 10**6, **small},
            },
            "device": "cpu",
            "nodes": given.nodes,
            "procsPerNode": given.procs,
            "parallelism": {"strategy": given.strategy, "globalBatchSize": 2 * ranks},
            "checkpoint": {"interval": {"steps": given.steps if calm else given.interval}},
            "env": [{"name": "PAUSE", "value": "0" if calm else str(given.pause)}] if given.pause else [],
            "metrics": {"interval": "1s"},
            "logging": {"tensorboard": False},
            "gracePeriod": "20s",
        },
    }


class Note(NamedTuple):
    """One fault: how long until the job made durable progress again, and what its events say."""

    kind: str
    seconds: float
    events: str


class Soak:
    """Injects faults into one run, and holds what the status says against them."""

    def __init__(self, run: Run, given: argparse.Namespace, console: Console) -> None:
        self.run, self.given, self.console = run, given, console
        self.draw = random.Random(given.seed)
        self.notes: list[Note] = []
        self.anomalies: list[str] = []
        self.prints: dict[tuple[str, int], list[tuple[int, int, int]]] = collections.defaultdict(list)
        self._fresh: list[str] | None = None  # kinds that have not happened yet

    def __call__(self) -> bool:
        """Inject faults; return whether all of them happened, and not only as many as there was time for."""
        kinds = {kind: each for kind, each in FAULTS.items() if not self.given.only or self.given.only in kind}
        if not has_own_disk(self.run.home):
            kinds.pop("disk full for a moment", None)
        deadline = time.monotonic() + 60 * self.given.minutes
        names, weights = [*kinds], [weight for _, weight in kinds.values()]
        continues = self._recall()
        if self._fresh is None:
            self._fresh = self.draw.sample(names, len(names))  # each of them once; then as often as they weigh
        self._record()
        (self.run.resume if continues else self.run.run)()
        before = self.steady(self.run.saved()[-1] if continues and self.run.saved() else 0)
        with Progress(console=self.console) as progress:
            task = progress.add_task("faults", total=self.given.faults, completed=len(self.notes))
            while len(self.notes) < self.given.faults and time.monotonic() < deadline:
                if before["progress"]["step"] > self.given.steps - self.given.reserve:
                    self.console.print("the run nears its end: no more faults")
                    break
                kind = self._fresh.pop() if self._fresh else self.draw.choices(names, weights)[0]
                before = self.fault(kind, before)
                self._record()
                progress.update(
                    task, advance=1, description=f"step {before['progress']['step']}, {len(self.anomalies)} anomalies"
                )
        enough = before["progress"]["step"] > self.given.steps - self.given.reserve
        if self.given.folder is not None and not enough and len(self.notes) < self.given.faults:
            return False
        self.finish(before)
        return True

    def _recall(self) -> bool:
        """Take over what an earlier process did in this folder; return whether there is a run to be continued."""
        known = read(self.run.home / RECORD)
        if not known:
            return False
        if known["settings"] != settings(self.given):
            raise SystemExit(f"{self.given.folder} has a soak with other settings: {known['settings']}")
        self.notes = [Note(*each) for each in known["notes"]]
        self.anomalies, self._fresh = known["anomalies"], known["fresh"]
        version, internal, gauss = known["draw"]
        self.draw.setstate((version, tuple(internal), gauss))
        return self.run.folder.is_dir()

    def _record(self) -> None:
        """Write what is known, for a later process."""
        known = {
            "settings": settings(self.given),
            "notes": self.notes,
            "anomalies": self.anomalies,
            "fresh": self._fresh,
            "draw": self.draw.getstate(),
        }
        fresh = self.run.home / f"{RECORD}.new"
        fresh.write_text(json.dumps(known))
        fresh.replace(self.run.home / RECORD)

    def fault(self, kind: str, before: dict[str, Any]) -> dict[str, Any]:
        """Inject one, wait until the job is well again, and compare; the status then."""
        seen = len(self.run.events())
        scene = Scene(self.run, self.draw, before, self.run.workers(before["round"]), self.run.pods())
        began = time.monotonic()
        saved = self.run.saved()[-1]
        try:
            expected = FAULTS[kind][0](scene)
        except AssertionError as error:
            self.odd(kind, str(error), before)
            expected = Expected()
        after = self.steady(max(saved, before["checkpoint"]["step"]), before["round"] + bool(expected.reason))
        events = self.run.events(seen)
        note = Note(kind, time.monotonic() - began, " ".join(event["reason"] for event in events))
        self.notes.append(note)
        if self.given.each:
            self.console.print(f"{time.strftime('%X')} {note.seconds:5.1f} s  {kind}: {note.events}", markup=False)
        for wrong in differences(before, after, expected, scene):
            self.odd(kind, wrong, after)
        warnings = self.run.warnings(after["round"])
        if expected.warning and not any(expected.warning in warning for warning in warnings):
            self.odd(kind, f"no warning {expected.warning!r} among {warnings}", after)
        return after

    def steady(self, saved: int, number: int = 1) -> dict[str, Any]:
        """The status once round `number` or a later one trains with all its ranks, and has saved a newer step."""
        ranks = self.given.nodes * self.given.procs
        seen: dict[str, Any] = {}

        def well() -> bool:
            nonlocal seen
            seen = self.run.status()
            if seen.get("state") in {"Failed", "Succeeded"}:
                raise StuckError(f"the run is over: {seen['state']}, {seen.get('message')}")
            if seen.get("state") != "Running" or seen["round"] < number:
                return False
            workers = self.run.workers(seen["round"])
            # A stop saves by itself: what pays for a restart is a step that this very round has saved.
            least = max(saved, seen["attempts"][-1].get("startStep", 0))
            return (
                seen.get("checkpoint", {}).get("step", 0) > least
                and len(workers) == ranks
                and len(self.run.pods()) == self.given.nodes
            )

        try:
            until(well, f"round {number} trains and has saved a step after {saved}")
        except StuckError as error:
            self.odd("stuck", str(error), seen)
            raise
        for name, pid in self.run.processes().items():
            self.prints[name, pid].append((seen["round"], *footprint(pid)))
        return seen

    def odd(self, kind: str, what: str, status: dict[str, Any]) -> None:
        text = f"fault {len(self.notes) + 1}, {kind}: {what}"
        self.anomalies.append(text)
        self.console.print(text, style="red", markup=False)
        attempts = [
            {**each, "cause": {**each.get("cause", {}), "lines": []}} for each in status.get("attempts", [])[-3:]
        ]
        shown = {
            name: status.get(name)
            for name in ("state", "reason", "message", "round", "incarnation", "restarts", "checkpoint")
        }
        self.console.print(json.dumps({**shown, "attempts": attempts}, indent=1), markup=False, highlight=False)

    def finish(self, before: dict[str, Any]) -> None:
        """Wait for the end of the job, and check what is left."""
        assert self.run.controller is not None
        left = self.given.steps - before["progress"]["step"]
        code = self.run.controller.wait(120 + left)
        status = self.run.status()
        if code or status["state"] != "Succeeded":
            self.odd("end", f"exit code {code}, state {status['state']}", status)
        for what, found in (("processes", self.run.left()), ("files", leftovers(self.run))):
            if found:
                self.odd("end", f"{what} left: {found}", status)
        for (name, pid), prints in self.prints.items():
            first = prints[min(2, len(prints) - 1)]
            if prints[-1][2] - first[2] > MAX_DESCRIPTORS_GAINED:
                grown = f"{first[2]} in round {first[0]}, {prints[-1][2]} in round {prints[-1][0]}"
                self.odd("end", f"descriptors of {name} ({pid}): {grown}", status)


@contextlib.contextmanager
def home(prefix: str, megabytes: int) -> Iterator[Path]:
    """A home of its own, on a disk in memory of its own if `megabytes` are given; that needs root."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        if megabytes:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", name], check=True)
        try:
            yield Path(name)
        finally:
            if megabytes:
                subprocess.run(["umount", "--lazy", name], check=True)


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return what one soak has in common, however many processes it takes."""
    return {name: getattr(given, name) for name in SETTINGS}


@contextlib.contextmanager
def stopped(run: Run) -> Iterator[Run]:
    """The run, which is stopped afterwards with all that it needs to continue."""
    try:
        yield run
    finally:
        if run.controller is not None and run.controller.poll() is None:
            run.controller.send_signal(signal.SIGCONT)
            run.end_controller(signal.SIGTERM)


@contextlib.contextmanager
def ended(run: Run) -> Iterator[Run]:
    """The run, of which nothing lives afterwards."""
    try:
        yield run
    finally:
        if run.controller is not None and run.controller.poll() is None:
            run.controller.send_signal(signal.SIGCONT)
        run.say("rm", "--force", NAME)
        if run.controller is not None:
            run.controller.wait(DEADLINE_SECONDS)


def run_in(folder: Path, given: argparse.Namespace, *, calm: bool = False) -> Run:
    """Return a run whose home and working directory is `folder`."""
    shutil.copy(PATIENT, folder)
    return Run(folder, document(given, calm=calm))


def undisturbed(given: argparse.Namespace, console: Console) -> str:
    """Return the digest of the weights of an undisturbed run."""
    with (
        home("soak-calm-", given.disk) as folder,
        ended(run_in(folder, given, calm=True)) as run,
        console.status("the undisturbed run"),
    ):
        run.run()
        assert run.controller is not None
        code = run.controller.wait(600 + given.steps)
        if code:
            raise SystemExit(f"the undisturbed run ended with {code}:\n{(folder / 'out').read_text()[-2000:]}")
        return digest(run)


def digest(run: Run) -> str:
    return hashlib.sha256(run.weights()).hexdigest()


def tables(soak: Soak) -> Iterator[Table]:
    table = Table(
        title=f"{len(soak.notes)} faults, seed {soak.given.seed}, {soak.given.strategy}", title_justify="left"
    )
    for column in ("fault", "times", "median s", "worst s", "events, most often"):
        table.add_column(column, justify="left" if column.startswith(("fault", "events")) else "right")
    for kind in FAULTS:
        notes = [note for note in soak.notes if note.kind == kind]
        if notes:
            times = [note.seconds for note in notes]
            common = collections.Counter(note.events for note in notes).most_common(3)
            words = "; ".join(f"{count} x {words or 'none'}" for words, count in common)
            table.add_row(kind, str(len(notes)), f"{statistics.median(times):.1f}", f"{max(times):.1f}", words)
    yield table
    table = Table(title="processes that lived longest, KiB of their own and descriptors", title_justify="left")
    for column in ("process", "looks", "KiB first", "last", "descriptors first", "last"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for name in sorted({name for name, _ in soak.prints}):
        prints = max((each for (other, _), each in soak.prints.items() if other == name), key=len)
        first, last = prints[min(2, len(prints) - 1)], prints[-1]
        table.add_row(name, *map(str, (len(prints), first[1], last[1], first[2], last[2])))
    yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=1200, help="inject at most so many")
    parser.add_argument("--minutes", type=float, default=90, help="inject for at most so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000, help="of the job; no faults in the last --reserve")
    parser.add_argument("--reserve", type=int, default=500)
    parser.add_argument("--interval", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step of the disturbed run")
    parser.add_argument("--strategy", default="ddp", choices=("ddp", "fsdp", "hsdp"))
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--procs", type=int, default=1, help="workers of a node")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument(
        "--disk", type=int, default=0, help="MB of a disk in memory, so that it can be filled; needs root"
    )
    parser.add_argument("--folder", type=Path, help="where the run stays, so that the same command continues it")
    parser.add_argument("--each", action="store_true", help="a line for every fault")
    parser.add_argument("--calm", default="", help="SHA-256 of the undisturbed run's weights, if it is known")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder = given.folder.resolve()
        given.folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell's background ignores some of them
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console(stderr=True)
    place = contextlib.nullcontext(given.folder) if given.folder is not None else home("soak-", given.disk)
    with place as folder, (stopped if given.folder is not None else ended)(run_in(folder, given)) as run:
        soak = Soak(run, given, console)
        try:
            if not soak():
                console.print(f"{len(soak.notes)} of {given.faults} faults: the same command continues")
                for table in tables(soak):
                    Console(width=140).print(table)
                sys.exit(STOPPED)
            weights = digest(run)
        except (StuckError, subprocess.TimeoutExpired) as error:
            weights = ""
            console.print(f"{error}\n{(folder / 'out').read_text()[-3000:]}", markup=False)
            for log in sorted(run.folder.glob("pods/*/logs/*.log"))[-6:]:
                console.print(f"--- {log}\n{log.read_text(errors='replace')[-2500:]}", markup=False)
    for table in tables(soak):
        Console(width=140).print(table)
    if weights and weights != (calm := given.calm or undisturbed(given, console)):
        soak.anomalies.append(f"the weights differ: {weights}, undisturbed {calm}")
    print(f"{len(soak.anomalies)} anomalies; weights {weights or 'unknown'}")
    print("\n".join(soak.anomalies))
    sys.exit(bool(soak.anomalies) or not weights)


if __name__ == "__main__":
    main()
