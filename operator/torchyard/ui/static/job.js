import { html, useEffect, useMemo, useRef, useState } from "./lib/preact.js";
import { Chart } from "./chart.js";
import { Problem, State, figure, span, useKept, useNow, useTopic } from "./common.js";
import { get, post, watch } from "./live.js";

const KEPT = 5000;
const SHOWN = 1000;

export function Job({ place, name }) {
  const job = useTopic(`job|${place}|${name}`);
  useEffect(() => void (document.title = `${name} - TorchYard`), [name]);
  if (job === null) return html`<p class="dim">Reading ${name} ...</p>`;
  if (job.error) return html`<${Problem} ...${job} />`;
  return html`<${Head} job=${job} place=${place} />
    <${Curves} place=${place} job=${job} />
    <${Rounds} attempts=${job.status.attempts ?? []} goodput=${job.status.goodput} />
    <${Ranks} job=${job} />
    <${Log} place=${place} name=${name} />
    <${Events} events=${job.events} />
    <section><h2>Specification</h2><details><summary>Show the specification</summary>
      <pre tabindex="0">${JSON.stringify(job.spec, null, 2)}</pre></details></section>`;
}

function Head({ job, place }) {
  const now = useNow();
  const { progress = {}, throughput = {}, checkpoint, nodes, restarts, gpus = {}, warnings = [] } = job.status;
  const saved = checkpoint?.time ? ` ${span(now - Date.parse(checkpoint.time) / 1000)} ago` : "";
  const facts = [
    ["step", progress.step && `${progress.step}${progress.totalSteps ? ` of ${progress.totalSteps}` : ""}`],
    ["epoch", progress.epoch && figure(progress.epoch)],
    ["rate", throughput.stepsPerSecond && `${figure(throughput.stepsPerSecond)} steps/s`],
    ["time left", job.eta],
    ["age", job.start && span((job.end ?? now) - job.start)],
    ["phase", job.state === "Running" && progress.phase],
    ["checkpoint", checkpoint && `step ${checkpoint.step ?? 0}${saved}`],
    ["pods", nodes?.desired && job.state !== "Succeeded" && `${nodes.ready ?? 0} of ${nodes.desired} ready`],
    ["GPUs", gpus.count && `${gpus.count}${gpus.utilization !== undefined ? `, ${figure(gpus.utilization)}% busy` : ""}`],
    ["goodput", job.status.goodput?.percent !== undefined && `${figure(job.status.goodput.percent)}%`],
    ["restarts", restarts?.total],
  ].filter(([, value]) => value);
  return html`<h1>${job.name} <${State} state=${job.state} /> <small>${job.where}</small></h1>
    <p class="sentence">${job.sentence}</p>
    ${progress.percent !== undefined && html`<progress class="whole" max="100" value=${progress.percent}
      aria-label="progress"></progress>`}
    <dl class="facts">${facts.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
    ${warnings.map((text) => html`<p key=${text} class="warning">${text}</p>`)}
    <${Actions} job=${job} place=${place} />`;
}

function Actions({ job, place }) {
  const [asked, setAsked] = useState(null);
  const [problem, setProblem] = useState(null);
  const dialog = useRef();
  const ended = ["Succeeded", "Failed"].includes(job.state);
  const rests = ["Suspended", "Suspending", "Interrupted"].includes(job.state);
  const verbs = {
    ...(!ended && !rests && { suspend: ["Save and stop", `${job.name} saves a checkpoint, and its pods end.`] }),
    ...(rests && !job.local && { resume: ["Resume", `${job.name} continues from its newest checkpoint.`] }),
    delete: ["Delete", job.local ? `${job.name} ends at once without saving. Its logs and checkpoints are deleted.`
      : `${job.name} and its pods are deleted without saving. Checkpoints on a claim stay.`],
  };
  const act = async () => {
    const found = await post("/api/action", { verb: asked, place, name: job.name });
    setProblem(found.error ? found : null);
    dialog.current.close();
    if (!found.error && asked === "delete") location.hash = `#/list/${place}`;
  };
  return html`<div class="bar">
    ${Object.entries(verbs).map(([verb, [title]]) => html`<button key=${verb} class=${verb === "delete" ? "danger" : ""}
      onClick=${() => (setAsked(verb), dialog.current.showModal())}>${title}</button>`)}
    <span class="dim">next: <code>${job.next}</code></span></div>
    ${problem && html`<${Problem} ...${problem} />`}
    <dialog ref=${dialog} aria-labelledby="asked"><p id="asked">${verbs[asked]?.[1]}</p>
      <div class="bar"><button class="primary" onClick=${act}>${verbs[asked]?.[0]}</button>
      <button onClick=${() => dialog.current.close()}>Cancel</button></div></dialog>`;
}

/** Metrics of evaluations apart from those of training, each by name. */
function groups(names) {
  const of = (name) => (/^(eval|val|test)/i.test(name) ? "Evaluation" : name.includes("/") ? name.split("/")[0] : "Training");
  const found = {};
  const later = (name) => (/loss|cost|reward|return|accuracy|success/i.test(name) ? 0 : 1); // what it is trained for comes first
  for (const name of [...names].sort((a, b) => later(a) - later(b) || a.localeCompare(b))) (found[of(name)] ??= []).push(name);
  const order = (group) => ({ Training: 0, Evaluation: 1 })[group] ?? 2;
  return Object.entries(found).sort(([a], [b]) => order(a) - order(b) || a.localeCompare(b));
}

function useCurvesOf(topics) {
  const [found, setFound] = useState({});
  const key = topics.join("\n");
  useEffect(() => {
    let over = false;
    const load = async (topic) => {
      const content = await get(`/api/topic?topic=${encodeURIComponent(topic)}`).catch(() => null);
      if (!over && content) setFound((before) => ({ ...before, [topic]: content }));
    };
    const ends = topics.map((topic) => (load(topic), watch(topic, () => load(topic))));
    return () => ((over = true), ends.forEach((end) => end()));
  }, [key]);
  return found;
}

function Curves({ place, job }) {
  const [choices, setChoices] = useKept("curves", { log: false, logX: false, relative: false, smooth: 0 });
  const [search, setSearch] = useState("");
  const [others, setOthers] = useState([]);
  const [fine, setFine] = useState(false);
  const scale = choices.logX ? "log" : fine ? "fine" : "overview";
  const loaded = useTopic(`curves|${place}|${job.name}|${scale}`);
  const before = useRef(null);
  before.current = loaded ?? before.current; // charts stay while another scale is read
  const own = before.current;
  const overlaid = useCurvesOf(others.map((other) => `curves|${place}|${other}|${scale}`));
  const jobs = useTopic(`jobs|${place}`);
  const rounds = (job.status.attempts ?? []).slice(1).map((attempt) => attempt.startStep ?? 0);
  const set = (change) => setChoices({ ...choices, ...change });
  const names = useMemo(() => groups(Object.keys(own?.metrics ?? {}).filter((name) =>
    name.toLowerCase().includes(search.toLowerCase()))), [own, search]);
  const all = Object.keys(own?.metrics ?? {}).length;
  const curves = (name) => [{ label: job.name, curve: own.metrics[name] },
    ...others.flatMap((other) => {
      const curve = overlaid[`curves|${place}|${other}|${scale}`]?.metrics?.[name];
      return curve ? [{ label: other, curve }] : [];
    })];
  const toggle = (field, text) => html`<label class="chip"><input type="checkbox" checked=${choices[field]}
    onChange=${(event) => set({ [field]: event.target.checked })} />${text}</label>`;
  return html`<section><h2>Curves</h2>
    ${own?.error && html`<${Problem} ...${own} />`}
    ${own && !own.error && all === 0 && html`<p class="dim">No metric was logged yet.</p>`}
    ${all > 0 && html`<div class="bar">
      ${all > 6 && html`<label>Metric <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>`}
      ${toggle("log", "log values")}${toggle("logX", "log steps")}${toggle("relative", "steps from the first")}
      <label>Smooth <input type="range" min="0" max="0.99" step="0.01" value=${choices.smooth}
        onInput=${(event) => set({ smooth: Number(event.target.value) })} /></label>
      <label>Compare with <select value="" onChange=${(event) => setOthers([...others, event.target.value])}>
        <option value="">choose a job</option>
        ${(jobs?.jobs ?? []).filter((each) => each.name !== job.name && !others.includes(each.name)).slice(0, 500)
          .map((each) => html`<option key=${each.name}>${each.name}</option>`)}</select></label>
      ${others.map((other) => html`<button key=${other} class="small" onClick=${() => setOthers(others.filter((each) => each !== other))}>
        ${other} <span aria-hidden="true">×</span><span class="hidden">remove</span></button>`)}</div>
    ${names.map(([group, metrics]) => html`<div key=${group}><h3>${group}</h3><div class="charts">
      ${metrics.map((metric) => html`<${Chart} key=${metric} name=${metric} curves=${curves(metric)} choices=${choices}
        rounds=${rounds} onZoom=${() => setFine(true)} />`)}</div></div>`)}
    <p class="dim">Shown: ${own.sentence}. A line is the mean of its steps, the band their lowest and highest value; ×
      marks values that are not finite${rounds.length ? ", a dashed line the first step of a round" : ""}.
      ${own.leftOut > 0 && ` ${own.leftOut} more metrics are left out.`}</p>`}</section>`;
}

function Rounds({ attempts, goodput }) {
  const seconds = Object.entries(goodput?.seconds ?? {}).sort(([, a], [, b]) => b - a);
  const whole = seconds.reduce((sum, [, value]) => sum + value, 0);
  if (!attempts.length && !whole) return null;
  return html`<section><h2>Rounds and time</h2>
    ${attempts.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Rounds"><table>
      <thead><tr><th scope="col">Round</th><th scope="col">Took</th><th scope="col">Steps</th><th scope="col">Ended</th>
        <th scope="col">First cause</th></tr></thead>
      <tbody>${attempts.map((each) => html`<tr key=${each.round}><th scope="row">${each.round}</th>
        <td>${each.endTime && each.startTime ? span((Date.parse(each.endTime) - Date.parse(each.startTime)) / 1000) : ""}</td>
        <td>${each.startStep ?? 0} to ${each.endStep ?? 0}</td><td>${each.reason ?? (each.endTime ? "" : "open")}</td>
        <td>${each.cause && html`<details><summary>${each.cause.class} ${[each.cause.rank !== undefined && `rank ${each.cause.rank}`, each.cause.exception].filter(Boolean).join(": ")}</summary><pre tabindex="0">${(each.cause.lines ?? []).join("\n")}</pre></details>`}</td></tr>`)}</tbody></table></div>`}
    ${whole > 0 && html`<ul class="times">${seconds.map(([kind, value]) => html`<li key=${kind}><span>${kind}</span>
      <meter min="0" max=${whole} value=${value} aria-label=${kind}></meter> <span>${span(value)}, ${((100 * value) / whole).toFixed(1)}%</span></li>`)}</ul>`}
  </section>`;
}

function Ranks({ job }) {
  const now = useNow();
  if (!job.ranks.length && !job.pods.length) return null;
  return html`<section><h2>Ranks and pods</h2>
    ${job.ranks.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Ranks"><table><thead><tr><th scope="col">Rank</th><th scope="col">Pod</th>
      <th scope="col">Phase</th><th scope="col">Step</th><th scope="col">Behind</th><th scope="col">Reported</th></tr></thead>
      <tbody>${job.ranks.map((each) => html`<tr key=${each.rank}><th scope="row">${each.rank}</th><td>${each.pod}</td>
        <td>${each.phase}</td><td>${each.step}</td><td>${each.lag || ""}</td>
        <td>${each.time ? `${span(now - each.time)} ago` : ""}</td></tr>`)}</tbody></table></div>`}
    ${job.pods.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Pods"><table><thead><tr><th scope="col">Pod</th><th scope="col">Node</th>
      <th scope="col">Phase</th><th scope="col">Why</th></tr></thead>
      <tbody>${job.pods.map((each) => html`<tr key=${each.name}><th scope="row">${each.name}</th><td>${each.node}</td>
        <td>${each.phase}</td><td>${each.why}</td></tr>`)}</tbody></table></div>`}</section>`;
}

function Log({ place, name }) {
  const topic = `logs|${place}|${name}`;
  const [lines, setLines] = useState([]);
  const [note, setNote] = useState("");
  const [search, setSearch] = useState("");
  const [rank, setRank] = useState("");
  const box = useRef(), follows = useRef(true);
  useEffect(() => {
    let last = 0, busy = false, again = false, over = false;
    const load = async () => {
      if (busy) return void (again = true);
      busy = true;
      do {
        again = false;
        const found = await get(`/api/logs?topic=${encodeURIComponent(topic)}&since=${last}`).catch(() => null);
        if (over || !found || found.error) continue;
        last = found.last;
        setNote(found.note);
        if (found.lines.length || found.again) {
          setLines((before) => [...(found.again ? [] : before), ...found.lines].slice(-KEPT));
        }
      } while (again && !over);
      busy = false;
    };
    setLines([]);
    const end = watch(topic, load);
    load();
    return () => ((over = true), end());
  }, [topic]);
  const ranks = useMemo(() => [...new Set(lines.map((line) => line[1]))].sort((a, b) => (a ?? -1) - (b ?? -1)), [lines]);
  const shown = useMemo(() => {
    const text = search.toLowerCase();
    return lines.filter((line) => (rank === "" || String(line[1]) === rank) && line[3].toLowerCase().includes(text)).slice(-SHOWN);
  }, [lines, search, rank]);
  useEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 30;
  };
  return html`<section><h2>Log</h2>
    <div class="bar"><label>Search the log <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <label>Rank <select value=${rank} onChange=${(event) => setRank(event.target.value)}><option value="">all</option>
        ${ranks.map((each) => html`<option key=${each} value=${String(each)}>${each ?? "agent"}</option>`)}</select></label>
      <output class="dim">${shown.length} of ${lines.length} lines</output></div>
    ${note && html`<p class="dim">${note}</p>`}
    <div class="log" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="output of the ranks">
      ${shown.map(([number, of, pod, text, round]) => html`<div key=${number}><span class="dim" title=${pod}>${of === null ? "agent" : `r${of}`}${
        round !== null ? ` round ${round}` : ""}</span> ${text}</div>`)}
      ${!lines.length && html`<span class="dim">Nothing was written yet.</span>`}</div></section>`;
}

function Events({ events }) {
  if (!events.length) return null;
  return html`<section><h2>Events</h2><ol class="events" reversed>${[...events].reverse().slice(0, 50).map((each, index) => html`<li key=${index}
    class=${each.type === "Warning" ? "warning" : ""}><time>${each.time.replace("T", " ").replace("Z", "")}</time> <strong>${each.reason}</strong> ${each.message}</li>`)}</ol></section>`;
}
