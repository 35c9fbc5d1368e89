// What the site's own search finds first: node docs/search.js build/site WORDS ... -> a JSON list of locations, "" for
// nothing. The theme's search is a worker of the browser, which answers messages; here it gets them in a context of Node.
const { readFileSync, readdirSync } = require("node:fs");
const vm = require("node:vm");

const [site, ...queries] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const code = readFileSync(`${workers}/${readdirSync(workers).find((name) => name.endsWith(".js"))}`, "utf8");
let handle, answer;
const worker = {
  addEventListener: (_, handler) => {
    handle = handler;
  },
  postMessage: (message) => answer(message),
  location: { href: "http://site/search.js" },
};
Object.assign(worker, { self: worker, globalThis: worker, URL, console, performance, setTimeout, clearTimeout });
vm.runInContext(code, vm.createContext(worker));
const ask = (type, data) =>
  new Promise((resolve) => {
    answer = resolve;
    handle({ data: { type, data } });
  });

(async () => {
  const { config, docs } = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
  await ask(0, { config, docs, options: {} });
  const first = [];
  for (const query of queries) first.push((await ask(2, query)).data.items[0]?.[0].location ?? "");
  console.log(JSON.stringify(first));
  process.exit(0);
})();
