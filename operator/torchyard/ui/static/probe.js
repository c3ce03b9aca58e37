import { html, useState } from "./lib/preact.js";
import { Problem } from "./common.js";
import { ask } from "./live.js";

/** Stacks and profiles of a job that trains, on demand. */
export function Probe({ place, name, profiles }) {
  const [stacks, setStacks] = useState(null);
  const [profile, setProfile] = useState(null);
  const request = { place, name };
  const readStacks = async () => (setStacks({ busy: true }), setStacks(await ask("stacks", request)));
  const record = async (kind) => (setProfile({ busy: true }), setProfile({ kind, ...(await ask("profile", { ...request, profile: kind })) }));
  return html`<section><h2>Stacks and profile</h2><div class="bar">
    <button disabled=${stacks?.busy} onClick=${readStacks}>${stacks?.stacks ? "Stacks again" : "Stacks of all ranks"}</button>
    ${profiles && html`<button disabled=${profile?.busy} onClick=${() => record("trace")}>Record a trace</button>
      <button disabled=${profile?.busy} onClick=${() => record("memory")}>Record memory</button>`}</div>
    ${(stacks?.busy || profile?.busy) && html`<p class="dim">Asking the agents ...</p>`}
    ${stacks?.error && html`<${Problem} ...${stacks} />`}${profile?.error && html`<${Problem} ...${profile} />`}
    ${profile?.pods && html`<p role="status">The ranks of ${profile.pods} pod${profile.pods > 1 ? "s" : ""} record ${profile.steps} steps (${profile.kind}). The
      result appears below Artifacts as <code>profile</code>.</p>`}
    ${(stacks?.stacks ?? []).map((each) => html`<details key=${each.rank} open=${stacks.stacks.length <= 2}><summary>rank ${each.rank} (${each.pod})${
      each.at ? `, at ${each.at}` : ""}${each.waits ? ", waits for other ranks" : ""}</summary><pre tabindex="0">${each.lines.join("\n")}</pre></details>`)}</section>`;
}
