import { html, useEffect, useRef, useState } from "./lib/preact.js";
import uPlot from "./lib/uplot.js";
import { figure, stepText, useSeen } from "./common.js";

const [FIRST, LAST, MEAN, LOW, HIGH, FINITE, BAD] = [0, 1, 2, 3, 4, 5, 6]; // columns of a curve
const HEIGHT = 200;

function colour(name) {
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

/** Lines for uPlot: x; mean, low and high of each curve; null where no value is finite. */
function lines(curves, { log, relative, smooth }) {
  const tables = curves.map(({ curve }) => {
    const start = relative ? curve[FIRST][0] ?? 0 : 0;
    const usable = (value, place) => (curve[FINITE][place] && (!log || value > 0) ? value : null);
    const mean = smoothed(curve[MEAN].map(usable), smooth);
    return [curve[LAST].map((x) => x - start), mean, curve[LOW].map(usable), curve[HIGH].map(usable)];
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

function options(width, curves, choices, rounds, moved, zoomed) {
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
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  return {
    width, height: HEIGHT, series, bands, legend: { show: false },
    scales: { x: { time: false, distr: choices.logX ? 3 : 1 }, y: { distr: choices.log ? 3 : 1 } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : stepText(tick))) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick))) }],
    cursor: { sync: { key: "torchyard" }, points: { size: 6 }, drag: { x: true, y: false } },
    hooks: {
      setCursor: [(plot) => moved(plot.cursor.idx)],
      setSelect: [(plot) => plot.select.width > 0 && zoomed(true)],
      ready: [(plot) => plot.over.addEventListener("dblclick", () => zoomed(false))],
      draw: [(plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = colour("--warn");
        ctx.setLineDash([4, 4]);
        for (const step of choices.relative ? [] : rounds) {
          const x = plot.valToPos(step, "x", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.setLineDash([]);
        ctx.fillStyle = colour("--bad");
        ctx.font = `${12 * devicePixelRatio}px system-ui`;
        ctx.textAlign = "center";
        curves.forEach(({ curve }) => curve[BAD].forEach((count, place) => {
          const start = choices.relative ? curve[FIRST][0] : 0;
          const x = plot.valToPos(curve[FIRST][place] - start, "x", true);
          if (count && x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillText("×", x, bbox.top + bbox.height - 2);
        }));
        ctx.restore();
      }],
    },
  };
}

/**
 * One metric of one or several jobs.
 * @param curves list of {label, curve}; the first is the job's own
 * @param choices {log, logX, relative, smooth}
 * @param rounds first step of each round but the first
 * @param onZoom called when a part of the steps was chosen, for which finer buckets are worth reading
 */
export function Chart({ name, curves, choices, rounds, onZoom }) {
  const [ref, seen] = useSeen();
  const [table, setTable] = useState(false);
  const [place, setPlace] = useState(null);
  const box = useRef(), plot = useRef(), isZoomed = useRef(false);
  const own = curves[0].curve;
  const shape = `${curves.map(({ label }) => label).join("\n")}|${choices.log}|${choices.logX}|${choices.relative}|${rounds}`;
  useEffect(() => {
    if (!seen || table) return undefined;
    const draw = () => {
      plot.current?.destroy();
      isZoomed.current = false;
      const drawn = options(box.current.clientWidth, curves, choices, rounds, setPlace, (zoomed) => {
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
  const read = place !== null && place !== undefined && curves.length === 1 && own[FINITE][place] !== undefined;
  return html`<figure ref=${ref} class="chart">
    <figcaption><strong>${name}</strong>
      <button class="small" aria-pressed=${table} onClick=${() => setTable(!table)}>table<span class="hidden"> of ${name}</span></button></figcaption>
    ${table ? html`<${Table} name=${name} curve=${own} />` : html`<div class="plot" ref=${box} role="img"
      aria-label=${`${name}: ${sentence(name, own)}`}></div>`}
    ${curves.length > 1 && html`<p class="legend">${curves.map(({ label }, index) => html`<span key=${label}
      class=${`key curve-${(index % 6) + 1}`}>${label}</span>`)}</p>`}
    <p class="dim">${read ? `${steps(own, place)}: ${
      own[FINITE][place] ? `${figure(own[MEAN][place])}${own[HIGH][place] > own[LOW][place] ? ` (${figure(own[LOW][place])} to ${figure(own[HIGH][place])})` : ""}` : "not finite"}`
      : sentence(name, own)}</p>
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
