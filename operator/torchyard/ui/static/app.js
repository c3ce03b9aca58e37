import { html, render, useEffect, useRef, useState } from "./lib/preact.js";
import { Job } from "./job.js";
import { List } from "./list.js";
import { get, watchState } from "./live.js";

function route() {
  const [, page = "list", place = "here", name = ""] = location.hash.split("/");
  try {
    return { page, place: decodeURIComponent(place), name: decodeURIComponent(name) };
  } catch {
    return { page: "list", place: "here", name: "" };
  }
}

function App() {
  const [{ page, place, name }, setRoute] = useState(route());
  const [places, setPlaces] = useState(["here"]);
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
    get("/api/places").then((found) => found.places && setPlaces(found.places)).catch(() => {});
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
    <header><a class="brand" href=${`#/list/${place}`}>TorchYard</a>
      <nav aria-label="Places">${places.map((each) => html`<a key=${each} href=${`#/list/${each}`}
        aria-current=${each === place ? "page" : null}>${each === "here" ? "this machine" : each}</a>`)}</nav>
      <span role="status">${answers ? "" : "The server does not answer: `torchyard ui` starts it again."}</span></header>
    <main id="main" ref=${main} tabindex="-1">${page === "job" && name ? html`<${Job} key=${`${place}/${name}`} place=${place} name=${name} />`
      : html`<${List} key=${place} place=${place} />`}</main>`;
}

render(html`<${App} />`, document.body);
