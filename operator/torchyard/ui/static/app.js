import { html, render, useEffect, useRef, useState } from "./lib/preact.js";
import { Problem, server } from "./common.js";
import { Difference } from "./diff.js";
import { Job } from "./job.js";
import { List } from "./list.js";
import { get, watchState } from "./live.js";
import { New } from "./new.js";
import { Overlay } from "./overlay.js";
import { Sweep } from "./sweep.js";

/** The words of the address: `#/job/PLACE/NAME`, `#/diff/PLACE/NAME/PLACE/NAME`, `#/curves/PLACE/NAME/NAME/...`, `#/new/PLACE/NAME/KIND`. */
function route() {
  try {
    const [, page = "list", ...words] = location.hash.split("/").map(decodeURIComponent);
    return { page, words };
  } catch {
    return { page: "list", words: [] };
  }
}

function Page({ page, words, places }) {
  const [place, name, other, otherName] = words;
  const key = words.join("/");
  if (!places) return null;
  if (places.error) return html`<${Problem} ...${places} />`;
  if (page === "job" && name) return html`<${Job} key=${key} place=${place} name=${name} />`;
  if (page === "sweep" && name) return html`<${Sweep} key=${key} place=${place} name=${name} />`;
  if (page === "diff" && otherName) return html`<${Difference} key=${key} left=${[place, name]} right=${[other, otherName]} />`;
  if (page === "curves" && name) return html`<${Overlay} key=${key} place=${place} names=${words.slice(1)} />`;
  if (page === "new" && name && !server.reading) return html`<${New} key=${key} place=${place} name=${name} kind=${other} />`;
  return html`<${List} places=${places.places} first=${places.shown} />`;
}

function App() {
  const [{ page, words }, setRoute] = useState(route());
  const [places, setPlaces] = useState(null);
  const [answers, setAnswers] = useState(true);
  const main = useRef();
  useEffect(() => {
    const changed = () => {
      setRoute(route());
      document.title = "TorchYard";
      scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    };
    addEventListener("hashchange", changed);
    const load = () => get("/api/places").then((found) => (Object.assign(server, { reading: found.reading === true }), setPlaces(found))).catch(() => setTimeout(load, 1000));
    load();
    const timer = { id: 0 };
    const end = watchState((connected) => {
      clearTimeout(timer.id);
      timer.id = setTimeout(() => setAnswers(connected), connected ? 0 : 1500);
    });
    return () => (removeEventListener("hashchange", changed), end());
  }, []);
  useEffect(() => {
    const pressed = (event) => {
      const typing = /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName);
      if (event.key === "/" && !typing) {
        const search = document.querySelector("input[type=search]");
        if (search) (event.preventDefault(), search.focus());
      }
      if (event.key === "Escape" && typing) document.activeElement.blur();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header><a class="brand" href="#/list"><svg viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height="16" rx="3.5" /><path d="M3 11 6 6l3 3 4-5" /></svg>TorchYard</a>
      ${page !== "list" && html`<nav aria-label="Page"><a href="#/list">All jobs</a></nav>`}
      <span role="status" class="lost">${answers ? "" : `The server does not answer${server.reading ? "." : ": `torchyard ui` starts it again."}`}</span></header>
    <main id="main" ref=${main} tabindex="-1"><${Page} page=${page} words=${words} places=${places} /></main>`;
}

render(html`<${App} />`, document.body);
