// Two sentences side by side: where in the model a changed word arrives, in states, heads, attention and answers.

import { bars, element, heatMap, largest, number, percent, section } from "./draw.js";
import { isAsked } from "./sentence_outputs.js";
import { shown } from "./sentence_tokens.js";

const EXAMPLE = { text: "The capital of France is [MASK].", other: "The capital of Italy is [MASK]." };

export class Pair {
  uses = ["layer", "head"];
  name = "Two sentences side by side";

  constructor({ model, state }) {
    this.state = state;
    this.model = model;
    this.result = element("div");
    this.field = element("input", {
      id: "field-other",
      type: "text",
      autocomplete: "off",
      value: state.get("other_text", model.texts.other_text),
    });
    this.form = element(
      "form",
      { class: "pair-form", "aria-label": "Another sentence" },
      element(
        "div",
        { class: "field" },
        element("label", { for: "field-other" }, "Another sentence, for example with one word changed"),
        this.field,
      ),
      element("button", { type: "submit", class: "plain" }, "Compare"),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      state.set({ other_text: this.field.value });
      this.look?.choose({ other: this.field.value });
    });
    if (model.written)
      this.form.replaceChildren(
        element("p", { class: "explain" }, "The other sentence: ", element("b", {}, model.texts.other_text)),
      );
    this.uses.push("other");
    this.element = section(
      "Two sentences side by side",
      {
        id: "pair",
        text:
          "Change one word, and see where the change arrives: at first only in the state of that word, then, " +
          "through attention, in the states of other words, and at last in the answer.",
      },
      this.form,
      this.result,
    );
    this.element.hidden = Boolean(model.written && !model.texts.other_text);
  }

  async update(look, current) {
    this.look = look;
    if (!this.state.get("other_text") && !this.field.value && look.text === EXAMPLE.text)
      this.field.value = EXAMPLE.other;
    const other = this.field.value.trim();
    if (this.element.hidden || !other || other === look.text) {
      this.result.replaceChildren();
      return;
    }
    const about = { other_text: this.field.value };
    const [found, weights] = await Promise.all([
      look.ask("/api/pair", about),
      look.ask("/api/pair_attention", { ...about, layer: look.layer, head: look.head }),
    ]);
    if (!current()) return;
    const names = found.pairs.map(([a, b]) =>
      look.read.tokens[a] === found.tokens[b] ? look.read.tokens[a] : `${look.read.tokens[a]} / ${found.tokens[b]}`,
    );
    this.result.replaceChildren(
      this.answers(look, found),
      this.states(found, names),
      this.heads(look, found),
      this.attention(look, weights, names),
    );
  }

  answers(look, { words, outputs, other_outputs: others }) {
    const table = (title, rows) =>
      element(
        "div",
        {},
        element("h3", {}, ...[title].flat()),
        element(
          "div",
          { class: "side-by-side" },
          ...[
            ["probability", "this sentence"],
            ["other", "the other sentence"],
          ].map(([key, name]) =>
            element(
              "div",
              {},
              element("h4", {}, name),
              bars({
                label: `Answers for ${name}`,
                most: 1,
                format: percent,
                items: rows.map((row) => ({ label: row.token, value: row[key] })),
              }),
            ),
          ),
        ),
      );
    return element(
      "div",
      {},
      ...words.map(({ pair: [a], words: found }) =>
        table(["The answers for ", shown(look.read.tokens[a]), ` (${a})`], found),
      ),
      ...outputs
        .filter((output) => output.title !== "Regression" && isAsked(output, look))
        .map(({ title, labels, values }, index) =>
          table(
            title,
            labels.map((token, at) => ({
              token,
              probability: values.values[at],
              other: others[index].values.values[at],
            })),
          ),
        ),
    );
  }

  states({ states }, names) {
    const [rows, columns] = states.shape;
    const most = Math.max(largest(states.values), 1e-6);
    return element(
      "div",
      {},
      element("h3", {}, "How far apart the states are"),
      heatMap({
        values: states.values,
        rows,
        columns,
        scale: "weight",
        domain: [0, most],
        gamma: 0.6,
        columnLabels: names,
        rowTitle: "after",
        columnTitle: "token",
        rowLabels: Array.from({ length: rows }, (_, index) => (index ? `layer ${index - 1}` : "embeddings")),
        label: "Distances of the states of two sentences",
        hint:
          "1 - cosine of the two states of a token: 0 for the same direction; the strongest color is " +
          `${number(most, 2)}.`,
        describe: (row, column, value) =>
          `${names[column]}, after ${row ? `layer ${row - 1}` : "the embeddings"}: ${number(value)}`,
      }),
    );
  }

  heads(look, { heads }) {
    const [rows, columns] = heads.shape;
    const most = Math.max(largest(heads.values), 1e-6);
    return element(
      "div",
      {},
      element("h3", {}, "Which heads look elsewhere"),
      heatMap({
        values: heads.values,
        rows,
        columns,
        scale: "weight",
        domain: [0, most],
        rowLabels: Array.from({ length: rows }, (_, index) => `layer ${index}`),
        columnLabels: Array.from({ length: columns }, (_, index) => String(index)),
        columnTitle: "head",
        label: "Attention that moved, by head",
        hint:
          "The share of attention that moved to other tokens, the mean over all tokens; the strongest color is " +
          `${percent(most)}.`,
        how: "Enter or a click opens a head.",
        describe: (row, column, value) => `layer ${row}, head ${column}: ${percent(value)}`,
        select: (layer, head) => look.choose({ layer, head }),
      }),
    );
  }

  attention(look, { weights, other_weights: others }, names) {
    const size = names.length;
    const difference = Float32Array.from(weights.values, (value, index) => others.values[index] - value);
    const most = Math.max(largest(difference), 1e-6);
    const map = (title, values, more, format) =>
      element(
        "div",
        {},
        element("h4", {}, title),
        heatMap({
          values,
          rows: size,
          columns: size,
          rowLabels: names,
          columnLabels: names,
          rowTitle: "from",
          columnTitle: "to",
          label: `Layer ${look.layer}, head ${look.head}, ${title}`,
          describe: (from, to, value) => `from ${names[from]} (${from}) to ${names[to]} (${to}): ${format(value)}`,
          ...more,
        }),
      );
    const weight = { scale: "weight", domain: [0, 1], gamma: 0.6, hint: "0 to 100 %" };
    return element(
      "div",
      {},
      element("h3", {}, `Layer ${look.layer}, head ${look.head} in both`),
      element(
        "div",
        { class: "side-by-side three" },
        map("this sentence", weights.values, weight, percent),
        map("the other sentence", others.values, weight, percent),
        map(
          "the other minus this",
          difference,
          {
            scale: "signed",
            domain: [-most, most],
            hint: `Orange: more in the other sentence, up to ${percent(most)}; blue: less.`,
          },
          (value) => `${value < 0 ? "\u2212" : "+"}${percent(Math.abs(value))}`,
        ),
      ),
    );
  }
}
