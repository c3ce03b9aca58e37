import { html, useEffect, useState } from "./lib/preact.js";
import { Problem, Wide, address, figure } from "./common.js";
import { Curves } from "./curves.js";
import { ask } from "./live.js";

const TITLES = { specification: "Specification", code: "Code", packages: "Packages", machine: "Machine", result: "Result", metrics: "Final metrics" };

/** Two jobs beside each other: their curves, and everything that differs. `left`, `right`: [place, name]. */
export function Difference({ left, right }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    document.title = `${left[1]} and ${right[1]} - TorchYard`;
    ask("diff", { place: left[0], name: left[1], otherPlace: right[0], otherName: right[1] }).then(setFound);
  }, []);
  const sections = new Map();
  for (const each of found?.differences ?? []) sections.set(each.section, [...(sections.get(each.section) ?? []), each]);
  const order = Object.keys(TITLES);
  return html`<h1>Comparison</h1>
    <p><a href=${address("job", ...left)}>${left[1]}</a> with <a href=${address("job", ...right)}>${right[1]}</a></p>
    <${Curves} place=${left[0]} name=${left[1]} label=${left[1]} first=${[right]} />
    ${found === null && html`<p class="dim">Comparing ...</p>`}${found?.error && html`<${Problem} ...${found} />`}
    ${found?.differences?.length === 0 && html`<p class="empty">They do not differ.</p>`}
    ${[...sections].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b)).map(([section, rows]) => html`<section key=${section}>
      <h2>${TITLES[section] ?? section} <small>${rows.length} difference${rows.length > 1 ? "s" : ""}</small></h2>
      <${Wide} label=${`differences of ${section}`}><table class="diff"><thead><tr><th scope="col">Name</th><th scope="col">${left[1]}</th><th scope="col">${right[1]}</th></tr></thead>
      <tbody>${rows.map((each) => html`<tr key=${each.name}><th scope="row">${each.name}</th>${each.lines.length
        ? html`<td colspan="2"><pre tabindex="0" aria-label=${`lines of ${each.name}`}>${each.lines.map((line, index) => html`<span key=${index}
            class=${line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "dim"}>${line}${"\n"}</span>`)}</pre></td>`
        : html`<td><${Value} value=${each.left} /></td><td><${Value} value=${each.right} /></td>`}</tr>`)}</tbody></table><//></section>`)}
    ${(found?.notes ?? []).map((note) => html`<p key=${note} class="dim note">${note}</p>`)}`;
}

function Value({ value }) {
  if (value === null) return html`<span class="dim">none</span>`;
  return typeof value === "number" && !Number.isInteger(value) ? figure(value) : String(value).slice(0, 400);
}
