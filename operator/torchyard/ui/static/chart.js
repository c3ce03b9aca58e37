import { html, useEffect, useRef, useState } from "./lib/preact.js";
import uPlot from "./lib/uplot.js";
import { axisOf, isTime, repeats, starts } from "./axes.js";
import { figure, span, stepText, useSeen } from "./common.js";

const [FIRST, LAST, MEAN, LOW, HIGH, FINITE, BAD] = [0, 1, 2, 3, 4, 5, 6]; // columns of a curve
const HEIGHT = 200;
const SPANS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((each) => each * 60), ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2400].map((each) => each * 3600)];

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Exponential moving average over steps that are not evenly spaced; gaps are left out. `amount`: 0 to 0.99. */
function smoothed(values, amount) {
  if (!amount) return values;
  let mean = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * amount + value * (1 - amount);
    weight = weight * amount + (1 - amount);
    return mean / weight;
  });
}

/** Places of the buckets of a curve by their x, which grows: on an axis of time, replaced steps are older than their neighbours. */
function ordered(xs) {
  const places = xs.map((_, place) => place);
  return xs.every((x, place) => !place || xs[place - 1] < x) ? places : places.sort((a, b) => xs[a] - xs[b]).filter((place, at, all) => !at || xs[all[at - 1]] < xs[place]);
}

/** Lines for uPlot: x; mean, low and high of each curve; null where no value is finite. */
function lines(curves, { log, x: mode, smooth }) {
  const tables = curves.map(({ curve, rounds }) => {
    const axis = axisOf(mode, rounds, curve);
    const xs = curve[LAST].map(axis), places = ordered(xs);
    const column = (values) => places.map((place) => (curve[FINITE][place] && (!log || values[place] > 0) ? values[place] : null));
    return [places.map((place) => xs[place]), smoothed(column(curve[MEAN]), smooth), column(curve[LOW]), column(curve[HIGH])];
  });
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

/** The steps of a bucket in words. */
function steps(curve, place) {
  const [first, last] = [curve[FIRST][place], curve[LAST][place]];
  return last > first ? `steps ${stepText(first)} to ${stepText(last)}` : `step ${stepText(first)}`;
}

function sentence(name, curve) {
  const places = curve[FINITE].flatMap((count, place) => (count ? [place] : []));
  const bad = curve[BAD].reduce((sum, count) => sum + count, 0);
  const gaps = bad ? `; ${bad.toLocaleString("en")} value${bad > 1 ? "s" : ""} NaN or infinite, the first at ${
    steps(curve, curve[BAD].findIndex((count) => count))}` : "";
  if (!places.length) return `${name} has no finite value${gaps}.`;
  const low = places.reduce((found, place) => Math.min(found, curve[LOW][place]), Infinity);
  const high = places.reduce((found, place) => Math.max(found, curve[HIGH][place]), -Infinity);
  const last = curve[MEAN][places.at(-1)];
  return `${figure(last)} at step ${stepText(curve[LAST][places.at(-1)])}; lowest ${figure(low)}, highest ${figure(high)}${gaps}.`;
}

/** Axes of a chart. `time`: x is in seconds. */
export function lookOf(time) {
  const axis = { font: "12px system-ui, sans-serif", stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const texts = (text) => (_, ticks) => ticks.map((tick) => (tick === null ? "" : text(tick)));
  return { padding: [10, 14, 0, 0], axes: [{ ...axis, size: 32, ...(time ? { incrs: SPANS, space: 64 } : {}), values: texts(time ? span : stepText) },
    { ...axis, size: 52, gap: 6, values: texts(figure) }] };
}

function options(width, curves, choices, moved, zoomed) {
  const { rounds } = curves[0];
  const time = isTime(choices.x, rounds);
  const series = [{ label: "step" }];
  const bands = [];
  curves.forEach(({ label }, index) => {
    const stroke = colour(`--curve-${(index % 6) + 1}`);
    const at = 3 * index + 1;
    const soft = `${stroke}40`;
    series.push({ label, stroke, width: 1.5, points: { show: undefined } },
      { label: "", stroke: soft, width: 1, points: { show: false } }, { label: "", stroke: soft, width: 1, points: { show: false } });
    bands.push({ series: [at + 2, at + 1], fill: `${stroke}30` });
  });
  return {
    width, height: HEIGHT, series, bands, legend: { show: false },
    scales: { x: { time: false, distr: choices.logX && choices.x === "step" ? 3 : 1 }, y: { distr: choices.log ? 3 : 1 } },
    ...lookOf(time),
    cursor: { sync: { key: "torchyard" }, points: { size: 6 }, drag: { x: true, y: false } },
    hooks: {
      setCursor: [(plot) => moved(plot.cursor.idx)],
      setSelect: [(plot) => plot.select.width > 0 && zoomed(true)],
      ready: [(plot) => plot.over.addEventListener("dblclick", () => zoomed(false))],
      drawClear: [(plot) => {
        const { ctx, bbox } = plot;
        const axis = axisOf(choices.x, rounds, curves[0].curve);
        ctx.save();
        ctx.fillStyle = colour("--again");
        for (const [from, to] of repeats(rounds)) {
          const [left, right] = [from, to].map((step) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(axis(step), "x", true))));
          if (right > left) ctx.fillRect(left, bbox.top, Math.max(1, right - left), bbox.height);
        }
        ctx.restore();
      }],
      draw: [(plot) => {
        const { ctx, bbox } = plot;
        const axis = axisOf(choices.x, rounds, curves[0].curve);
        ctx.save();
        ctx.strokeStyle = colour("--warn");
        ctx.setLineDash([4, 4]);
        for (const step of starts(rounds)) {
          const x = plot.valToPos(axis(step), "x", true);
          if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.setLineDash([]);
        ctx.fillStyle = colour("--bad");
        ctx.font = `${12 * devicePixelRatio}px system-ui`;
        ctx.textAlign = "center";
        curves.forEach(({ curve, rounds: of }) => {
          const place = axisOf(choices.x, of, curve);
          curve[BAD].forEach((count, at) => {
            if (!count) return;
            const x = plot.valToPos(place(curve[FIRST][at]), "x", true);
            if (x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillText("×", x, bbox.top + bbox.height - 2);
          });
        });
        ctx.restore();
      }],
    },
  };
}

/**
 * One metric of one or several jobs.
 * @param curves list of {label, curve, rounds}; the first is the job's own
 * @param choices {log, logX, x, smooth}
 * @param onZoom called when a part of the steps was chosen, for which finer buckets are worth reading
 */
export function Chart({ name, curves, choices, onZoom }) {
  const [ref, seen] = useSeen();
  const [table, setTable] = useState(false);
  const [place, setPlace] = useState(null);
  const box = useRef(), plot = useRef(), isZoomed = useRef(false);
  const own = curves[0].curve;
  const shape = `${curves.map(({ label }) => label).join("\n")}|${choices.log}|${choices.logX}|${choices.x}|${curves[0].rounds.length}`;
  useEffect(() => {
    if (!seen || table) return undefined;
    const draw = () => {
      plot.current?.destroy();
      isZoomed.current = false;
      const drawn = options(box.current.clientWidth, curves, choices, setPlace, (zoomed) => {
        isZoomed.current = zoomed;
        if (zoomed) onZoom();
      });
      plot.current = new uPlot(drawn, lines(curves, choices), box.current);
    };
    draw();
    const observer = new ResizeObserver(([entry]) => plot.current?.setSize({ width: entry.target.clientWidth, height: HEIGHT }));
    observer.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [seen, table, shape]);
  useEffect(() => plot.current?.setData(lines(curves, choices), !isZoomed.current), [curves, choices.smooth]); // new values keep the zoom
  const shown = place === null || place === undefined || curves.length > 1 ? undefined : choices.x === "trained" || choices.x === "wall"
    ? ordered(own[LAST].map(axisOf(choices.x, curves[0].rounds, own)))[place] : place;
  const read = shown !== undefined && own[FINITE][shown] !== undefined;
  return html`<figure ref=${ref} class="chart">
    <figcaption><strong>${name}</strong>
      <button class="small" aria-pressed=${table} onClick=${() => setTable(!table)}>table<span class="hidden"> of ${name}</span></button></figcaption>
    ${table ? html`<${Table} name=${name} curve=${own} />` : html`<div class="plot" ref=${box} role="img"
      aria-label=${`${name}: ${sentence(name, own)}`}></div>`}
    ${curves.length > 1 && html`<p class="legend">${curves.map(({ label }, index) => html`<span key=${label}
      class=${`key curve-${(index % 6) + 1}`}>${label}</span>`)}</p>`}
    <p class="dim">${read ? `${steps(own, shown)}: ${
      own[FINITE][shown] ? `${figure(own[MEAN][shown])}${own[HIGH][shown] > own[LOW][shown] ? ` (${figure(own[LOW][shown])} to ${figure(own[HIGH][shown])})` : ""}` : "not finite"}`
      : `${curves.length > 1 ? `${curves[0].label}: ` : ""}${sentence(name, own)}`}</p>
  </figure>`;
}

function Table({ name, curve }) {
  const every = Math.max(1, Math.ceil(curve[FIRST].length / 200));
  const places = curve[FIRST].map((_, place) => place).filter((place) => place % every === 0);
  return html`<div class="rows" tabindex="0" role="region" aria-label=${`values of ${name}`}><table>
    <thead><tr><th scope="col">Step</th><th scope="col">Mean</th><th scope="col">Lowest</th><th scope="col">Highest</th>
      <th scope="col">Not finite</th></tr></thead>
    <tbody>${places.map((place) => html`<tr key=${place}><th scope="row">${stepText(curve[LAST][place])}</th>
      ${[MEAN, LOW, HIGH].map((column) => html`<td>${curve[FINITE][place] ? figure(curve[column][place]) : ""}</td>`)}
      <td>${curve[BAD][place] || ""}</td></tr>`)}</tbody></table></div>`;
}
