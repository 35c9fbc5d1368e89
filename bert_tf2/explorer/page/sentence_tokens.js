// The tokens of a sentence, and the three embeddings that are added for one of them.

import { table } from "./controls.js";
import { element, largest, number, section, stack, strip } from "./draw.js";
import { roving } from "./roving.js";

// The name of a variable, as in checkpoints, with its shape.
export function variable(name, shape) {
  return element("span", { class: "variable" }, element("code", {}, name), ` [${shape.join(", ")}]`);
}

export function shown(token) {
  return token.startsWith("[") ? element("b", { class: "special" }, token) : token;
}

export class Tokens {
  uses = ["token"];
  name = "Tokens";

  constructor({ codeLink, model }) {
    this.model = model;
    this.table = element("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Tokens" });
    this.words = element("p", { class: "explain" });
    this.segments = element("p", { class: "explain" });
    this.element = section(
      "Tokens",
      {
        id: "tokens",
        text:
          "The model reads numbers. The text is cut into words, each word is cut into the longest pieces that the " +
          "vocabulary has (## continues a word), and each piece becomes its line number in the vocabulary, " +
          "counted from 0. Choose a token to follow it.",
        codes: [
          codeLink("tokens.words", "text to words", "words"),
          codeLink("tokens.pieces", "words to pieces", "pieces"),
          codeLink("tokens.packed", "one array with segments", "segments"),
        ],
      },
      this.words,
      this.table,
      this.segments,
    );
  }

  update(look) {
    const { read } = look;
    const words = read.words.flat();
    this.words.replaceChildren(
      `${words.length} words: `,
      element("code", {}, words.join(" ") || "none"),
      read.tokens.includes("[UNK]")
        ? " \u2013 [UNK] replaces a word without pieces in the vocabulary: the model cannot know the word."
        : "",
    );
    const has = new Set(read.segment_ids.slice(0, read.tokens.length));
    const row = (name, values, kind = () => null) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, element("code", {}, name)),
        ...values.map((value, index) =>
          element(
            "td",
            { class: [kind(value, index), index === look.token ? "chosen" : ""].filter(Boolean).join(" ") || null },
            value,
          ),
        ),
      );
    const buttons = read.tokens.map((token, index) => {
      const button = element(
        "button",
        { type: "button", class: "token", "aria-pressed": String(index === look.token) },
        shown(token),
      );
      button.addEventListener("click", () => look.choose({ token: index }));
      return button;
    });
    const hadFocus = this.table.contains(document.activeElement) && document.activeElement.classList.contains("token");
    const scrolled = this.table.scrollLeft;
    this.table.replaceChildren(
      element(
        "table",
        { class: "tokens" },
        element(
          "tbody",
          {},
          row("tokens", buttons),
          row("input_ids", read.input_ids.map(String)),
          row("segment_ids", read.segment_ids.map(String), (value, index) =>
            read.input_mask[index] ? `segment-${value}` : "padding",
          ),
          row(
            "position",
            read.tokens.map((_, index) => String(index)),
          ),
          row("input_mask", read.input_mask.map(String), (value) => (value === "0" ? "padding" : null)),
        ),
      ),
    );
    this.table.scrollLeft = scrolled;
    this.showChosen(buttons[look.token]);
    roving(this.table, ".token");
    if (hadFocus) buttons[look.token].focus({ preventScroll: true });
    this.segments.textContent = has.has(1)
      ? "Both sentences are in one array, with [SEP] after each, and every step below treats them alike. The " +
        "row segment_ids has the same length: the code that packs the pair writes 0 up to the first [SEP] and 1 " +
        "after it. The model does not infer these numbers; it only looks up a vector for 0 or 1."
      : "One sentence: all segment_ids are 0. In a pair, this array would have both sentences, with 1 for the " +
        "tokens of the second; the code that packs the pair writes these numbers, and the model does not infer " +
        "them.";
  }

  // Scrolls the table sideways until the chosen token is visible.
  showChosen(button) {
    const [cell, frame] = [button.parentElement.getBoundingClientRect(), this.table.getBoundingClientRect()];
    const names = this.table.querySelector("th").offsetWidth; // stays at the left
    if (cell.left < frame.left + names || cell.right > frame.right)
      this.table.scrollLeft += cell.left - frame.left - names - (frame.width - names - cell.width) / 2;
  }
}

const EMBEDDINGS = [
  ["words", "row of the word table", "bert/embeddings/word_embeddings", "embeddings.words"],
  ["segments", "row of the segment table", "bert/embeddings/token_type_embeddings", "embeddings.segments"],
  ["positions", "row of the position table", "bert/embeddings/position_embeddings", "embeddings.positions"],
];

export class Embeddings {
  uses = ["token"];
  name = "Embeddings";

  constructor({ codeLink, model }) {
    this.model = model;
    this.codeLink = codeLink;
    this.inside = element("div");
    this.element = section(
      "Three embeddings are added",
      {
        id: "embeddings",
        text:
          "Each token gets the sum of three vectors of hidden_size numbers, which are rows of tables: for its id, " +
          "its segment and its position. LayerNorm then shifts and scales the sum to mean 0 and variance 1, and " +
          "applies gamma and beta. Point at a strip, or use the arrow keys, to read its numbers.",
        codes: [
          codeLink("embeddings.sum", "the sum of the embeddings", "sum"),
          codeLink("embeddings.norm", "the LayerNorm of the embeddings", "LayerNorm"),
        ],
      },
      this.inside,
    );
  }

  async update(look, current) {
    const { vectors, norms } = await look.ask("/api/embeddings", { token: look.token });
    if (!current()) return;
    const { config } = this.model;
    const { read, token } = look;
    const rows = {
      words: [config.vocab_size, read.input_ids[token]],
      segments: [config.type_vocab_size, read.segment_ids[token]],
      positions: [config.max_position_embeddings, token],
    };
    const domain = Math.max(...EMBEDDINGS.map(([name]) => largest(vectors[name].values)), largest(vectors.sum.values));
    const strips = EMBEDDINGS.map(([name, what, variableName, key], index) =>
      strip({
        values: vectors[name].values,
        domain,
        label: `${what} ${rows[name][1]} for ${read.tokens[token]}`,
        name: [
          index ? "+ " : "",
          variable(variableName, [rows[name][0], config.hidden_size]),
          `, row ${rows[name][1]} `,
          this.codeLink(key, what),
        ],
      }),
    );
    this.inside.replaceChildren(
      element("h3", {}, "Embeddings of ", shown(read.tokens[token]), ` at position ${token}`),
      stack(
        "Embeddings of a token",
        ...strips,
        strip({ values: vectors.sum.values, domain, label: "their sum", name: "= sum" }),
        strip({
          values: vectors.norm.values,
          label: "after LayerNorm, the input of layer 0",
          name: ["after ", variable("bert/embeddings/LayerNorm/gamma, beta", [config.hidden_size]), ": enters layer 0"],
        }),
      ),
      this.norms(look, norms),
    );
  }

  // The norms of the vectors of all tokens.
  norms(look, norms) {
    const names = [
      ["words", "word"],
      ["segments", "segment"],
      ["positions", "position"],
      ["sum", "sum"],
      ["norm", "LayerNorm"],
    ];
    return element(
      "details",
      {},
      element("summary", {}, "Norms for all tokens"),
      table({
        label: "Norms of the embeddings",
        head: ["token", ...names.map(([, text]) => text)],
        rows: look.read.tokens.map((token, index) => [
          shown(token),
          ...names.map(([name]) => number(norms[name].values[index])),
        ]),
        numeric: names.map((_, index) => index + 1),
      }),
    );
  }
}
