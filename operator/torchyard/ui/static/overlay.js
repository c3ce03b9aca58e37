import { html, useEffect, useRef, useState } from "./lib/preact.js";
import uPlot from "./lib/uplot.js";
import { colour, lookOf } from "./chart.js";
import { Problem, Wide, address, figure, placeName, stepText, useSeen } from "./common.js";
import { overlayOf } from "./live.js";

const HEIGHT = 340, SHOWN = 200, AGAIN_MS = 3000;

/** Cells of a line at all places of the axis; numbers as they came where none is missing. */
function values(line, count) {
  const gaps = line.values.some(Number.isNaN);
  if (!gaps && line.offset === 0 && line.cells === count) return line.values;
  const found = new Array(count).fill(null);
  line.values.forEach((value, place) => (found[line.offset + place] = Number.isNaN(value) ? null : value));
  return found;
}

function dataOf(overlay) {
  const count = overlay.lines.reduce((most, line) => Math.max(most, line.offset + line.cells), 0);
  const xs = Array.from({ length: count }, (_, place) => overlay.first + (place + 1) * overlay.width - 1);
  return [xs, ...overlay.lines.map((line) => values(line, count))];
}

/** The line whose value at a place is nearest to a height in pixels. */
function nearest(plot, place, top) {
  let found = null, least = 24;
  for (let index = 1; index < plot.data.length; index += 1) {
    const value = plot.data[index][place];
    const away = value === null || value === undefined ? Infinity : Math.abs(plot.valToPos(value, "y") - top);
    if (away < least) [found, least] = [index - 1, away];
  }
  return found;
}

/** Many jobs of a place over each other, a chart for each metric. */
export function Overlay({ place, names }) {
  const [metrics, setMetrics] = useState([""]);
  useEffect(() => void (document.title = `${names.length} jobs - TorchYard`), []);
  return html`<h1>Curves of ${names.length.toLocaleString("en")} jobs <small>${placeName(place)}</small></h1>
    ${metrics.map((metric, index) => html`<${Lines} key=${index} place=${place} names=${names} metric=${metric}
      onMetrics=${index === 0 ? (shown, all) => setMetrics([shown, ...all.filter((each) => each !== shown)]) : null} />`)}`;
}

function Lines({ place, names, metric, onMetrics }) {
  const [ref, seen] = useSeen();
  const [found, setFound] = useState(null);
  const [log, setLog] = useState(false);
  const [pointed, setPointed] = useState(null);
  const box = useRef(), plot = useRef();
  useEffect(() => {
    if (!seen) return undefined;
    const state = { known: "", timer: 0, over: false };
    const load = async () => {
      if (!document.hidden) {
        const next = await overlayOf({ place, names, metric, known: state.known }).catch(() => null);
        if (state.over) return;
        if (next) (state.known = next.version ?? "", setFound(next));
        if (next?.metrics && onMetrics) onMetrics(next.metric, next.metrics);
        if (next?.later) return void load();
      }
      state.timer = setTimeout(load, AGAIN_MS);
    };
    load();
    return () => ((state.over = true), clearTimeout(state.timer));
  }, [seen, metric]);
  const drawn = found?.lines?.length > 0;
  useEffect(() => {
    if (!drawn) return undefined;
    const draw = () => {
      plot.current?.destroy();
      const { axes, padding } = lookOf(false);
      const thin = found.lines.length > 20;
      const series = found.lines.map((line, index) => ({ label: line.name, width: 1, points: { show: false },
        stroke: `${colour(`--curve-${(index % 6) + 1}`)}${thin ? "70" : ""}` }));
      const point = (at) => at.cursor.idx !== null && setPointed([nearest(at, at.cursor.idx, at.cursor.top), at.data[0][at.cursor.idx]]);
      plot.current = new uPlot({ width: box.current.clientWidth, height: HEIGHT, series: [{}, ...series], legend: { show: false }, axes, padding,
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } }, cursor: { points: { show: false }, drag: { x: true, y: false } },
        hooks: { setCursor: [point] } }, dataOf(found), box.current);
    };
    draw();
    const observer = new ResizeObserver(([entry]) => plot.current?.setSize({ width: entry.target.clientWidth, height: HEIGHT }));
    observer.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => (observer.disconnect(), scheme.removeEventListener("change", draw), plot.current?.destroy(), (plot.current = null));
  }, [found, log]);
  const line = found?.lines?.[pointed?.[0] ?? -1];
  const worth = found?.lines?.filter((each) => each.last !== null) ?? [];
  const said = drawn && worth.length > 0 && `the newest values of ${worth.length.toLocaleString("en")} jobs are from ${figure(Math.min(...worth.map((each) => each.last)))} to ${
    figure(Math.max(...worth.map((each) => each.last)))}; lowest ${figure(Math.min(...worth.map((each) => each.low)))}, highest ${figure(Math.max(...worth.map((each) => each.high)))}.`;
  return html`<section ref=${ref}><h2>${found?.metric || metric || "Curves"}</h2>
    ${!found && html`<p class="dim">Reading ...</p>`}${found?.error && html`<${Problem} ...${found} />`}
    ${found && !found.error && !drawn && html`<p class="empty">No metric was logged yet.</p>`}
    ${drawn && html`<label class="chip"><input type="checkbox" checked=${log} onChange=${() => setLog(!log)} />log values</label>
      <div class="plot tall" ref=${box} role="img" aria-label=${`${found.metric}: ${said || "no value is finite."}`}></div>
      <p class="dim">${line ? html`<a href=${address("job", place, line.name)}>${line.name}</a> near step ${stepText(pointed[1])}: ${figure(plot.current?.data[pointed[0] + 1]?.[plot.current.cursor.idx])}` : said}</p>
      <details><summary>Table of ${found.metric}</summary><${Rows} place=${place} lines=${found.lines} /></details>
      <p class="dim note">A line is the mean of ${found.width > 1 ? `${stepText(found.width)} steps` : "a step"}; lowest and highest are of all values.${
        found.without > 0 ? ` Jobs without this metric: ${found.without.toLocaleString("en")}.` : ""}${
        found.later > 0 ? ` Jobs still being read: ${found.later.toLocaleString("en")}.` : ""}</p>`}</section>`;
}

function Rows({ place, lines }) {
  const rows = [...lines].sort((a, b) => (a.last ?? Infinity) - (b.last ?? Infinity)).slice(0, SHOWN);
  return html`<${Wide} label="values"><table><thead><tr><th scope="col">Job</th><th scope="col" class="number">Step</th><th scope="col" class="number">Newest</th>
      <th scope="col" class="number">Lowest</th><th scope="col" class="number">Highest</th><th scope="col" class="number">Not finite</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${each.name}><th scope="row"><a href=${address("job", place, each.name)}>${each.name}</a></th><td class="number">${stepText(each.step)}</td>
      ${[each.last, each.low, each.high].map((value) => html`<td class="number">${figure(value)}</td>`)}<td class="number">${each.bad || ""}</td></tr>`)}</tbody></table><//>
    ${lines.length > SHOWN && html`<p class="dim">The ${SHOWN} with the smallest newest values.</p>`}`;
}
