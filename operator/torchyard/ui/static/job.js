import { html, useEffect, useState } from "./lib/preact.js";
import { Actions, verbsOfJob } from "./actions.js";
import { Artifacts } from "./artifacts.js";
import { JobChoice, Problem, State, Wide, address, bytes, figure, placeName, server, span, useNow, useTopic } from "./common.js";
import { Curves } from "./curves.js";
import { ask } from "./live.js";
import { Log } from "./log.js";
import { Probe } from "./probe.js";

const TRAINS = ["Running", "Recovering", "Suspending", "Detached"];

export function Job({ place, name }) {
  const job = useTopic(`job|${place}|${name}`);
  useEffect(() => void (document.title = `${name} - TorchYard`), [name]);
  if (job?.error) return html`<h1>${name}</h1><${Problem} ...${job} />`;
  const attempts = job?.status.attempts ?? [];
  const cause = attempts.findLast((each) => each.cause)?.cause;
  const failed = job?.state === "Failed";
  return html`${job ? html`<${Head} job=${job} place=${place} name=${name} />` : html`<p class="dim">Reading ${name} ...</p>`}
    ${failed && cause && html`<${Failure} cause=${cause} />`}
    <${Curves} key="curves" place=${place} name=${name} label=${job?.name ?? name} />
    ${job && html`<${Rest} job=${job} place=${place} name=${name} attempts=${attempts} cause=${cause} />`}`;
}

/** What is below the curves, which are read at the same time as the job. */
function Rest({ job, place, name, attempts, cause }) {
  return html`<${Rounds} attempts=${attempts} goodput=${job.status.goodput} />
    <${Ranks} job=${job} />
    <${Log} place=${place} name=${name} failing=${cause?.rank} />
    ${TRAINS.includes(job.state) && !server.reading && html`<${Probe} place=${place} name=${name} profiles=${job.profiles} />`}
    ${!server.reading && html`<${Artifacts} place=${place} name=${name} saved=${job.status.checkpoint} />`}
    <${Events} events=${job.events} />
    <${Specification} place=${place} name=${name} spec=${job.spec} />`;
}

function Head({ job, place, name }) {
  const now = useNow();
  const { progress = {}, throughput = {}, checkpoint, nodes, restarts, gpus = {}, warnings = [] } = job.status;
  const saved = checkpoint?.time ? `, ${span(now - Date.parse(checkpoint.time) / 1000)} ago` : "";
  const facts = [
    ["step", progress.step && `${progress.step.toLocaleString("en")}${progress.totalSteps ? ` of ${progress.totalSteps.toLocaleString("en")}` : ""}`],
    ["epoch", progress.epoch && figure(progress.epoch)],
    ["rate", throughput.stepsPerSecond && `${figure(throughput.stepsPerSecond)} steps/s`],
    ["time left", job.eta],
    ["age", job.start && span((job.end ?? now) - job.start)],
    ["phase", job.state === "Running" && progress.phase],
    ["checkpoint", checkpoint && `step ${(checkpoint.step ?? 0).toLocaleString("en")}${saved}`],
    ["pods", nodes?.desired && job.state !== "Succeeded" && `${nodes.ready ?? 0} of ${nodes.desired} ready`],
    ["GPUs", gpus.count && `${gpus.count}${gpus.utilization !== undefined ? `, ${figure(gpus.utilization)}% busy` : ""}`],
    ["GPU memory", gpus.memoryTotalBytes && `${bytes(gpus.memoryUsedBytes ?? 0)} of ${bytes(gpus.memoryTotalBytes)}`],
    ["hottest GPU", gpus.temperatureC !== undefined && `${figure(gpus.temperatureC)} °C`],
    ["GPU power", gpus.powerW !== undefined && `${figure(gpus.powerW)} W`],
    ["goodput", job.status.goodput?.percent !== undefined && `${figure(job.status.goodput.percent)}%`],
    ["restarts", restarts?.total],
  ].filter(([, value]) => value);
  const where = job.local ? placeName(place) : job.where;
  return html`<h1>${job.name} <${State} state=${job.state} /> <small>${where}</small></h1>
    <p class="sentence">${job.sentence}</p>
    ${job.sweep && html`<p>A trial of the sweep <a href=${address("sweep", place, job.local ? job.sweep : `${job.namespace}/${job.sweep}`)}>${job.sweep}</a>.</p>`}
    ${progress.percent !== undefined && html`<progress class="whole" max="100" value=${progress.percent} aria-label="progress"></progress>`}
    <dl class="facts">${facts.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
    ${warnings.map((text) => html`<p key=${text} class="warning">${text}</p>`)}
    <${Actions} verbs=${verbsOfJob(job)} request=${{ place, name, kind: "job" }}><${Compare} place=${place} name=${name} /><//>
    ${job.next && html`<p class="dim note">Next in a terminal: <code>${job.next}</code></p>`}`;
}

function Compare({ place, name }) {
  return html`<${JobChoice} title="Compare with" place=${place} without=${[name]} onChoice=${(other) => (location.hash = address("diff", place, name, place, other))} />`;
}

function Failure({ cause }) {
  const where = [cause.rank !== undefined && `rank ${cause.rank}`, cause.pod, cause.node, cause.exitCode !== undefined && `exit code ${cause.exitCode}`].filter(Boolean);
  return html`<section class="failure"><h2>First cause: ${cause.class || "unknown"}</h2>
    <p><strong>${cause.exception}</strong>${where.length > 0 && html` <span class="dim">${where.join(", ")}</span>`}</p>
    ${cause.lines?.length > 0 && html`<pre tabindex="0" aria-label="last lines of the failing rank">${cause.lines.join("\n")}</pre>`}</section>`;
}

const TIMES = { productive: "good", queue: "dim", schedule: "dim", pull: "dim" };

function Rounds({ attempts, goodput }) {
  const seconds = Object.entries(goodput?.seconds ?? {}).filter(([, value]) => value > 0).sort(([, a], [, b]) => b - a);
  const whole = seconds.reduce((sum, [, value]) => sum + value, 0);
  if (!attempts.length && !whole) return null;
  const took = (each) => (each.endTime && each.startTime ? span((Date.parse(each.endTime) - Date.parse(each.startTime)) / 1000) : "");
  return html`<section><h2>Rounds and time</h2>
    ${attempts.length > 0 && html`<${Wide} label="Rounds"><table>
      <thead><tr><th scope="col">Round</th><th scope="col" class="number">Took</th><th scope="col">Steps</th><th scope="col">Ended</th><th scope="col">First cause</th></tr></thead>
      <tbody>${attempts.map((each) => html`<tr key=${each.round}><th scope="row">${each.round}</th><td class="number">${took(each)}</td>
        <td>${each.startStep ?? 0} to ${each.endStep ?? 0}</td><td>${each.reason ?? (each.endTime ? "" : "open")}</td>
        <td class="cause">${each.cause && html`<details><summary>${each.cause.class} ${[each.cause.rank !== undefined && `rank ${each.cause.rank}`, each.cause.exception].filter(Boolean).join(": ")}</summary><pre tabindex="0">${(each.cause.lines ?? []).join("\n")}</pre></details>`}</td></tr>`)}</tbody></table><//>`}
    ${whole > 0 && html`<h3>Where the time went</h3><ul class="times">${seconds.map(([kind, value]) => html`<li key=${kind}><span>${kind}</span>
      <meter class=${TIMES[kind] ?? "warn"} min="0" max=${whole} value=${value} aria-label=${kind}></meter> <span class="number">${span(value)}</span> <span class="number dim">${((100 * value) / whole).toFixed(1)}%</span></li>`)}</ul>`}
  </section>`;
}

/** The device of each rank; the status has ranges of ranks by device: `0-3,8`. */
function devicesOf(devices = {}) {
  const found = new Map();
  for (const [device, ranges] of Object.entries(devices)) {
    for (const part of String(ranges).split(",")) {
      const [from, to = from] = part.trim().split("-").map(Number);
      for (let rank = from; rank <= to && rank - from < 4096; rank += 1) found.set(rank, device);
    }
  }
  return found;
}

function Ranks({ job }) {
  const now = useNow();
  const devices = devicesOf(job.status.devices);
  if (!job.ranks.length && !job.pods.length && !devices.size) return null;
  const ranks = job.ranks.length ? job.ranks : [...devices.keys()].sort((a, b) => a - b).slice(0, 512).map((rank) => ({ rank }));
  const cause = job.status.attempts?.findLast((each) => each.cause)?.cause;
  const rows = [...ranks].sort((a, b) => (b.rank === cause?.rank) - (a.rank === cause?.rank));
  return html`<section><h2>Ranks and pods</h2>
    ${rows.length > 0 && html`<${Wide} label="Ranks"><table><thead><tr><th scope="col">Rank</th><th scope="col">Pod</th>
      <th scope="col">Device</th><th scope="col">Phase</th><th scope="col" class="number">Step</th><th scope="col" class="number">Behind</th><th scope="col" class="number">Reported</th></tr></thead>
      <tbody>${rows.map((each) => html`<tr key=${each.rank}><th scope="row">${each.rank}</th><td>${each.pod}</td><td>${devices.get(each.rank) ?? ""}</td>
        <td>${each.phase}</td><td class="number">${each.step}</td><td class="number">${each.lag || ""}</td>
        <td class="number">${each.seen ? `${span(now - each.seen)} ago` : ""}</td></tr>`)}</tbody></table><//>`}
    ${job.pods.length > 0 && html`<${Wide} label="Pods"><table><thead><tr><th scope="col">Pod</th><th scope="col">Node</th>
      <th scope="col">Phase</th><th scope="col">Why</th></tr></thead>
      <tbody>${job.pods.map((each) => html`<tr key=${each.name}><th scope="row">${each.name}</th><td>${each.node}</td>
        <td>${each.phase}</td><td>${each.why}</td></tr>`)}</tbody></table><//>`}</section>`;
}

function Events({ events }) {
  if (!events.length) return null;
  return html`<section><h2>Events</h2><ol class="events" reversed>${[...events].reverse().slice(0, 50).map((each, index) => html`<li key=${index}
    class=${each.type === "Warning" ? "warned" : ""}><time>${each.time.replace("T", " ").replace("Z", "")}</time> <span><strong>${each.reason}</strong> ${each.message}</span></li>`)}</ol></section>`;
}

function Specification({ place, name, spec }) {
  const [effective, setEffective] = useState(null);
  const load = async () => setEffective(effective ? null : await ask("specification", { place, name }));
  return html`<section><h2>Specification</h2><details><summary>As it was submitted</summary>
      <pre tabindex="0">${JSON.stringify(spec, null, 2)}</pre></details>
    <button class="small" aria-expanded=${effective !== null} onClick=${load}>With all defaults</button>
    ${effective?.error && html`<${Problem} ...${effective} />`}${effective?.effective && html`<pre tabindex="0">${effective.effective}</pre>`}</section>`;
}
