import { html, useEffect, useState } from "./lib/preact.js";
import { Problem, Wide, bytes } from "./common.js";
import { ask } from "./live.js";

const TEXT_BYTES = 64 * 1024;

/** What a job wrote into its checkpoint folder: pictures and text here, exported pages in a frame of their own origin. */
export function Artifacts({ place, name, saved }) {
  const [found, setFound] = useState(null);
  const [opened, setOpened] = useState(null);
  const request = { place, name };
  const list = async () => (setFound({ busy: true }), setFound(await ask("artifacts", request)));
  const open = async (path) => {
    setOpened({ path, busy: true });
    setOpened({ path, ...(await ask("open", { ...request, path })) });
  };
  const all = found?.artifacts ?? [];
  const checkpoints = all.filter(({ path }) => /^step[-_]?\d+$/.test(path));
  const others = all.filter((each) => !checkpoints.includes(each));
  const table = (title, rows) => rows.length > 0 && html`<h3>${title}</h3><${Wide} label=${title}><table>
    <thead><tr><th scope="col">Path</th><th scope="col" class="number">Size</th><th scope="col" class="number">Files</th><td></td></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${each.path}><th scope="row">${each.shown}${each.folder ? "/" : ""}</th><td class="number">${bytes(each.bytes)}</td>
      <td class="number">${each.files}</td><td><button class="small" aria-pressed=${opened?.path === each.path} onClick=${() => open(each.path)}>open<span class="hidden"> ${each.shown}</span></button></td></tr>`)}</tbody></table><//>`;
  return html`<section><h2>Checkpoints and artifacts</h2>
    ${saved && html`<p>Newest complete checkpoint: step ${saved.step ?? 0}${saved.bytes ? `, ${bytes(saved.bytes)}` : ""}${
      saved.saveSeconds !== undefined ? `, saved in ${saved.saveSeconds.toPrecision(2)} s` : ""}${saved.stepsAtRisk ? `; ${saved.stepsAtRisk} steps since then` : ""}.</p>`}
    ${!found && html`<button onClick=${list}>List files</button>`}
    ${found?.busy && html`<p class="dim">Reading the checkpoint folder ...</p>`}
    ${found?.error && html`<${Problem} ...${found} />`}
    ${found?.artifacts && !all.length && html`<p class="empty">It has written nothing yet.</p>`}
    ${table("Artifacts", others)}${table("Checkpoints", checkpoints)}
    ${all.length > 0 && html`<button class="small" onClick=${list}>list again</button>`}
    ${opened && html`<${Opened} key=${opened.path} ...${opened} />`}</section>`;
}

function Opened({ path, busy, error, fix, url, files = [], leftOut }) {
  const [shown, setShown] = useState(null);
  if (busy) return html`<p class="dim">Opening ${path} ...</p>`;
  if (error) return html`<${Problem} error=${error} fix=${fix} />`;
  const address = (file) => url + file.path.split("/").map(encodeURIComponent).join("/");
  const pictures = files.filter((file) => file.kind === "picture");
  const page = shown ?? files.find((file) => file.kind === "page" && file.path.endsWith("index.html")) ?? null;
  return html`<div class="opened" role="region" aria-label=${path}><h3>${path}</h3>
    ${pictures.length > 0 && html`<div class="pictures">${pictures.slice(0, 60).map((file) => html`<figure key=${file.path}>
      <img src=${address(file)} alt=${file.shown} loading="lazy" /><figcaption>${file.shown}</figcaption></figure>`)}</div>`}
    ${page?.kind === "page" && html`<iframe class="exported" sandbox="allow-scripts" src=${address(page)} title=${`page ${page.shown}`}></iframe>
      <p class="dim note">This page of the job runs in a sandbox: it reads the files of this artifact and nothing else.</p>`}
    ${shown?.kind === "text" && html`<${Text} key=${shown.path} file=${shown} url=${address(shown)} />`}
    <ul class="files">${files.map((file) => html`<li key=${file.path}>${["text", "page"].includes(file.kind)
      ? html`<button class="link" onClick=${() => setShown(file)}>${file.shown}</button>` : html`<span>${file.shown}</span>`}
      <span class="dim">${bytes(file.bytes)}</span> <a href=${`${address(file)}?download`} download aria-label=${`download ${file.shown}`}>download</a></li>`)}</ul>
    ${leftOut > 0 && html`<p class="dim">${leftOut} more files are left out.</p>`}</div>`;
}

function Text({ file, url }) {
  const [text, setText] = useState(null);
  useEffect(() => {
    fetch(url, { headers: { Range: `bytes=0-${TEXT_BYTES - 1}` } }).then((answer) => answer.text()).then(setText, () => setText("It cannot be read."));
  }, []);
  return html`<pre tabindex="0" aria-label=${file.shown}>${text ?? "Reading ..."}${file.bytes > TEXT_BYTES ? "\n... the rest is left out" : ""}</pre>`;
}
