"""`torchyard sweep ls`, `torchyard sweep show|best|report|rm|suspend|resume NAME`: of this machine, or of a cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api.files import write_whole
from torchyard.api.resource import TrainingJob
from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, console, emit, say
from torchyard.sweeps.resource import TrainingSweep


def sweep_arguments(parser: common.Parser) -> None:
    """Declare the command line of `sweep`."""
    parser.advice = "`torchyard run sweep.yaml` starts a sweep"
    verbs = ("ls", "show", "best", "report", "rm", "suspend", "resume")
    parser.add_argument("what", metavar="VERB", choices=verbs, help=f"what to do: {', '.join(verbs)}")
    parser.add_argument("name", metavar=common.SWEEP_NAME, nargs="?", help="name of the sweep; ls lists all")
    parser.add_argument("--folder", metavar="FOLDER", type=Path, help="folder for the report; by default SWEEP-report")
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="ls, show, best: print objects on stdout")


def sweep(
    *,
    what: str,
    name: str | None,
    folder: Path | None,
    context: str | None,
    namespace: str | None,
    output: Format | None,
) -> int:
    """Carry out `torchyard sweep`.

    A name means the sweep of this machine if there is one, else that of the cluster of your kubeconfig.

    torchyard sweep ls
    torchyard sweep show tune
    torchyard sweep best tune -o yaml >best.yaml
    torchyard sweep report tune -n research

    ls lists the sweeps of this machine; if there are none, or with -n or --context, those of the cluster. show
    lists the trials. best prints the best trial that trained to its end, with -o yaml as a job file. report writes
    results.csv and report.html. rm deletes the sweep with its trials. suspend saves and stops the trials of a sweep on
    a cluster, and resume continues them. A sweep of this machine is stopped with Ctrl-C and continued with
    `torchyard run`.
    """
    import asyncio

    from torchyard.api.formatting import addressed
    from torchyard.client.backend import location_flags
    from torchyard.client.sweeps import get_sweep

    if what == "ls":
        if name is not None:
            raise RefusalError("ls takes no name", f"`torchyard sweep show {name}` shows one sweep")
        return _list(context, namespace, output)
    if name is None:
        raise RefusalError(f"{what} needs the name of a sweep", "`torchyard sweep ls` lists them")

    async def work() -> Found | None:
        sweep = await get_sweep(name, context=context, namespace=namespace)
        local = sweep.namespace is None
        where = f"sweep {name}" + ("" if local else f" in namespace {sweep.namespace}")
        if what in {"suspend", "resume"}:
            if local:
                fix = "stop it with Ctrl-C, and continue it with `torchyard run` and its file"
                raise RefusalError(f"{where} is one of this machine", fix)
            await (sweep.stop() if what == "suspend" else sweep.resume())
            say(f"{where} {'saves and stops its trials' if what == 'suspend' else 'continues'}")
            return None
        if what == "rm":
            await sweep.delete()
            say(f"{where} and its trials are deleted")
            return None
        found = await sweep.found()
        if not local:
            flags = location_flags(context, namespace)
            message = addressed(found[0].status.message, name, flags)
            say(f"{where}: {found[0].status.state or 'not visited yet'}; {message}")
        return found

    found = asyncio.run(work())
    if found is None:
        return SUCCEEDED
    if what == "show":
        return _show(*found, output)
    if what == "best":
        return _best(*found, output)
    return _report(*found, folder or Path(f"{name}-report"))


Found = tuple[TrainingSweep, Mapping[int, TrainingJob]]


def _list(context: str | None, namespace: str | None, output: Format | None) -> int:
    import asyncio

    from torchyard.api.values import figure
    from torchyard.cli.views.table import lines
    from torchyard.sweeps.codec import sweep_document, sweep_status_document

    sweeps = asyncio.run(_listing(context, namespace))
    if output is not None:
        emit([{**sweep_document(each), "status": sweep_status_document(each.status)} for each in sweeps], output)
        return SUCCEEDED
    rows = []
    for each in sweeps:
        status = each.status
        best = (
            [f"{each.spec.objective.metric} {figure(status.best.value)} ({status.best.trial})"] if status.best else []
        )
        rows.append([each.metadata.name, status.state, status.columns.trials, str(status.trials.running), *best])
    for line in lines(("NAME", "STATE", "TRIALS", "RUNNING", "BEST"), rows):
        print(line)
    return SUCCEEDED


async def _listing(context: str | None, namespace: str | None) -> list[TrainingSweep]:
    from torchyard.api.values import plural
    from torchyard.client.location import Location, is_configured
    from torchyard.client.sweep_list import sweeps_here, sweeps_there
    from torchyard.local.sweeps import sweep_names

    if context is None and namespace is None and (bool(sweep_names()) or not is_configured()):
        listing = sweeps_here()
    else:
        listing = await sweeps_there(Location("cluster", context, namespace))
    for name, why in listing.damaged.items():
        say(f"torchyard: sweep {name} {why}")
    if listing.where:
        say(f"{listing.where}: {plural(len(listing.sweeps), 'sweep') if listing.sweeps else 'no sweeps'}")
    return listing.sweeps


def document(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> dict[str, Any]:
    """Return a sweep with its trials as JSON values."""
    from torchyard.sweeps.codec import sweep_document
    from torchyard.sweeps.results import results_of

    return {**sweep_document(sweep), "trials": msgspec.to_builtins(results_of(sweep, jobs))}


def _show(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob], output: Format | None) -> int:
    from torchyard.cli.views.sweep_table import table_of

    if output is not None:
        emit(document(sweep, jobs), output)
    else:
        console().print(table_of(sweep, jobs))
    return SUCCEEDED


def _best(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob], output: Format | None) -> int:
    from torchyard.api.resource import job_document
    from torchyard.cli.views.sweep_table import line_of
    from torchyard.sweeps.results import best_job, results_of

    results = results_of(sweep, jobs)
    job = best_job(sweep, results)
    if job is None:
        name = sweep.metadata.name
        raise RefusalError(
            f"no trial of sweep {name} has trained to its end", f"`torchyard sweep show {name}` lists them"
        )
    if output is None:
        say(line_of(sweep, jobs))
        print(next(each.name for each in results if each.best))
    else:
        emit(job_document(job, with_status=False), output)
    return SUCCEEDED


def _report(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob], folder: Path) -> int:
    from torchyard.cli.views.sweep_page import page_of
    from torchyard.sweeps.outcomes import outcomes_of
    from torchyard.sweeps.results import csv_of, results_of
    from torchyard.sweeps.sampling import Past, importances
    from torchyard.sweeps.trials import trial_of

    trials = [trial_of(job) for _, job in sorted(jobs.items())]
    past = [Past(number=each.record.number, parameters=each.record.parameters, basis=0) for each in trials]
    ended = [last for each in trials if (last := outcomes_of(sweep.spec, each)[-1]) is not None]
    try:
        shares = importances(sweep.spec, ended, past)
    except ImportError:
        shares = {}
        say("importances need Optuna: `pip install 'torchyard[sweep]'`")
    results = results_of(sweep, jobs)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.csv", csv_of(sweep, results), replace=True)
    write_whole(folder / "report.html", page_of(sweep, results, shares), replace=True)
    say(f"{folder / 'results.csv'} and {folder / 'report.html'} are written")
    return SUCCEEDED
