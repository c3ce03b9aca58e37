// Ask the search of a site, as its page does: node site_search.cjs SITE; questions as JSON on stdin, answers on stdout.
const { readdirSync, readFileSync } = require("node:fs");

const site = process.argv[2];
const workers = `${site}/assets/javascripts/workers`;
let answered;
globalThis.self = globalThis;
globalThis.postMessage = (message) => answered(message.data);
const engine = readdirSync(workers).find((name) => name.startsWith("search."));
(0, eval)(readFileSync(`${workers}/${engine}`, "utf8"));

const ask = (type, data) =>
  new Promise((resolve) => {
    answered = resolve;
    self.onmessage({ data: { type, data } });
  });

(async () => {
  const index = JSON.parse(readFileSync(`${site}/search.json`, "utf8"));
  await ask(0, index);
  const pages = {};
  for (const input of JSON.parse(readFileSync(0, "utf8"))) {
    const filter = { input: { type: "operator", data: { operator: "and", operands: [] } }, aggregation: { input: [] } };
    const { items } = await ask(2, { input, filter }); // the engine writes into the filter
    pages[input] = items.map((item) => index.items[item.id].location);
  }
  console.log(JSON.stringify(pages));
})();
