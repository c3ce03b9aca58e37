// Changes of what a tab shows. One tab of a browser holds the stream and passes its messages to the others: a browser
// opens at most six connections to a server, and a stream would occupy one for each tab.

const channel = new BroadcastChannel("torchyard");
const listeners = new Map(); // topic -> set of functions
const states = new Set();
let connected = false;

function tell(topic, version) {
  for (const listener of listeners.get(topic) ?? []) listener(version);
}

function everything() {
  for (const topic of listeners.keys()) tell(topic, "");
}

function setConnected(value) {
  if (value === connected) return;
  connected = value;
  for (const listener of states) listener(value);
}

function received(message) {
  if (message.connected !== undefined) {
    setConnected(message.connected);
    if (message.connected) renew().then(everything); // what changed while there was no stream
  } else {
    tell(message.topic, message.version);
  }
}

channel.onmessage = (event) => (event.data.ask ? leads && channel.postMessage({ connected }) : received(event.data));

let leads = false;
navigator.locks.request("torchyard-stream", () => {
  leads = true;
  const pass = (message) => {
    received(message);
    channel.postMessage(message);
  };
  const open = () => {
    const stream = new EventSource("/api/stream");
    stream.addEventListener("hello", () => pass({ connected: true }));
    stream.onmessage = (event) => pass(JSON.parse(event.data));
    stream.onerror = () => {
      pass({ connected: false });
      if (stream.readyState === EventSource.CLOSED) setTimeout(open, 1000); // a server that starts answers with errors
    };
  };
  open();
  return new Promise(() => {}); // held until the tab is closed; then another tab leads
});
channel.postMessage({ ask: true });

function send(path, body) {
  return fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-TorchYard": "1" }, body: JSON.stringify(body) });
}

export async function post(path, body) {
  const answer = await send(path, body);
  return answer.ok ? answer.json() : problem(answer);
}

/** Ask the server once; a server that does not answer is an error in words. */
export async function ask(what, fields) {
  try {
    return await post("/api/ask", { what, ...fields });
  } catch {
    return { error: "the server does not answer", fix: "`torchyard ui` starts it again" };
  }
}

export async function get(path) {
  const answer = await fetch(path);
  return answer.ok ? answer.json() : problem(answer);
}

/** What the server has for a topic, with its version; null: the version is still `known`. */
export async function topicOf(topic, known) {
  const answer = await fetch(`/api/topic?topic=${encodeURIComponent(topic)}${known ? `&known=${known}` : ""}`);
  if (answer.status === 204) return null;
  return { content: answer.ok ? await answer.json() : await problem(answer), version: answer.headers.get("X-TorchYard-Version") };
}

/** One metric of many jobs, with the values of each line; null: the version is still `known`. */
export async function overlayOf(wanted) {
  const answer = await send("/api/overlay", wanted);
  if (answer.status === 204) return null;
  if (!answer.ok) return problem(answer);
  const buffer = await answer.arrayBuffer();
  const end = new Uint8Array(buffer).indexOf(10);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, end)));
  let at = end + 1;
  for (const line of found.lines) {
    line.values = new Float32Array(buffer, at, line.cells);
    at += 4 * line.cells;
  }
  return found;
}

async function problem(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    return { error: text || `the server answers ${answer.status}`, fix: "" };
  }
}

async function renew() {
  const topics = [...listeners.keys()];
  if (topics.length && !document.hidden) await post("/api/watch", { topics }).catch(() => {});
}
setInterval(renew, 8000);
document.addEventListener("visibilitychange", () => document.hidden || renew().then(everything));

/** Call `listener` with the version of a topic when it changes; returns a function that ends this. */
export function watch(topic, listener) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  return () => {
    listeners.get(topic)?.delete(listener);
    if (!listeners.get(topic)?.size) listeners.delete(topic);
  };
}

/** Call `listener` with whether the server answers; returns a function that ends this. */
export function watchState(listener) {
  states.add(listener);
  listener(connected);
  return () => states.delete(listener);
}
