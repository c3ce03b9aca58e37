import { html, useEffect, useRef, useState } from "./lib/preact.js";
import { Problem, address } from "./common.js";
import { ask } from "./live.js";

const CHECK_MS = 500;

/** A form with the specification of a job or sweep: edit it, see what the validator says, submit it. */
export function New({ place, name, kind = "job" }) {
  const [text, setText] = useState(null);
  const [checked, setChecked] = useState(null);
  const [answer, setAnswer] = useState(null);
  const dialog = useRef(), newest = useRef(0), area = useRef();
  useEffect(() => {
    document.title = `New run like ${name} - TorchYard`;
    ask("specification", { place, name, kind }).then((found) => (found.error ? setAnswer(found) : setText(found.text)));
  }, []);
  useEffect(() => {
    if (text === null) return undefined;
    const number = (newest.current += 1);
    setChecked(null);
    const timer = setTimeout(async () => {
      const found = await ask("check", { place, name, text });
      if (number === newest.current) setChecked(found); // another text was written meanwhile
    }, CHECK_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const submit = async () => {
    dialog.current.close();
    setAnswer({ busy: true });
    const made = await ask("submit", { place, name, text });
    setAnswer(made);
    if (!made.error) location.hash = address(made.kind, place, made.name);
  };
  const go = (line) => {
    const start = text.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    area.current.focus();
    area.current.setSelectionRange(start, start + (text.split("\n")[line - 1] ?? "").length);
  };
  const where = place === "here" ? "on this machine" : `in ${place}`;
  const problems = checked?.problems ?? [];
  return html`<h1>New run <small>like ${name}, ${where}</small></h1>
    ${text !== null && html`<label class="form"><span>Specification (YAML)</span><textarea ref=${area} spellcheck="false" rows=${Math.min(34, Math.max(12, text.split("\n").length + 1))}
      value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    <div role="status" aria-label="Check">${checked === null ? html`<p class="dim">Checking ...</p>`
      : checked.error ? html`<${Problem} ...${checked} />`
      : problems.length ? html`<ul class="problems">${problems.map((each, index) => html`<li key=${index}>
          ${each.line > 0 && html`<button class="link" onClick=${() => go(each.line)}>line ${each.line}</button> `}<span>${[each.path, each.what, each.fix].filter(Boolean).join(": ")}</span></li>`)}</ul>`
      : html`<p class="fine">Valid: ${checked.kind} ${checked.name}.</p>`}</div>
    <div class="bar"><button class="primary" disabled=${!checked || checked.error || problems.length > 0 || answer?.busy}
      onClick=${() => dialog.current.showModal()}>${answer?.busy ? "Starting ..." : place === "here" ? "Run" : "Submit"}</button>
      <a class="button" href=${address(kind, place, name)}>Cancel</a></div>`}
    ${answer?.error && html`<${Problem} ...${answer} />`}
    <dialog ref=${dialog} aria-labelledby="asked"><p id="asked">${checked?.kind === "sweep" ? "The sweep" : "The job"} ${checked?.name} starts ${where}, with your rights.${
      checked?.code ? ` It gets the files of ${checked.code} on this machine, as they are now.` : ""}${
      place === "here" ? " It goes on when this page is closed." : ""}</p><div class="bar"><button class="primary" onClick=${submit}>Start</button>
      <button onClick=${() => dialog.current.close()}>Cancel</button></div></dialog>`;
}
