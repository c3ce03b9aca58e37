import { html, useEffect, useRef, useState } from "./lib/preact.js";
import { get, watch } from "./live.js";

/** What the server has for a topic, again after each change; null at first. One request at a time. */
export function useTopic(topic) {
  const [content, setContent] = useState(null);
  useEffect(() => {
    let busy = false, again = false, over = false;
    const load = async () => {
      if (busy) return void (again = true);
      busy = true;
      do {
        again = false;
        try {
          const found = await get(`/api/topic?topic=${encodeURIComponent(topic)}`);
          if (!over) setContent(found);
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

const KINDS = { Running: "good", Succeeded: "good", Failed: "bad", Unreadable: "bad", Recovering: "warn",
  Interrupted: "warn", Detached: "warn", Suspending: "warn", Suspended: "warn", Terminating: "warn" };

export function State({ state }) {
  return html`<span class=${`state ${KINDS[state] ?? "wait"}`}>${state}</span>`;
}

export function Problem({ error, fix }) {
  return html`<p class="problem" role="alert">${error}${fix ? `; ${fix}` : ""}</p>`;
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
