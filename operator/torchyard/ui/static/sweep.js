import { html, useEffect, useRef, useState } from "./lib/preact.js";
import { Actions, verbsOfSweep } from "./actions.js";
import { Problem, State, Wide, address, placeName, server, span, useTopic } from "./common.js";
import { ask } from "./live.js";

const [LEAST, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [480, 280, 72, 16, 14, 34];
const AXIS_WIDTH = 110, ABSENT = -0.16, SHOWN = 500;

export function Sweep({ place, name }) {
  const sweep = useTopic(`sweep|${place}|${name}`);
  const [hot, setHot] = useState(null);
  useEffect(() => void (document.title = `${name} - TorchYard`), [name]);
  if (sweep === null) return html`<p class="dim">Reading ${name} ...</p>`;
  if (sweep.error) return html`<h1>${name}</h1><${Problem} ...${sweep} />`;
  const best = sweep.trials.find((each) => each.best);
  const count = (outcome) => sweep.trials.filter((each) => each.outcome === outcome).length;
  const short = new Map(sweep.parameters);
  const jobOf = (trial) => address("job", place, sweep.local ? trial : `${sweep.namespace}/${trial}`);
  const facts = [["objective", `${sweep.goal} ${sweep.metric}`], ["algorithm", sweep.algorithm],
    ["trials", `${sweep.trials.length + sweep.leftOut} of ${sweep.wanted}`], ["running", count("running")], ["complete", count("complete")],
    ["stopped early", count("stopped")], ["failed", count("failed")]].filter(([, value]) => value);
  return html`<h1>${sweep.name} <${State} state=${sweep.state} /> <small>sweep, ${placeName(place)}</small></h1>
    ${sweep.message && html`<p class="sentence">${sweep.message}</p>`}
    <progress class="whole" max=${sweep.wanted} value=${sweep.trials.length - count("running")} aria-label="trials that have ended"></progress>
    <dl class="facts">${facts.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
    <${Actions} verbs=${verbsOfSweep(sweep)} request=${{ place, name, kind: "sweep" }} />
    ${best && html`<section class="best"><h2>Best: <a href=${jobOf(best.name)}>${best.name}</a>, ${sweep.metric} ${best.value}</h2>
      <p>${Object.entries(best.parameters).map(([path, value]) => html`<code key=${path}>${short.get(path) ?? path}=${value}</code> `)}</p></section>`}
    <section><h2>History</h2><${History} shown=${sweep.history} goal=${sweep.goal} hot=${hot} setHot=${setHot} /></section>
    <section><h2>Parallel coordinates</h2><${Coordinates} shown=${sweep.coordinates} hot=${hot} setHot=${setHot} /></section>
    ${!server.reading && html`<${Importances} place=${place} name=${name} complete=${count("complete")} short=${short} />`}
    <${Trials} sweep=${sweep} short=${short} jobOf=${jobOf} hot=${hot} setHot=${setHot} />`;
}

/** The width of an element in pixels: charts are drawn for it, so that their text has one size. */
function useWidth() {
  const [width, setWidth] = useState(0);
  const ref = useRef();
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

const down = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);

function History({ shown, goal, hot, setHot }) {
  const [box, room] = useWidth();
  return html`<div ref=${box}>${room > 0 && html`<${HistoryChart} ...${{ shown, goal, hot, setHot }} width=${Math.max(LEAST, room)} />`}</div>`;
}

function HistoryChart({ shown, goal, hot, setHot, width }) {
  if (!shown) return html`<p class="empty">No trial has reported a value.</p>`;
  const last = Math.max(1, shown.last);
  const across = (number) => LEFT + (number / last) * (width - LEFT - RIGHT);
  const steps = shown.best.flatMap(([number, share], place) => (place ? [[number, shown.best[place - 1][1]], [number, share]] : [[number, share]]));
  if (steps.length) steps.push([shown.last, steps.at(-1)[1]]);
  const bad = shown.points.filter((each) => each.share === null).length;
  const every = Math.max(1, Math.ceil(last / 10));
  const outcomes = [...new Set(shown.points.map((each) => each.outcome))];
  const finite = shown.points.filter((each) => each.share !== null);
  const said = `${shown.axis.name} of ${finite.length} trials by number${finite.some((each) => each.best) ? `; best ${finite.find((each) => each.best).value}` : ""}`;
  return html`<${Wide} label="History"><svg class="figure" width=${width} height=${HEIGHT} role="img" aria-label=${said}>
    ${shown.axis.ticks.map(([share, label]) => html`<g key=${share}><line class="grid" x1=${LEFT} x2=${width - RIGHT} y1=${down(share)} y2=${down(share)} />
      <text x=${LEFT - 8} y=${down(share) + 4} text-anchor="end">${label.slice(0, 14)}</text></g>`)}
    ${Array.from({ length: Math.floor(last / every) + 1 }, (_, index) => index * every).map((number) => html`<text key=${number} x=${across(number)} y=${HEIGHT - 12} text-anchor="middle">${number}</text>`)}
    ${steps.length > 1 && html`<polyline class="bestline" points=${steps.map(([number, share]) => `${across(number).toFixed(1)},${down(share).toFixed(1)}`).join(" ")} />`}
    ${shown.points.map((each) => (each.share === null
      ? html`<text key=${`x${each.number}`} class=${`mark ${each.outcome}`} x=${across(each.number)} y=${HEIGHT - BOTTOM} text-anchor="middle">×<title>${each.name}: ${each.value} (${each.outcome})</title></text>`
      : html`<circle key=${each.number} class=${`${each.outcome} ${each.best ? "best" : ""} ${hot === each.name ? "hot" : ""}`} cx=${across(each.number)} cy=${down(each.share)} r=${each.best || hot === each.name ? 5.5 : 4}
          onMouseEnter=${() => setHot(each.name)} onMouseLeave=${() => setHot(null)}><title>${each.name}: ${each.value} (${each.outcome} at ${each.percent} %)</title></circle>`))}
    </svg><//>
    <p class="legend">${outcomes.map((each) => html`<span key=${each} class=${`dot ${each}`}>${{ complete: "trained to its end", stopped: "stopped early" }[each] ?? each}</span>`)}
      <span class="dot best">best so far (${goal})</span>${bad > 0 && html`<span>× ${bad} whose value is not finite</span>`}</p>`;
}

function Coordinates({ shown, hot, setHot }) {
  const [box, room] = useWidth();
  return html`<div ref=${box}>${room > 0 && html`<${CoordinatesChart} ...${{ shown, hot, setHot, room }} />`}</div>`;
}

function CoordinatesChart({ shown, hot, setHot, room }) {
  if (!shown) return html`<p class="empty">No trial has trained to its end.</p>`;
  const gaps = Math.max(1, shown.axes.length - 1);
  const width = Math.max(LEAST, room, LEFT + 100 + AXIS_WIDTH * gaps);
  const across = (index) => 24 + (index / gaps) * (width - 24 - 100);
  const top = (share) => down(share) + 8;
  const last = hot ? [...shown.lines].sort((a, b) => (a.name === hot) - (b.name === hot)) : shown.lines;
  return html`<${Wide} label="Parallel coordinates"><svg class="figure" width=${width} height=${HEIGHT + 8} role="img"
      aria-label=${`${shown.lines.length} trials across ${shown.axes.map((axis) => axis.name).join(", ")}; the table of trials has the same values`}>
    ${last.map((line) => html`<polyline key=${line.name} class=${`line ${line.best ? "best" : ""} ${hot === line.name ? "hot" : ""}`}
      points=${line.shares.map((share, index) => `${across(index).toFixed(1)},${top(share ?? ABSENT).toFixed(1)}`).join(" ")}
      onMouseEnter=${() => setHot(line.name)} onMouseLeave=${() => setHot(null)}><title>${line.name}: ${line.value}</title></polyline>`)}
    ${shown.axes.map((axis, index) => html`<g key=${index}><line class="axis" x1=${across(index)} x2=${across(index)} y1=${top(0)} y2=${top(1)} />
      <text class="name" x=${across(index)} y="12" text-anchor=${index ? "middle" : "start"}>${axis.name.length > 18 ? `${axis.name.slice(0, 17)}…` : axis.name}<title>${axis.name}</title></text>
      ${[...axis.ticks, ...(axis.optional ? [[ABSENT, "none"]] : [])].map(([share, label]) => html`<text key=${share} class="halo" x=${across(index) + 5} y=${top(share) + 4}>${label.slice(0, 14)}</text>`)}</g>`)}
    </svg><//>`;
}

function Importances({ place, name, complete, short }) {
  const [found, setFound] = useState(null);
  useEffect(() => void ask("importances", { place, name }).then(setFound), [complete]);
  const shares = Object.entries(found?.shares ?? {}).sort(([, a], [, b]) => b - a);
  return html`<section><h2>Importances</h2>
    ${found === null && html`<p class="dim">Computing ...</p>`}${found?.error && html`<${Problem} ...${found} />`}
    ${found?.note && html`<p class="empty">${found.note}</p>`}
    ${shares.length > 0 && html`<ul class="times">${shares.map(([path, share]) => html`<li key=${path}><span title=${path}>${short.get(path) ?? path}</span>
      <meter min="0" max="1" value=${share} aria-label=${`importance of ${path}`}></meter> <span class="number">${Math.round(100 * share)}%</span></li>`)}</ul>`}</section>`;
}

function Trials({ sweep, short, jobOf, hot, setHot }) {
  const [order, setOrder] = useState(["number", 1]);
  const [column, direction] = order;
  const value = (trial) => (column === "number" ? trial.number : column === "outcome" ? trial.outcome : column === "value" ? trial.value : trial.parameters[column] ?? "");
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    const [m, n] = [Number(x), Number(y)];
    return direction * (x !== "" && y !== "" && isFinite(m) && isFinite(n) ? m - n : String(x).localeCompare(String(y)));
  };
  const head = (key, text, kind = "") => html`<th scope="col" key=${key} class=${kind} aria-sort=${column === key ? (direction > 0 ? "ascending" : "descending") : "none"}>
    <button class="link" title=${key} onClick=${() => setOrder([key, column === key ? -direction : 1])}>${text}<span aria-hidden="true">${column === key ? (direction > 0 ? " ↑" : " ↓") : ""}</span></button></th>`;
  const failures = sweep.trials.some((each) => each.why);
  return html`<section><h2>Trials</h2><${Wide} label="Trials"><table class="list">
    <thead><tr>${head("number", "Trial")}${head("outcome", "Outcome")}${head("value", sweep.metric, "number")}${sweep.parameters.map(([path]) => head(path, short.get(path), "number"))}
      <th scope="col" class="number">Took</th>${failures && html`<th scope="col">Why</th>`}</tr></thead>
    <tbody>${[...sweep.trials].sort(compare).slice(0, SHOWN).map((each) => html`<tr key=${each.name} class=${`${each.best ? "besttrial" : ""} ${hot === each.name ? "hot" : ""}`}
        onMouseEnter=${() => setHot(each.name)} onMouseLeave=${() => setHot(null)}>
      <th scope="row"><a href=${jobOf(each.name)} onFocus=${() => setHot(each.name)} onBlur=${() => setHot(null)}>${each.name}</a></th>
      <td><${State} state=${each.outcome} />${each.outcome === "stopped" || each.outcome === "running" ? html` <span class="dim">${each.percent}%</span>` : ""}</td>
      <td class="number">${each.value}</td>${sweep.parameters.map(([path]) => html`<td key=${path} class="number" title=${each.parameters[path]}>${(each.parameters[path] ?? "").slice(0, 40)}</td>`)}
      <td class="number">${span(each.seconds)}</td>${failures && html`<td class="cause">${each.why}</td>`}</tr>`)}</tbody></table><//>
    ${sweep.leftOut + Math.max(0, sweep.trials.length - SHOWN) > 0 && html`<p class="dim">${sweep.leftOut + Math.max(0, sweep.trials.length - SHOWN)} more trials are left out.</p>`}</section>`;
}
