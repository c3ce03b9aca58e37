import { html, useMemo, useState } from "./lib/preact.js";
import { Problem, State, Wide, address, nameOf, placeName, server, span, useKept, useNow, useTopics } from "./common.js";

const SHOWN = 200, CURVES = 2000, CURVES_OF_CLUSTER = 50;
const FILTERS = { all: () => true, running: (job) => !["Succeeded", "Failed", "Suspended"].includes(job.state),
  succeeded: (job) => job.state === "Succeeded", failed: (job) => ["Failed", "Unreadable", "Interrupted"].includes(job.state) };

/** The rows of all places that are shown, newest first. */
function rowsOf(contents, places, kind) {
  const rows = places.flatMap((place) => (contents[`${kind}|${place}`]?.[kind] ?? []).map((row) => ({ ...row, place,
    namespace: place === "here" ? "" : row.namespace, key: `${place}/${nameOf(row)}` })));
  return places.length > 1 ? rows.sort((a, b) => (b.start ?? 0) - (a.start ?? 0)) : rows;
}

export function List({ places: offered, first }) {
  const [chosen, setChosen] = useKept("places", first);
  const [added, setAdded] = useKept("namespaces", []);
  const places = [...offered, ...(server.reading ? added.filter((each) => !offered.includes(each)) : [])];
  const shown = places.length === 1 ? places : places.filter((place) => chosen.includes(place));
  const now = useNow();
  const contents = useTopics(shown.flatMap((place) => [`jobs|${place}`, `sweeps|${place}`]));
  const [search, setSearch] = useState("");
  const [filter, setFilter] = useKept("filter", "all");
  const [namespace, setNamespace] = useState("");
  const [trials, setTrials] = useKept("trials", false);
  const [most, setMost] = useState(SHOWN);
  const [marked, setMarked] = useState([]);
  const all = useMemo(() => rowsOf(contents, shown, "jobs"), [contents, shown.join("\n")]);
  const namespaces = useMemo(() => [...new Set(all.map((row) => row.namespace).filter(Boolean))].sort(), [all]);
  const fits = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const state = FILTERS[filter] ?? FILTERS.all;
    return (row) => {
      const text = `${row.name} ${row.namespace} ${row.place} ${row.state} ${row.reason ?? ""}`.toLowerCase();
      return state(row) && (!namespace || row.namespace === namespace) && words.every((word) => text.includes(word));
    };
  }, [search, filter, namespace]);
  const jobs = useMemo(() => all.filter((row) => fits(row) && (trials || !row.sweep)), [all, fits, trials]);
  const hidden = useMemo(() => all.filter((row) => row.sweep).length, [all]);
  const sweeps = useMemo(() => rowsOf(contents, shown, "sweeps").filter(fits), [contents, shown.join("\n"), fits]);
  const waits = shown.filter((place) => !contents[`jobs|${place}`]);
  const toggle = (list, item) => (list.includes(item) ? list.filter((each) => each !== item) : [...list, item]);
  const chosenRows = marked.map((key) => all.find((row) => row.key === key)).filter(Boolean);
  const [left, right] = chosenRows;
  return html`
    <h1>Jobs <small>${shown.map((place) => contents[`jobs|${place}`]?.where ?? placeName(place)).join(", ")}</small></h1>
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="grow"><span class="hidden">Search</span><input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)}
        placeholder="Search name, state or reason  ( / )" /></label>
      <fieldset class="choice"><legend class="hidden">State</legend>
        ${Object.keys(FILTERS).map((name) => html`<label key=${name}><input type="radio" name="filter"
          checked=${filter === name} onChange=${() => setFilter(name)} /><span>${name}</span></label>`)}</fieldset>
      ${namespaces.length > 1 && html`<label>Namespace <select value=${namespace} onChange=${(event) => setNamespace(event.target.value)}>
        <option value="">all</option>${namespaces.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>`}
      ${places.length > 1 && html`<fieldset><legend class="hidden">Places</legend>${places.map((place) => html`<label class="chip" key=${place}><input
        type="checkbox" checked=${shown.includes(place)} onChange=${() => setChosen(toggle(shown, place))} />${placeName(place)}</label>`)}</fieldset>`}
      ${server.reading && !offered.includes("*") && html`<${AddNamespace} add=${(name) => (setAdded([...new Set([...added, name])]), setChosen([...new Set([...chosen, name])]))} />`}
      ${hidden > 0 && html`<label class="chip"><input type="checkbox" checked=${trials} onChange=${() => setTrials(!trials)} />trials of sweeps</label>`}
      ${jobs.length > 2 && html`<${Overlaid} rows=${jobs} />`}
      <output class="dim">${jobs.length} of ${trials ? all.length : all.length - hidden}</output>
    </form>
    ${shown.map((place) => contents[`jobs|${place}`]?.error && html`<${Problem} key=${place} ...${contents[`jobs|${place}`]} />`)}
    ${waits.length > 0 && html`<p class="dim">Reading jobs ...</p>`}
    ${sweeps.length > 0 && html`<section><h2>Sweeps</h2><${Wide} label="Sweeps"><table class="list">
      <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Trials</th><th scope="col">Running</th>
        <th scope="col">Best</th><th scope="col">Age</th></tr></thead>
      <tbody>${sweeps.slice(0, SHOWN).map((row) => html`<tr key=${row.key}>
        <th scope="row"><${Name} page="sweep" row=${row} several=${shown.length > 1} /></th><td><${State} state=${row.state} /></td>
        <td>${row.trials}</td><td>${row.running || ""}</td><td>${row.best}</td><td>${row.start ? span(now - row.start) : ""}</td></tr>`)}
      </tbody></table><//></section>`}
    ${!waits.length && all.length === 0 && shown.length > 0 && !shown.some((place) => contents[`jobs|${place}`]?.error) &&
      html`<p class="empty">There are no jobs yet. <code>torchyard demo</code> starts one.</p>`}
    ${all.length > 0 && html`<section>${sweeps.length > 0 && html`<h2>Jobs</h2>`}
    <${Wide} label="Jobs"><table class="list">
      <thead><tr><td class="mark"><span class="hidden">Compare</span></td><th scope="col">Name</th><th scope="col">State</th><th scope="col">Progress</th><th scope="col" class="minor number">Step</th>
        <th scope="col" class="minor number">Loss</th><th scope="col" class="minor number">Rate</th><th scope="col" class="number">Left</th><th scope="col" class="minor number">Goodput</th>
        <th scope="col" class="minor number">Restarts</th><th scope="col" class="number">Age</th></tr></thead>
      <tbody>${jobs.slice(0, most).map((row) => html`<tr key=${row.key}>
        <td class="mark"><input type="checkbox" aria-label=${`compare ${row.name}`} checked=${marked.includes(row.key)} onChange=${() => setMarked(toggle(marked, row.key))} /></td>
        <th scope="row"><${Name} page="job" row=${row} several=${shown.length > 1} /></th>
        <td><${State} state=${row.state} />${row.reason && row.reason !== row.state ? html` <span class="dim">${row.reason}</span>` : ""}</td>
        <td>${row.progress && html`<progress max="100" value=${parseFloat(row.progress)} aria-label=${`progress of ${row.name}`}></progress> ${row.progress}`}</td>
        <td class="minor number">${row.step}</td><td class="minor number">${row.loss}</td><td class="minor number">${row.rate}</td><td class="number">${row.eta}</td>
        <td class="minor number">${row.goodput}</td><td class="minor number">${row.restarts || ""}</td><td class="number">${row.start ? span((row.end ?? now) - row.start) : ""}</td></tr>`)}
      </tbody></table><//>
    ${jobs.length > most && html`<button onClick=${() => setMost(most + 1000)}>Show more</button>`}</section>`}
    ${marked.length > 0 && html`<div class="float" role="region" aria-label="Comparison">
      ${!right && html`<span>Choose other jobs to compare with.</span>`}
      ${chosenRows.length === 2 && html`<a class="button primary" href=${address("diff", left.place, nameOf(left), right.place, nameOf(right))}>Compare ${left.name} with ${right.name}</a>`}
      ${chosenRows.length > 2 && html`<${Overlaid} rows=${chosenRows} />`} <button onClick=${() => setMarked([])}>Cancel</button></div>`}`;
}

/** A link to the curves of some jobs, which are of one place. */
function Overlaid({ rows }) {
  if (rows.some((row) => row.place !== rows[0].place)) return html`<span>Curves of more than two jobs are shown of one place.</span>`;
  const words = rows.slice(0, server.reading || rows[0].place !== "here" ? CURVES_OF_CLUSTER : CURVES).map((row) => (row.place === "here" ? row.name : nameOf(row)));
  return html`<a class="button" href=${address("curves", rows[0].place, ...words)}>Curves of ${words.length.toLocaleString("en")} jobs</a>`;
}

/** A user who may not list the jobs of all namespaces names those that it may read. */
function AddNamespace({ add }) {
  const [name, setName] = useState("");
  const fits = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(name);
  const pressed = (event) => event.key === "Enter" && (event.preventDefault(), fits && (add(name), setName("")));
  return html`<label>Add a namespace <input size="12" value=${name} onInput=${(event) => setName(event.target.value)} onKeyDown=${pressed} /></label>
    <button type="button" class="small" disabled=${!fits} onClick=${() => (add(name), setName(""))}>Add</button>`;
}

function Name({ page, row, several }) {
  const where = [several && row.place !== "here" && row.place, row.namespace].filter(Boolean).join(" / ");
  return html`<a href=${address(page, row.place, nameOf(row))}>${row.name}</a>${where && html` <small class="dim">${where}</small>`}`;
}
