"""Deterministic faults between an operator and a real API server (the cluster of KUBECONFIG).

eval "$(make -s kind-env)"; python -m tests.cluster.plans --help
"""

import argparse
import asyncio
import json
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tests.cluster.plans.kubelet import node
from tests.cluster.plans.lives import LIVES
from tests.cluster.plans.plan import KINDS
from tests.cluster.plans.programme import play
from tests.cluster.plans.suite import Result
from tests.support.cluster.namespaces import EVIDENCE, install
from tests.support.cluster.operators import make_certificates
from tests.support.cluster.patient_api import connected


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lives", default=",".join(LIVES), help="lives of jobs, by name")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of plans, by name")
    parser.add_argument("--only", default="", help="plans whose name this regular expression finds")
    parser.add_argument("--every", type=int, default=1, help="of those, each so-many-th")
    parser.add_argument("--raw", type=Path, help="file of results: an interrupted run continues with it")
    parser.add_argument("--lanes", type=int, default=6, help="plans that run side by side")
    given = parser.parse_args()
    if given.raw is not None and given.every != 1:
        parser.error("--raw continues all plans, and --every would choose others each time: use one of them")
    console, counts, begun = Console(), Counter[tuple[str, str]](), time.monotonic()
    evidence = EVIDENCE / "plans"
    former = (
        [json.loads(line) for line in given.raw.read_text().splitlines()] if given.raw and given.raw.exists() else []
    )
    passed = {each["plan"] for each in former if each["result"] == "passed"}
    counts.update((each["fault"], each["result"]) for each in former if each["result"] == "passed")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as progress:
        bar = progress.add_task("plans", total=0)

        def report(news: Result | str) -> None:
            if isinstance(news, str):
                console.print(news, highlight=False)
                progress.update(bar, total=(progress.tasks[0].total or 0) + int(news.split()[-2]) // given.every)
                return
            progress.advance(bar)
            result = "passed" if news.passed else "failed" if news.reached else "not reached"
            counts[news.plan.fault, result] += 1
            if given.raw is not None:
                line = {"plan": news.plan.name, "fault": news.plan.fault, "result": result, "seconds": news.seconds}
                with given.raw.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            if not news.passed or not console.is_terminal:
                console.print(f"{result}: {news.plan.name} ({news.seconds:.0f} s)", highlight=False, markup=False)
                for each in news.wrong:
                    console.print(f"    {each}", highlight=False, markup=False)

        async with connected() as api:
            await install(api)
            name = f"ty-plans-{secrets.token_hex(3)}"
            async with node(api, name):
                results = await play(
                    api,
                    node=name,
                    tls=make_certificates(Path(folder) / "tls", "127.0.0.1"),
                    folder=Path(folder),
                    lives=given.lives.split(","),
                    lanes=given.lanes,
                    kinds=given.kinds.split(","),
                    chosen=lambda plan: (
                        plan.reveals or (plan.name not in passed and bool(re.search(given.only, plan.name)))
                    ),
                    every=given.every,
                    report=report,
                    evidence=evidence,
                )
    table = Table(
        "fault", "passed", "failed", "not reached", title=f"{counts.total()} plans, {time.monotonic() - begun:.0f} s"
    )
    for fault in sorted({fault for fault, _ in counts}):
        table.add_row(fault, *(str(counts[fault, each]) for each in ("passed", "failed", "not reached")))
    console.print(table)
    failed = [each for each in results if each.wrong]  # what is not reached did not come this time
    if failed:
        console.print(f"evidence: {evidence}; one of them again:", highlight=False)
    for plan, *_ in failed:
        only = f"--kinds {plan.kind} --lives {plan.life} --only '{plan.name}'"
        console.print(f'make faults PLANS="{only}"', highlight=False, markup=False, soft_wrap=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
