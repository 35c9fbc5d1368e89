// From a state to words: the masked-LM head for each [MASK].

import { table } from "./controls.js";
import { bar, bars, element, notice, number, percent, section, stack, strip } from "./draw.js";
import { roving } from "./roving.js";
import { shown, variable } from "./sentence_tokens.js";

const MOST_MASKS = 12; // the maximum number of [MASK] whose words are requested at once

function explanation({ vocab_size: v, hidden_size: d }) {
  const size = `${v} x ${d} = ${(v * d).toLocaleString("en")} parameters`;
  const fits =
    `The table has one row of ${d} numbers per word, so its product with a state of ${d} numbers gives ${v} ` +
    "scores: that is why the transposed table fits.";
  const bias =
    "Only the output has a bias: one number per word that is added in every context, so it learns how frequent " +
    "the word is. The input needs no bias, because a word's row can learn a number that would be added to it.";
  return [
    "The score of a word is the dot product of the state, after a small network, with the word's row of the " +
      "embedding table: the same table that turned words into vectors at the beginning, transposed. A word is " +
      "probable if the state points where its row points.",
    `${fits} The table is one variable, not a copy, and is trained from both ends. Sharing it saves ${size}.`,
    bias,
  ];
}

export class Words {
  uses = ["token"];
  name = "Words";

  constructor({ codeLink, model, state }) {
    this.model = model;
    this.state = state;
    this.codeLink = codeLink;
    this.inside = element("div");
    this.summary = element("div", { class: "summary" }); // above all parts, because most people read the answer first
    const predicts = model.heads.includes("masked_lm");
    this.element = section(
      "From the state to a word",
      {
        id: "words",
        text: predicts ? explanation(model.config) : [],
        codes: !predicts
          ? []
          : [
              codeLink("head.gather", "gathering the masked states", "gather"),
              codeLink("head.transform", "transform", "transform"),
              codeLink("head.logits", "dot products", "product"),
              codeLink("head.table", "the shared table", "table"),
              codeLink("head.bias", "bias", "bias"),
              codeLink("head.softmax", "softmax", "softmax"),
            ],
      },
      this.inside,
    );
  }

  async update(look, current) {
    if (!this.model.heads.includes("masked_lm")) {
      this.summary.replaceChildren();
      this.inside.replaceChildren(
        notice(
          "hint",
          "These weights have no masked-LM head (cls/predictions), so they predict no words: fine-tuning and " +
            "some conversions leave the head out. Everything above works without it.",
        ),
      );
      return;
    }
    const { read } = look;
    // The tokens whose words are shown: every [MASK], and the chosen one.
    const masks = read.masks.slice(0, MOST_MASKS);
    const wanted = [...masks, ...(masks.includes(look.token) ? [] : [look.token])];
    const shownToken = read.masks.includes(look.token) || !read.masks.length ? look.token : read.masks[0];
    const answers = await Promise.all(wanted.map((token) => look.ask("/api/words", { token })));
    if (!current()) return;
    const at = wanted.indexOf(shownToken);
    this.summary.replaceChildren(this.overview(look, wanted, answers));
    this.inside.replaceChildren(this.way(look, wanted[at], answers[at]), this.swap(look, wanted[at], answers[at]));
  }

  overview(look, wanted, answers) {
    return element(
      "ul",
      { class: "guesses" },
      ...answers.map(({ words }, index) =>
        element(
          "li",
          {},
          "Words for ",
          shown(look.read.tokens[wanted[index]]),
          ` (token ${wanted[index]})`,
          look.read.masks.includes(wanted[index]) ? ": " : ", which the model reads: ",
          ...words
            .slice(0, 3)
            .flatMap((word, place) => [
              place ? " \u00b7 " : "",
              element("code", {}, word.token),
              ` ${percent(word.probability)}`,
            ]),
        ),
      ),
      look.read.masks.length ? null : element("li", {}, "Type [MASK] in place of a word, and the model guesses it."),
      look.read.masks.length > MOST_MASKS
        ? element("li", {}, `${look.read.masks.length - MOST_MASKS} more [MASK]: choose one to see its words.`)
        : null,
    );
  }

  way(look, token, answer) {
    const { hidden_size: d, hidden_act: activation } = this.model.config;
    const head = "cls/predictions/transform";
    const chosen = element("div", { class: "word-detail" });
    this.detail(chosen, answer, answer.words[0]);
    return element(
      "div",
      {},
      element("h3", {}, "The steps of ", shown(look.read.tokens[token]), ` (${token})`),
      stack(
        "Steps of a state through the head",
        strip({
          values: answer.state.values,
          label: "state",
          name: ["gathered: the encoder's output at this token ", this.codeLink("head.gather", "gathering")],
        }),
        strip({
          values: answer.transformed.values,
          label: "transformed",
          name: [
            "through ",
            variable(`${head}/dense/kernel`, [d, d]),
            ` and ${activation} `,
            this.codeLink("head.transform", "transform"),
          ],
        }),
        strip({
          values: answer.norm.values,
          label: "normalized",
          name: [
            "after ",
            variable(`${head}/LayerNorm/gamma, beta`, [d]),
            ": compared with every row ",
            this.codeLink("layer_norm", "LayerNorm"),
          ],
        }),
      ),
      this.best(answer, look, token, (word) => this.detail(chosen, answer, word)),
      chosen,
      this.layers(answer),
    );
  }

  // The best words after each layer, from the first guess to the answer, and how probable the answer is there.
  layers({ layers, answer_by_layer: shares }) {
    return element(
      "div",
      {},
      element("h3", {}, "The answer after each layer"),
      element(
        "p",
        { class: "explain" },
        "The same head on the state of this token after each layer. The head is trained only for the last layer; " +
          "the other layers show where the answer appears. The bars show how probable each layer makes it.",
      ),
      table({
        label: "The best words for the state of each layer",
        head: ["state after", "best words", layers.at(-1)[0].token, "as a bar"],
        numeric: [2],
        rows: layers.map((words, index) => [
          index ? `layer ${index - 1}` : "the embeddings",
          words.map((word) => `${word.token} ${percent(word.probability)}`).join(" \u00b7 "),
          percent(shares[index]),
          bar(`${10 * shares[index]}rem`),
        ]),
      }),
    );
  }

  best(answer, look, token, choose) {
    const own = look.read.tokens[token] === "[MASK]" ? null : look.read.input_ids[token];
    const button = (word) => {
      const made = element("button", { type: "button", class: "as-text word" }, word.token);
      made.addEventListener("click", () => choose(word));
      return made;
    };
    const words = table({
      label: "The most probable words",
      kind: "best-words",
      head: ["word", "dot product", "+ bias", "= logit", "softmax", "", "cosine"],
      numeric: [1, 2, 3, 4, 6],
      bars: [5],
      marked: answer.words.findIndex((word) => word.token_id === own),
      rows: answer.words.map((word) => [
        button(word),
        number(word.product),
        number(word.bias),
        number(word.logit),
        percent(word.probability),
        bar(`${100 * word.probability}%`),
        number(word.cosine, 2),
      ]),
    });
    roving(words.querySelector("tbody"), ".word", 1);
    return element(
      "div",
      {},
      words,
      element(
        "p",
        { class: "explain" },
        `${own === null ? "" : "The word in the sentence is bold. "}Choose a word to see its dot product.`,
      ),
    );
  }

  // A dot product, number by number.
  detail(place, answer, word) {
    const products = Float32Array.from(word.row.values, (value, index) => value * answer.norm.values[index]);
    place.replaceChildren(
      element("h3", {}, "The dot product for ", element("code", {}, word.token)),
      stack(
        "Dot product of a word",
        strip({ values: answer.norm.values, label: "the state", name: "the state, after its LayerNorm" }),
        strip({
          values: word.row.values,
          label: `row of ${word.token}`,
          name: [
            "x ",
            variable("bert/embeddings/word_embeddings", [this.model.config.vocab_size, this.model.config.hidden_size]),
            `, row ${word.token_id}`,
          ],
        }),
        strip({
          values: products,
          label: "products",
          name: [
            `= ${products.length} products, which add up to ${number(word.product)} `,
            this.codeLink("head.logits", "dot product"),
          ],
        }),
      ),
      element(
        "p",
        { class: "explain" },
        "+ ",
        variable("cls/predictions/output_bias", [this.model.config.vocab_size]),
        ` [${word.token_id}] ${number(word.bias)} = ${number(word.logit)}; of all words, ` +
          `e^${number(word.logit)} is ${percent(word.probability)}.`,
      ),
    );
  }

  // The same head on the state of another token.
  swap(look, token, answer) {
    const others = look.read.tokens
      .map((name, index) => [index, name])
      .filter(([index]) => index !== token && look.read.input_mask[index]);
    const select = element(
      "select",
      { id: "swap-token" },
      element("option", { value: "" }, "choose a token"),
      ...others.map(([index, name]) => element("option", { value: index }, `${index} ${name}`)),
    );
    const result = element("div", { class: "swap-result", "aria-live": "polite" });
    const list = (title, words) =>
      element(
        "div",
        {},
        element("h4", {}, title),
        bars({
          label: title,
          most: 1,
          format: percent,
          items: words.slice(0, 6).map((word) => ({ label: word.token, value: word.probability })),
        }),
      );
    const show = async () => {
      this.state.set({ swap: select.value || null });
      if (!select.value) return result.replaceChildren();
      const other = Number(select.value);
      const found = await look.ask("/api/words", { token: other });
      return result.replaceChildren(
        list(`with its own state (${token})`, answer.words),
        list(`with the state of ${look.read.tokens[other]} (${other})`, found.words),
      );
    };
    select.addEventListener("change", show);
    if (others.some(([index]) => String(index) === this.state.get("swap"))) {
      select.value = this.state.get("swap");
      show();
    }
    return element(
      "div",
      { class: "swap" },
      element("h3", {}, "With another word's state"),
      element(
        "p",
        { class: "explain" },
        "Only the state decides: the same head on the state of another token has another answer, mostly that token " +
          "itself, because pretraining left a tenth of the tokens to predict unchanged.",
      ),
      element("span", { class: "control" }, element("label", { for: "swap-token" }, "Take the state of"), select),
      result,
    );
  }
}
