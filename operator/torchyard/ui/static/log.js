import { html, useEffect, useMemo, useRef, useState } from "./lib/preact.js";
import { get, watch } from "./live.js";

const KEPT = 5000;
const SHOWN = 1000;

/** The output of all ranks in one, with a search. `failing`: the rank that failed first, which is shown first. */
export function Log({ place, name, failing }) {
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
    if (!box.current) return; // the event was on its way when the page changed
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 30;
  };
  const matches = search ? shown.length : 0;
  return html`<section><h2>Log</h2>
    <div class="bar"><label class="grow"><span class="hidden">Search the log</span><input placeholder="Search the log" type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <label>Rank <select value=${rank} onChange=${(event) => setRank(event.target.value)}><option value="">all</option>
        ${ranks.map((each) => html`<option key=${each} value=${String(each)}>${each ?? "agent"}</option>`)}</select></label>
      ${failing !== null && failing !== undefined && ranks.includes(failing) && html`<button class="small" aria-pressed=${rank === String(failing)}
        onClick=${() => setRank(rank === String(failing) ? "" : String(failing))}>rank ${failing} failed first</button>`}
      <output class="dim">${search ? `${matches}${matches === SHOWN ? " newest" : ""} matches in ` : ""}${lines.length} lines</output></div>
    ${note && html`<p class="dim">${note}</p>`}
    <div class="log" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="output of the ranks">
      ${shown.map(([number, of, pod, text, round]) => html`<div key=${number}><span class="dim" title=${pod}>${of === null ? "agent" : `r${of}`}${
        round !== null ? ` round ${round}` : ""}</span> ${marked(text, search)}</div>`)}
      ${!lines.length && html`<span class="dim">Nothing was written yet.</span>`}</div></section>`;
}


/** A line with its matches marked. */
function marked(text, search) {
  if (!search) return text;
  const parts = [], low = text.toLowerCase(), word = search.toLowerCase();
  let at = 0;
  for (let place = low.indexOf(word); place >= 0 && parts.length < 200 && low.length === text.length; place = low.indexOf(word, at)) {
    parts.push(text.slice(at, place), html`<mark>${text.slice(place, place + word.length)}</mark>`);
    at = place + word.length;
  }
  return [...parts, text.slice(at)];
}
