import { html, useEffect, useRef, useState } from "./lib/preact.js";
import { topicOf, watch } from "./live.js";

/** What the server says of itself; `reading`: it runs in a cluster, and shows without changing anything. */
export const server = { reading: false };

/** What the server has for a topic, again after each change; null at first. One request at a time. */
export function useTopic(topic) {
  const [content, setContent] = useState(null);
  useEffect(() => {
    let busy = false, again = false, over = false, version = null;
    const load = async (newest) => {
      if (newest && newest === version) return;
      if (busy) return void (again = true);
      busy = true;
      do {
        again = false;
        try {
          const found = await topicOf(topic, version);
          if (found && !over) (version = found.version, setContent(found.content));
        } catch {
          // The server does not answer: the head says so, and the stream connects again.
        }
      } while (again && !over);
      busy = false;
    };
    setContent(null);
    const end = watch(topic, load);
    load();
    return () => {
      over = true;
      end();
    };
  }, [topic]);
  return content;
}

/** What the server has for some topics by topic, again after each change. */
export function useTopics(topics) {
  const [found, setFound] = useState({});
  const key = topics.join("\n");
  useEffect(() => {
    let over = false;
    const versions = new Map();
    const load = async (topic, newest) => {
      if (newest && newest === versions.get(topic)) return;
      const found = await topicOf(topic, versions.get(topic)).catch(() => null);
      if (!found || over) return;
      versions.set(topic, found.version);
      setFound((before) => ({ ...before, [topic]: found.content }));
    };
    const ends = topics.map((topic) => (load(topic), watch(topic, (newest) => load(topic, newest))));
    return () => ((over = true), ends.forEach((end) => end()));
  }, [key]);
  return found;
}

/** The name of a job in addresses and topics: with its namespace on a cluster. */
export function nameOf(row) {
  return row.namespace ? `${row.namespace}/${row.name}` : row.name;
}

export function address(page, ...words) {
  return `#/${page}/${words.map(encodeURIComponent).join("/")}`;
}

export function bytes(value) {
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${Number((value / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function placeName(place) {
  return { here: "this machine", "*": "all namespaces" }[place] ?? place;
}

/** A value that is kept in this browser. */
export function useKept(name, initial) {
  const [value, setValue] = useState(() => JSON.parse(localStorage.getItem(name) ?? "null") ?? initial);
  return [value, (next) => (localStorage.setItem(name, JSON.stringify(next)), setValue(next))];
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "";
  const whole = Math.max(0, Math.floor(seconds));
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  return d ? `${d}d${h}h` : h ? `${h}h${m}m` : m ? `${m}m${s}s` : `${s}s`;
}

export function figure(value) {
  if (value === null || value === undefined || !isFinite(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 7 });
}

/** A step, exactly. */
export function stepText(value) {
  return value.toLocaleString("en", { maximumFractionDigits: 6 });
}

/** Seconds since the epoch, renewed every second. */
export function useNow() {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

const MOST_CHOICES = 500;
const KINDS = { Running: "live", Succeeded: "good", complete: "good", failed: "bad", stopped: "warn", running: "live",
  suspended: "warn", Failed: "bad", Unreadable: "bad", Recovering: "warn",
  Interrupted: "warn", Detached: "warn", Suspending: "warn", Suspended: "warn", Terminating: "warn" };

const names = new Map(); // place -> names of its jobs, for choices

/** Choose a job of a place by name. Its list may be long: it is read after what the page is for, and again when it is used. */
export function JobChoice({ title, place, without, onChoice }) {
  const [known, setKnown] = useState(names.get(place) ?? []);
  const read = () => topicOf(`jobs|${place}`).then(({ content }) => {
    names.set(place, (content.jobs ?? []).slice(0, MOST_CHOICES).map((row) => (place === "here" ? row.name : nameOf(row))));
    setKnown(names.get(place));
  }, () => {});
  useEffect(() => {
    const timer = setTimeout(read, 1500);
    return () => clearTimeout(timer);
  }, [place]);
  const offered = known.filter((each) => !without.includes(each));
  return html`<label>${title} <select value="" onFocus=${read} onChange=${(event) => event.target.value && onChoice(event.target.value)}>
    <option value="">a job</option>${offered.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>`;
}

export function State({ state }) {
  return html`<span class=${`state ${KINDS[state] ?? "wait"}`}>${state}</span>`;
}

export function Problem({ error, fix }) {
  return html`<p class="problem" role="alert">${error}${fix ? `; ${fix}` : ""}</p>`;
}

/** A table that scrolls by itself where it is wider than the page. */
export function Wide({ label, children }) {
  return html`<div class="wide" tabindex="0" role="region" aria-label=${label}>${children}</div>`;
}

/** Whether an element has been near the screen. */
export function useSeen() {
  const [seen, setSeen] = useState(false);
  const ref = useRef();
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        setSeen(true);
        observer.disconnect();
      }
    }, { rootMargin: "300px" });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, seen];
}
