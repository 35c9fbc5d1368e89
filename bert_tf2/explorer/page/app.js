// The frame of the page: tabs, the address of a view, requests, and the panel with code.
//
// A view is a module NAME.js here, listed in VIEWS, with
//   export const title                                  the title of its tab
//   export async function render(container, context)    fills an empty element; an error that it throws is shown
// and context is
//   model                       the answer of /api/model: path, heads, config, parameters, texts, ...
//   api(path, arguments)        a request; arrays of the answer ({shape, float32}) become {shape, values: Float32Array}
//   codeLink(key, what, text)   a button that shows the code of a key of code_lines.py; `what` is for screen readers,
//                               `text` is the label of the button if there are several buttons side by side
//   state.get(name, fallback)   a value of the address (#sentence?layer=2), as a string
//   state.set({name: value})    changes values of the address, so that a reload shows the same; null removes a value
//   announce(text)              announces a text to screen readers
//   signal                      an AbortSignal that fires at the end of this view, for addEventListener

import { element, notice } from "./draw.js";

const VIEWS = ["sentence", "model"];

// A page of explore.py --write contains its answers, by path and arguments.
const written = document.getElementById("answers");
const answers = written && JSON.parse(written.textContent);

function answerKey(path, given) {
  return `${path} ${JSON.stringify(Object.fromEntries(Object.entries(given).sort(([a], [b]) => (a < b ? -1 : 1))))}`;
}

export async function api(path, given = {}) {
  if (answers) {
    const found = answers[answerKey(path, given)];
    if (!found) throw new Error("This page has one sentence only. To show other sentences, run explore.py.");
    return decoded(found);
  }
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  }).catch(() => {
    throw new Error("The server does not answer. Is explore.py still running?");
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return decoded(answer);
}

function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.float32 === "string") {
    const bytes = Uint8Array.from(atob(value.float32), (character) => character.charCodeAt(0));
    return { shape: value.shape, values: new Float32Array(bytes.buffer) };
  }
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, decoded(inner)]));
}

// The panel with code

const panel = { of: (id) => document.getElementById(`code-${id}`), opener: null };

export function codeLink(key, what = key.replaceAll(".", ", "), text = null) {
  const button = element(
    "button",
    { type: "button", class: "code-link", "aria-label": `Code: ${what}` },
    text ? `code: ${text}` : "code",
  );
  button.dataset.key = key;
  button.addEventListener("click", () => showCode(key, button));
  return button;
}

async function showCode(key, opener) {
  const found = await api("/api/source", { key }).catch((error) => ({ error: error.message }));
  panel.opener = opener;
  panel.of("title").textContent = found.error ? "Code" : found.name;
  panel.of("where").textContent =
    found.error ?? [`${found.file}, line ${found.line}`, found.shapes].filter(Boolean).join("   ");
  panel
    .of("lines")
    .replaceChildren(...(found.lines ?? []).map((line, index) => codeLine(line, found.first + index, found.line)));
  panel.of("panel").hidden = false;
  panel.of("lines").querySelector(".here")?.scrollIntoView({ block: "center" });
  panel.of("title").focus({ preventScroll: true });
}

function codeLine(line, number, wanted) {
  const here = number === wanted;
  const shown = element(
    "div",
    { class: here ? "line here" : "line" },
    element("span", { class: "number", "aria-hidden": "true" }, String(number)),
    element("code", {}, line || " "),
  );
  if (here) shown.setAttribute("aria-current", "true");
  return shown;
}

function closeCode() {
  if (panel.of("panel").hidden) return;
  panel.of("panel").hidden = true;
  if (panel.opener?.isConnected) panel.opener.focus();
}

// Views

let leaving = new AbortController();
let shown = null;

function address() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return { name, query: new URLSearchParams(query) };
}

function stateOf(name) {
  return {
    get: (key, fallback = null) => address().query.get(key) ?? fallback,
    set(values) {
      const { query } = address();
      for (const [key, value] of Object.entries(values)) {
        if (value === null || value === undefined || value === "") query.delete(key);
        else query.set(key, String(value));
      }
      const text = query.toString();
      history.replaceState(null, "", `#${name}${text ? `?${text}` : ""}`);
    },
  };
}

async function show(views, model) {
  const asked = address().name;
  if (asked === "content") return; // the link that skips the tabs
  const name = asked in views ? asked : VIEWS[0];
  const container = document.getElementById("content");
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  closeCode();
  for (const tab of document.querySelectorAll("#tabs a")) {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${views[name].title}: BERT, step by step`;
  const inside = element("div", { class: `view view-${name}` });
  container.replaceChildren(inside);
  container.setAttribute("aria-busy", "true");
  if (shown !== null && shown !== name) container.focus({ preventScroll: true });
  shown = name;
  const announce = (text) => {
    document.getElementById("announcer").textContent = text;
  };
  try {
    await views[name].render(inside, { model, api, codeLink, state: stateOf(name), announce, signal });
  } catch (error) {
    if (!signal.aborted) inside.append(notice("error", error.message));
  }
  if (!signal.aborted) container.setAttribute("aria-busy", "false");
}

function describe(model) {
  const { num_hidden_layers: layers, hidden_size: width, num_attention_heads: heads, vocab_size: words } = model.config;
  const millions = (model.parameters / 1e6).toFixed(model.parameters < 1e7 ? 2 : 1);
  const line = document.getElementById("model-line");
  line.replaceChildren(
    element("code", {}, model.path),
    ` ${layers} layers of ${heads} heads, hidden_size ${width}, ${words} entries, ${millions} million parameters`,
  );
}

async function start() {
  const container = document.getElementById("content");
  try {
    const names = answers ? VIEWS.slice(0, 1) : VIEWS; // a written page has only the sentence
    const [model, ...modules] = await Promise.all([api("/api/model"), ...names.map((name) => import(`./${name}.js`))]);
    const views = Object.fromEntries(names.map((name, index) => [name, modules[index]]));
    describe(model);
    document.getElementById("tabs").replaceChildren(
      ...names.map((name) => {
        const link = element("a", { href: `#${name}` }, views[name].title);
        link.dataset.view = name;
        return element("li", {}, link);
      }),
    );
    window.addEventListener("hashchange", () => show(views, model));
    await show(views, model);
  } catch (error) {
    container.replaceChildren(notice("error", error.message));
    container.setAttribute("aria-busy", "false");
  }
}

panel.of("close").addEventListener("click", closeCode);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeCode();
});
start();
