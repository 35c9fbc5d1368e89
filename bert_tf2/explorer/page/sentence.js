// The view of one sentence: what the model makes of it, from the text to the words for each [MASK].
//
// A part is a module with a class: `element` is what it shows, and `update(look)` draws it for a look:
//   text, text_b, padding      what was typed
//   token, layer, head         what is looked at
//   read                       the answer of /api/sentence: tokens, input_ids, segment_ids, input_mask, masks, words
//   ask(path, more)            a request about this sentence
//   choose({token, layer, head})

import { element, notice, section } from "./draw.js";
import { Attention } from "./sentence_attention.js";
import { Block } from "./sentence_block.js";
import { Embeddings, Tokens } from "./sentence_tokens.js";
import { Outputs, Words } from "./sentence_words.js";

export const title = "Sentence";

const EXAMPLES = [
  ["a blank", { text: "The capital of France is [MASK]." }],
  ["two blanks", { text: "The [MASK] pumps [MASK] around the body." }],
  ["a pair", { text: "Paris is the capital of France.", text_b: "It lies on the [MASK]." }],
  ["with padding", { text: "A week has [MASK] days.", padding: "3" }],
];

export async function render(container, context) {
  const view = new View(context);
  container.append(view.form, view.status, view.parts.find((part) => part.summary).summary, view.bar, ...view.parts.map((part) => part.element));
  await view.read();
}

class View {
  constructor(context) {
    this.context = context;
    this.parts = [new Tokens(context), new Embeddings(context), new Attention(context), new Block(context), new Words(context), new Outputs(context)];
    this.status = element("div", { class: "status" });
    this.asked = 0;
    this.makeForm();
    this.makeBar();
  }

  makeForm() {
    const { model, state } = this.context;
    const example = model.heads.includes("masked_lm") ? EXAMPLES[0][1].text : "The capital of France is Paris.";
    const field = (name, label, value, more = {}) => [
      element("label", { for: `field-${name}` }, label),
      element("input", { id: `field-${name}`, name, value, type: "text", autocomplete: "off", ...more }),
    ];
    const padding = element("select", { id: "field-padding", name: "padding" }, ...[0, 1, 2, 3, 5, 8].map((count) => element("option", { value: count }, String(count))));
    padding.value = state.get("padding", "0");
    this.form = element("form", { class: "sentence-form", "aria-label": "Sentence" },
      element("div", { class: "field" }, ...field("text", "Sentence, with [MASK] where a word is to be found", state.get("text", example))),
      element("div", { class: "field" }, ...field("text_b", "Second sentence of a pair (optional)", state.get("text_b", ""), model.config.type_vocab_size < 2 ? { disabled: true, placeholder: "this model knows one segment" } : {})),
      element("div", { class: "field short" }, element("label", { for: "field-padding" }, "[PAD] tokens"), padding),
      element("button", { type: "submit", class: "go" }, "Show"),
      element("p", { class: "examples" }, "Examples: ", ...EXAMPLES.flatMap(([name, values], index) => [index ? ", " : "", this.exampleButton(name, values)])));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    padding.addEventListener("change", () => this.submit());
  }

  exampleButton(name, values) {
    const button = element("button", { type: "button", class: "as-text" }, name);
    button.addEventListener("click", () => {
      for (const field of ["text", "text_b", "padding"]) this.form.elements[field].value = values[field] ?? (field === "padding" ? "0" : "");
      this.submit();
    });
    return button;
  }

  // What is looked at stays in sight while one reads.
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
    const numbers = (count) => Array.from({ length: count }, (_, index) => element("option", { value: index }, String(index)));
    layer.append(...numbers(model.config.num_hidden_layers));
    head.append(...numbers(model.config.num_attention_heads));
    this.controls = { token, layer, head };
    this.bar = element("div", { class: "look-bar", role: "group", "aria-label": "What is looked at" }, tokenControl, layerControl, headControl);
  }

  submit() {
    const values = Object.fromEntries(["text", "text_b", "padding"].map((name) => [name, this.form.elements[name].value]));
    this.context.state.set({ ...values, padding: values.padding === "0" ? null : values.padding, token: null });
    this.read();
  }

  async read() {
    const { api, announce, model, state } = this.context;
    this.asked += 1;
    const now = this.asked;
    const began = performance.now();
    const sentence = { text: this.form.elements.text.value, text_b: this.form.elements.text_b.value, padding: Number(this.form.elements.padding.value) };
    const waiting = this.wait();
    let read;
    try {
      read = await api("/api/sentence", sentence);
    } catch (error) {
      if (now === this.asked) this.status.replaceChildren(notice("error", error.message));
      return;
    } finally {
      clearTimeout(waiting);
    }
    if (now !== this.asked) return;
    this.status.replaceChildren();
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
    this.controls.token.replaceChildren(...read.tokens.map((token, index) => element("option", { value: index }, `${index} ${token}`)));
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

  // Says so where it takes longer: a large model needs seconds for a long text.
  wait() {
    return setTimeout(() => this.status.replaceChildren(element("p", { class: "notice hint waiting", role: "status" }, "Computing")), 400);
  }

  // Parts say which changes concern them (`uses`); everything does when the sentence is new.
  async update(changes) {
    const { look } = this;
    for (const [name, control] of Object.entries(this.controls)) control.value = look[name];
    const names = Object.keys(changes);
    const concerned = this.parts.filter((part) => !names.length || part.uses.some((name) => names.includes(name)));
    const now = this.asked;
    await Promise.all(concerned.map(async (part) => {
      const wanted = { ...look };
      try {
        await part.update(wanted, () => now === this.asked && part.uses.every((name) => wanted[name] === this.look[name]));
      } catch (error) {
        part.element.replaceChildren(section(part.name ?? "", {}, notice("error", error.message)));
      }
    }));
  }
}
