import { html, useMemo, useRef, useState } from "./lib/preact.js";
import { AXES, repeats, starts } from "./axes.js";
import { Chart } from "./chart.js";
import { JobChoice, Problem, stepText, useKept, useTopic, useTopics } from "./common.js";

/** Metrics of evaluations apart from those of training, each by name. */
function groups(names) {
  const of = (name) => (/^(eval|val|test)/i.test(name) ? "Evaluation" : name.includes("/") ? name.split("/")[0] : "Training");
  const found = new Map();
  const later = (name) => (/loss|cost|reward|return|accuracy|success/i.test(name) ? 0 : 1); // what it is trained for comes first
  for (const name of [...names].sort((a, b) => later(a) - later(b) || a.localeCompare(b))) {
    if (!found.has(of(name))) found.set(of(name), []);
    found.get(of(name)).push(name);
  }
  const order = (group) => ({ Training: 0, Evaluation: 1 })[group] ?? 2;
  return [...found].sort(([a], [b]) => order(a) - order(b) || a.localeCompare(b));
}

const START = { log: false, x: "step", logX: false, smooth: 0 };

/**
 * Curves of all metrics of a job, with those of others over them.
 * @param name of the job in topics; `label`: for people
 * @param first other jobs, as [place, name]
 */
export function Curves({ place, name, label, first = [] }) {
  const [kept, setChoices] = useKept("curves", START);
  const choices = { ...START, ...kept };
  const [search, setSearch] = useState("");
  const [others, setOthers] = useState(first);
  const [fine, setFine] = useState(false);
  const scale = choices.logX && choices.x === "step" ? "log" : fine ? "fine" : "overview";
  const loaded = useTopic(`curves|${place}|${name}|${scale}`);
  const before = useRef(null);
  before.current = loaded ?? before.current; // charts stay while another scale is read
  const own = before.current;
  const topic = ([at, other]) => `curves|${at}|${other}|${scale}`;
  const overlaid = useTopics(others.map(topic));
  const rounds = own?.rounds ?? [];
  const set = (change) => setChoices({ ...choices, ...change });
  const grouped = useMemo(() => groups(Object.keys(own?.metrics ?? {}).filter((metric) =>
    metric.toLowerCase().includes(search.toLowerCase()))), [own, search]);
  const all = Object.keys(own?.metrics ?? {}).length;
  const curves = (metric) => [{ label, curve: own.metrics[metric], rounds },
    ...others.flatMap((other) => {
      const curve = overlaid[topic(other)]?.metrics?.[metric];
      return curve ? [{ label: other[1], curve, rounds: overlaid[topic(other)].rounds ?? [] }] : [];
    })];
  const toggle = (field, text) => html`<label class="chip"><input type="checkbox" checked=${choices[field]}
    onChange=${(event) => set({ [field]: event.target.checked })} />${text}</label>`;
  const again = repeats(rounds);
  return html`<section><h2>Curves</h2>
    ${own?.error && html`<${Problem} ...${own} />`}
    ${own && !own.error && all === 0 && html`<p class="empty">No metric was logged yet.</p>`}
    ${all > 0 && html`<div class="bar">
      ${all > 6 && html`<label>Metric <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>`}
      <label>x axis <select value=${choices.x} aria-label="x axis" onChange=${(event) => set({ x: event.target.value })}>${Object.entries(AXES).map(([mode, text]) =>
        html`<option key=${mode} value=${mode}>${text}</option>`)}</select></label>
      ${toggle("log", "log values")}${choices.x === "step" && toggle("logX", "log steps")}
      <label class="chip">smooth <input type="range" min="0" max="0.99" step="0.01" value=${choices.smooth}
        onInput=${(event) => set({ smooth: Number(event.target.value) })} /></label>
      <${JobChoice} title="Overlay" place=${place} without=${[name, ...others.map(([, other]) => other)]} onChoice=${(other) => setOthers([...others, [place, other]])} />
      ${others.map((other) => html`<button key=${other.join("/")} class="small" onClick=${() => setOthers(others.filter((each) => each !== other))}>
        ${other[1]} <span aria-hidden="true">×</span><span class="hidden"> remove</span></button>`)}</div>
    ${grouped.map(([group, metrics]) => html`<div key=${group}><h3>${group}</h3><div class="charts">
      ${metrics.map((metric) => html`<${Chart} key=${metric} name=${metric} curves=${curves(metric)} choices=${choices}
        onZoom=${() => setFine(true)} />`)}</div></div>`)}
    <p class="dim note">Shown: ${own.sentence}. A line is the mean of its steps, the band their lowest and highest value; ×
      marks values that are not finite${starts(rounds).length ? ", a dashed line the first step of a round" : ""}.
      ${again.length > 0 && ` Grey: steps that were trained again after a restart (${again.slice(-3).map(([from, to]) =>
        `${stepText(Math.floor(from))} to ${stepText(to)}`).join(", ")}); the newest values are shown.`}
      ${["trained", "wall"].includes(choices.x) && " Times between the begin and the end of a round are estimated from its steps."}
      ${own.leftOut > 0 && ` ${own.leftOut} more metrics are left out.`}</p>`}</section>`;
}
