// The view of one sentence: the steps of the model, from the text to the words for each [MASK].
//
// A part is a module with a class: `element` is the element that it shows, and `update(look)` draws it for a look:
//   text, text_b, padding      the values in the form
//   token, layer, head         the chosen token, layer and head
//   read                       the answer of /api/sentence: tokens, input_ids, segment_ids, input_mask, masks, words
//   ask(path, more)            a request about this sentence
//   choose({token, layer, head})
// `uses` has the names of the properties of `look` on which the part depends; `element` is or contains sections.

import { element, notice, section } from "./draw.js";
import { roving } from "./roving.js";
import { Attention } from "./sentence_attention.js";
import { Block } from "./sentence_block.js";
import { Maps } from "./sentence_maps.js";
import { Outputs } from "./sentence_outputs.js";
import { Pair } from "./sentence_pair.js";
import { Embeddings, Tokens } from "./sentence_tokens.js";
import { Words } from "./sentence_words.js";

export const title = "Sentence";

const EXAMPLES = [
  ["a blank", { text: "The capital of France is [MASK]." }],
  ["two blanks", { text: "The [MASK] pumps [MASK] around the body." }],
  ["a pair", { text: "Paris is the capital of France.", text_b: "It lies on the [MASK]." }],
  ["with padding", { text: "A week has [MASK] days.", padding: "3" }],
];
// Examples for a model that predicts no words.
const WITHOUT_BLANKS = [
  ["a sentence", { text: "The capital of France is Paris." }],
  ["a pair", { text: "Paris is the capital of France.", text_b: "It lies on the Seine." }],
  ["with padding", { text: "A week has seven days.", padding: "3" }],
];
const SECTIONS = [
  ["tokens", "Tokens"],
  ["embeddings", "Embeddings"],
  ["maps", "All heads"],
  ["attention", "Attention"],
  ["block", "Rest of the layer"],
  ["words", "Words"],
  ["outputs", "Other heads"],
  ["pair", "Two sentences"],
];

export async function render(container, context) {
  const view = new View(context);
  container.append(view.form, view.status, view.results);
  await view.read();
}

class View {
  constructor(context) {
    this.context = context;
    this.parts = [
      new Tokens(context),
      new Embeddings(context),
      new Maps(context),
      new Attention(context),
      new Block(context),
      new Words(context),
      new Outputs(context),
      new Pair(context),
    ];
    this.status = element("div", { class: "status" });
    this.asked = 0;
    this.makeForm();
    this.makeBar();
    this.results = element(
      "div",
      {},
      this.parts.find((part) => part.summary).summary,
      this.bar,
      ...this.parts.map((part) => part.element),
    );
    this.results.hidden = true;
  }

  makeForm() {
    const { model, state } = this.context;
    const blanks = model.heads.includes("masked_lm");
    const examples = blanks ? EXAMPLES : WITHOUT_BLANKS;
    const fixed = model.written ? { readonly: true } : {}; // a written page has only one sentence
    const field = (name, label, value, more = {}) => [
      element("label", { for: `field-${name}` }, label),
      element("input", { id: `field-${name}`, name, value, type: "text", autocomplete: "off", ...fixed, ...more }),
    ];
    const padding = element(
      "select",
      { id: "field-padding", name: "padding" },
      ...[0, 1, 2, 3, 5, 8].map((count) => element("option", { value: count }, String(count))),
    );
    padding.value = model.written ? "0" : state.get("padding", "0");
    const given = (name, fallback) =>
      model.written ? model.texts[name] : state.get(name, model.texts[name] || fallback);
    this.form = element(
      "form",
      { class: "sentence-form", "aria-label": "Sentence" },
      element(
        "div",
        { class: "field" },
        ...field(
          "text",
          blanks ? "Sentence, with [MASK] for each word to find" : "Sentence",
          given("text", examples[0][1].text),
        ),
      ),
      element(
        "div",
        { class: "field" },
        ...field(
          "text_b",
          "Second sentence of a pair (optional)",
          given("text_b", ""),
          model.config.type_vocab_size < 2 ? { disabled: true, placeholder: "this model has one segment" } : {},
        ),
      ),
      element("div", { class: "field short" }, element("label", { for: "field-padding" }, "[PAD] tokens"), padding),
      element("button", { type: "submit", class: "go" }, "Show"),
      roving(
        element(
          "p",
          { class: "examples" },
          "Examples: ",
          ...examples.flatMap(([name, values], index) => [index ? ", " : "", this.exampleButton(name, values)]),
        ),
      ),
    );
    if (model.written) {
      this.form.replaceChildren(
        this.form.firstChild,
        ...(model.texts.text_b ? [this.form.children[1]] : []),
        element(
          "p",
          { class: "examples" },
          "This page has one sentence only and needs no server. To show other sentences, run ",
          element("code", {}, "python explore.py --model=FOLDER"),
          " of bert_tf2.",
        ),
      );
    }
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    padding.addEventListener("change", () => this.submit());
  }

  exampleButton(name, values) {
    const button = element("button", { type: "button", class: "as-text" }, name);
    button.addEventListener("click", () => {
      for (const field of ["text", "text_b", "padding"])
        this.form.elements[field].value = values[field] ?? (field === "padding" ? "0" : "");
      this.submit();
    });
    return button;
  }

  // The bar with the chosen token, layer and head stays visible while the page scrolls.
  makeBar() {
    const { model } = this.context;
    const select = (name, label) => {
      const made = element("select", { id: `choose-${name}`, name });
      made.addEventListener("change", () => this.choose({ [name]: Number(made.value) }));
      return [element("span", { class: "control" }, element("label", { for: made.id }, label), made), made];
    };
    const [tokenControl, token] = select("token", "Token");
    const [layerControl, layer] = select("layer", "Layer");
    const [headControl, head] = select("head", "Head");
    const numbers = (count) =>
      Array.from({ length: count }, (_, index) => element("option", { value: index }, String(index)));
    layer.append(...numbers(model.config.num_hidden_layers));
    head.append(...numbers(model.config.num_attention_heads));
    this.controls = { token, layer, head };
    this.bar = element(
      "div",
      { class: "look-bar", role: "group", "aria-label": "Token, layer and head" },
      tokenControl,
      layerControl,
      headControl,
      this.sections(),
    );
  }

  // Buttons that scroll to a section: a single stop of the Tab key; the arrow keys move between the buttons.
  sections() {
    const bar = element(
      "div",
      { class: "sections", role: "group", "aria-label": "Sections" },
      ...SECTIONS.map(([id, name]) => {
        const button = element("button", { type: "button", class: "as-text" }, name);
        button.dataset.section = id;
        button.addEventListener("click", () => {
          const heading = document.querySelector(`#${id} h2`);
          heading?.closest("section").scrollIntoView({ block: "start" });
          heading?.focus({ preventScroll: true });
        });
        return button;
      }),
    );
    return roving(bar);
  }

  submit() {
    const values = this.sentence();
    this.context.state.set({ ...values, padding: values.padding || null, token: null });
    this.read();
  }

  // The values in the form.
  sentence() {
    const value = (name) => this.form.elements[name]?.value ?? "";
    return { text: value("text"), text_b: value("text_b"), padding: Number(value("padding")) };
  }

  async read() {
    const { api, announce, model, state } = this.context;
    this.asked += 1;
    const now = this.asked;
    const began = performance.now();
    const sentence = this.sentence();
    const waiting = this.wait();
    let read;
    try {
      read = await api("/api/sentence", sentence);
    } catch (error) {
      if (now === this.asked) {
        this.status.replaceChildren(notice("error", error.message));
        this.results.hidden = true; // the results belong to another sentence
      }
      return;
    } finally {
      clearTimeout(waiting);
    }
    if (now !== this.asked) return;
    this.status.replaceChildren();
    this.results.hidden = false;
    const start = read.masks[0] ?? Math.min(1, read.tokens.length - 1);
    const number = (name, most, fallback) => {
      const value = Number(state.get(name, NaN));
      return Number.isInteger(value) && value >= 0 && value < most ? value : fallback;
    };
    this.look = {
      ...sentence,
      read,
      token: number("token", read.tokens.length, start),
      layer: number("layer", model.config.num_hidden_layers, read.layer),
      head: number("head", model.config.num_attention_heads, read.head),
      ask: (path, more = {}) => api(path, { ...sentence, ...more }),
      choose: (changes) => this.choose(changes),
    };
    this.controls.token.replaceChildren(
      ...read.tokens.map((token, index) => element("option", { value: index }, `${index} ${token}`)),
    );
    await this.update({});
    if (now !== this.asked) return;
    this.form.dataset.milliseconds = Math.round(performance.now() - began);
    announce(`${read.tokens.length} tokens${read.masks.length ? `, ${read.masks.length} of them [MASK]` : ""}`);
  }

  async choose(changes) {
    Object.assign(this.look, changes);
    this.context.state.set(changes);
    const waiting = this.wait();
    await this.update(changes);
    clearTimeout(waiting);
    this.status.replaceChildren();
  }

  // Shows a notice if the answer takes longer: a large model needs seconds for a long text.
  wait() {
    return setTimeout(
      () => this.status.replaceChildren(element("p", { class: "notice hint waiting", role: "status" }, "Computing")),
      400,
    );
  }

  // `uses` decides which parts are drawn again; a new sentence draws all parts.
  async update(changes) {
    const { look } = this;
    for (const [name, control] of Object.entries(this.controls)) control.value = look[name];
    const names = Object.keys(changes);
    const concerned = this.parts.filter((part) => !names.length || part.uses.some((name) => names.includes(name)));
    const now = this.asked;
    await Promise.all(
      concerned.map(async (part) => {
        const wanted = { ...look };
        try {
          await part.update(
            wanted,
            () => now === this.asked && part.uses.every((name) => wanted[name] === this.look[name]),
          );
        } catch (error) {
          part.element.replaceChildren(section(part.name ?? "", {}, notice("error", error.message)));
        }
      }),
    );
    for (const button of this.bar.querySelectorAll("[data-section]"))
      button.hidden = !document.getElementById(button.dataset.section)?.checkVisibility();
  }
}
