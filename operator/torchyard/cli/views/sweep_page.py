"""The results of a sweep as one HTML page, without scripts: history, parallel coordinates, importances."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torchyard.api.formatting import clip
from torchyard.api.values import figure, plural
from torchyard.cli.views.sweep_charts import COLOURS, coordinates, history
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, text_of
from torchyard.sweeps.space import short_names

MAX_CELL = 40
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{overflow-wrap:anywhere}text{font-size:11px;fill:#444;paint-order:stroke;stroke:#fff;stroke-width:3px}
.wide{overflow-x:auto}.legend span{margin-right:1.5em;white-space:nowrap}table{border-collapse:collapse}
td,th{padding:.2em .8em .2em 0;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap;vertical-align:top}
.number{text-align:right;font-variant-numeric:tabular-nums}td.why{white-space:normal;min-width:40em}
tr.best{font-weight:bold}
"""


def page_of(sweep: TrainingSweep, results: Sequence[Result], shares: Mapping[str, float]) -> str:
    """Return the page.

    Args:
        sweep: the sweep.
        results: of its trials.
        shares: importance of each parameter, 0 to 1; empty: not known.
    """
    title = f"Sweep {sweep.metadata.name}"
    objective = f"{sweep.spec.objective.goal} {sweep.spec.objective.metric}"
    algorithm = sweep.spec.algorithm.name
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(objective)}; {plural(len(results), 'trial')} by {algorithm}.</p>",
        _best(sweep, results),
        "<h2>History</h2>",
        history(sweep, results),
        "<h2>Parallel coordinates</h2>",
        coordinates(sweep, results),
        "<h2>Importances</h2>",
        _importances(shares),
        "<h2>Trials</h2>",
        _table(sweep, results),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def _importances(shares: Mapping[str, float]) -> str:
    if not shares:
        return "<p>Too few trials trained to their end to tell.</p>"
    rows = "".join(
        f"<tr><td>{escape(path)}</td><td>{100 * share:.0f} %</td>"
        f'<td><svg viewBox="0 0 300 12" style="width:300px"><rect width="{300 * share:.0f}" height="12" '
        f'fill="{COLOURS["complete"]}"/></svg></td></tr>'
        for path, share in sorted(shares.items(), key=lambda item: -item[1])
    )
    return f"<table>{rows}</table>"


def _best(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    best = next((each for each in results if each.best), None)
    if best is None or best.value is None:
        return ""
    names = short_names(sweep.spec.parameters)
    parameters = ", ".join(f"{names[path]}={text_of(value)}" for path, value in best.parameters.items())
    metric = sweep.spec.objective.metric
    return f"<p><b>Best: {escape(best.name)}, {escape(metric)} {figure(best.value)}</b> ({escape(parameters)})</p>"


def _table(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    names = short_names(sweep.spec.parameters)
    failures = any(each.why for each in results)
    head = ["<th>trial</th><th>outcome</th>", f"<th class=number>{escape(sweep.spec.objective.metric)}</th>"]
    for parameter in sweep.spec.parameters:
        kind = "" if parameter.choice else " class=number"
        head.append(f'<th{kind} title="{escape(parameter.path)}">{escape(names[parameter.path])}</th>')
    head += ["<th>why</th>"] if failures else []
    rows = []
    for each in results:
        stopped = f" at {each.percent} %" if each.outcome == "stopped" else ""
        cells = [f"<td>{escape(each.name)}</td><td>{each.outcome}{stopped}</td>", _cell(each.non_finite or each.value)]
        cells += [_cell(each.parameters.get(parameter.path)) for parameter in sweep.spec.parameters]
        cells += [f'<td class="why">{escape(each.why)}</td>'] if failures else []
        kind = ' class="best"' if each.best else ""
        rows.append(f"<tr{kind}>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><tr>{"".join(head)}</tr>{"".join(rows)}</table></div>'


def _cell(value: Any) -> str:
    """Return a cell: few digits or characters, and all of them as a tooltip."""
    if value is None:
        return "<td></td>"
    text, whole = clip(text_of(value), MAX_CELL), json.dumps(value, ensure_ascii=False)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    title = f' title="{escape(whole)}"' if text != whole else ""
    return f"<td{' class=number' if number else ''}{title}>{escape(text)}</td>"
