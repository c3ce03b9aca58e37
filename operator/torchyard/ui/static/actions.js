import { html, useRef, useState } from "./lib/preact.js";
import { Problem, address, server } from "./common.js";
import { ask } from "./live.js";

/**
 * Buttons that say what they will do, and ask once.
 * @param verbs {verb: [title, sentence]}
 * @param request {place, name, kind} of the job or sweep
 */
export function Actions({ verbs, request, children }) {
  const [asked, setAsked] = useState(null);
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState(null);
  const dialog = useRef();
  const act = async () => {
    dialog.current.close();
    setBusy(asked);
    setProblem(null);
    const found = await ask(asked, request);
    setBusy("");
    setProblem(found.error ? found : null);
    if (!found.error && asked === "delete") location.hash = "#/list";
  };
  if (server.reading) return html`<div class="bar actions">${children}</div>`;
  const button = (verb) => html`<button key=${verb} class=${verb === "delete" ? "danger" : ""} disabled=${busy !== ""}
    onClick=${() => (setAsked(verb), dialog.current.showModal())}>${busy === verb ? `${verbs[verb][0]} ...` : verbs[verb][0]}</button>`;
  return html`<div class="bar actions">${Object.keys(verbs).filter((verb) => verb !== "delete").map(button)}
    <a class="button" href=${address("new", request.place, request.name, request.kind)}>New run from this</a>${children}${button("delete")}</div>
    ${problem && html`<${Problem} ...${problem} />`}
    <dialog ref=${dialog} aria-labelledby="asked"><p id="asked">${verbs[asked]?.[1]}</p>
      <div class="bar"><button class=${asked === "delete" ? "danger" : "primary"} onClick=${act}>${verbs[asked]?.[0]}</button>
      <button onClick=${() => dialog.current.close()}>Cancel</button></div></dialog>`;
}

export function verbsOfJob(job) {
  const ended = ["Succeeded", "Failed"].includes(job.state);
  const rests = ["Suspended", "Interrupted", "Detached"].includes(job.state);
  const lost = job.local || job.claim ? "" : " Without a claim its checkpoints are lost with its pods: resumed, it starts at step 0.";
  return {
    ...(!ended && !rests && job.state !== "Suspending" && { suspend: [job.local ? "Save and stop" : "Suspend", `${job.name} saves a checkpoint, and its pods end.${lost}`] }),
    ...(rests && { resume: ["Resume", job.state === "Detached" ? `A new process follows ${job.name} again; it trains on.` : `${job.name} continues from its newest checkpoint.`] }),
    delete: ["Delete", job.local ? `${job.name} ends at once without saving. Its logs and checkpoints are deleted.`
      : `${job.name} and its pods are deleted without saving. Checkpoints on a claim stay.`],
  };
}

export function verbsOfSweep(sweep) {
  const ended = ["Succeeded", "Failed"].includes(sweep.state);
  const rests = ["Suspended", "Suspending"].includes(sweep.state);
  return {
    ...(!ended && !rests && { suspend: [sweep.local ? "Save and stop" : "Suspend", `The trials of ${sweep.name} save a checkpoint and stop.`] }),
    ...(rests && { resume: ["Resume", `${sweep.name} continues with its trials from their newest checkpoints.`] }),
    delete: ["Delete", `${sweep.name} and all its trials are deleted without saving${sweep.local ? ", with their logs and checkpoints" : ""}.`],
  };
}
