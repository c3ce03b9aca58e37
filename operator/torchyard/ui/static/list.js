import { html, useMemo, useState } from "./lib/preact.js";
import { Problem, State, span, useKept, useNow, useTopic } from "./common.js";

const SHOWN = 200;
const FILTERS = { all: () => true, running: (job) => !["Succeeded", "Failed", "Suspended"].includes(job.state),
  succeeded: (job) => job.state === "Succeeded", failed: (job) => ["Failed", "Unreadable", "Interrupted"].includes(job.state) };

export function List({ place }) {
  const content = useTopic(`jobs|${place}`);
  const [search, setSearch] = useState("");
  const [filter, setFilter] = useKept("filter", "all");
  const [most, setMost] = useState(SHOWN);
  const now = useNow();
  const jobs = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = FILTERS[filter] ?? FILTERS.all;
    return (content?.jobs ?? []).filter((job) => {
      const text = `${job.name} ${job.state} ${job.reason ?? ""}`.toLowerCase();
      return fits(job) && words.every((word) => text.includes(word));
    });
  }, [content, search, filter]);
  if (content === null) return html`<p class="dim">Reading jobs ...</p>`;
  if (content.error) return html`<${Problem} ...${content} />`;
  return html`
    <h1>Jobs <small>${content.where}</small></h1>
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)}
        placeholder="name, state or reason" data-key="/" /></label>
      <fieldset><legend class="hidden">State</legend>
        ${Object.keys(FILTERS).map((name) => html`<label class="chip" key=${name}><input type="radio" name="filter"
          checked=${filter === name} onChange=${() => setFilter(name)} />${name}</label>`)}
      </fieldset>
      <output class="dim">${jobs.length} of ${content.jobs.length}</output>
    </form>
    ${content.jobs.length === 0 && html`<p>There are no jobs yet. <code>torchyard demo</code> starts one.</p>`}
    <div class="wide" tabindex="0" role="region" aria-label="Jobs"><table class="jobs">
      <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Progress</th><th scope="col">Step</th>
        <th scope="col">Loss</th><th scope="col">Rate</th><th scope="col">Left</th><th scope="col">Restarts</th>
        <th scope="col">Age</th></tr></thead>
      <tbody>${jobs.slice(0, most).map((job) => html`<tr key=${job.name}>
        <th scope="row"><a href=${`#/job/${place}/${encodeURIComponent(job.name)}`}>${job.name}</a></th>
        <td><${State} state=${job.state} /> ${job.reason && job.reason !== job.state &&
          html`<span class="dim">${job.reason}</span>`}</td>
        <td>${job.progress && html`<progress max="100" value=${parseFloat(job.progress)} aria-label=${`progress of ${job.name}`}></progress> ${job.progress}`}</td>
        <td>${job.step}</td><td>${job.loss}</td><td>${job.rate}</td><td>${job.eta}</td>
        <td>${job.restarts || ""}</td><td>${job.start ? span((job.end ?? now) - job.start) : ""}</td></tr>`)}
      </tbody></table></div>
    ${jobs.length > most && html`<button onClick=${() => setMost(most + 1000)}>Show more</button>`}`;
}
