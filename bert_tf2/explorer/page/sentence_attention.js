// One head of one layer: queries, keys, values; scores before and after mask and softmax, as matrix and lines.

import { bars, element, heatMap, largest, number, percent, picture, section, stack, strip, svg } from "./draw.js";
import { roving } from "./roving.js";
import { shown, variable } from "./sentence_tokens.js";

const STAGES = [
  ["scores", "scores: query x key / sqrt(H)"],
  ["masked", "with the mask added"],
  ["probabilities", "after the softmax"],
];
const MOST_LINES_OF_ALL = 40; // tokens; in longer texts, only the lines of the chosen token are drawn
const ROW = 22; // the height of a token in the drawing of lines

export class Attention {
  uses = ["token", "layer", "head"];
  name = "Attention";

  constructor({ codeLink, model, state }) {
    this.model = model;
    this.state = state;
    this.codeLink = codeLink;
    this.stage = STAGES.some(([name]) => name === state.get("stage")) ? state.get("stage") : "probabilities";
    this.heads = element("div", { class: "heads", role: "group", "aria-label": "Heads of this layer" });
    this.vectors = element("div");
    this.matrix = element("div", { class: "matrix" });
    this.lines = element("div");
    this.frame = element("div", {
      class: "lines-frame",
      tabindex: "0",
      role: "region",
      "aria-label": "Lines of attention",
    });
    this.reason = element("div", { class: "reason" });
    this.where = element("div");
    this.heading = element("p", { class: "explain" });
    const stages = roving(
      element(
        "div",
        { class: "stages", role: "group", "aria-label": "Numbers in the matrix" },
        ...STAGES.map(([name, text]) => {
          const button = element(
            "button",
            { type: "button", class: "plain", "aria-pressed": String(name === this.stage) },
            text,
          );
          button.dataset.stage = name;
          button.addEventListener("click", () => this.show(name));
          return button;
        }),
      ),
    );
    this.stages = stages;
    this.element = section(
      "Attention",
      {
        id: "attention",
        text:
          "Attention is the only step in which tokens exchange information. Each token compares its query with " +
          "the keys of all tokens; the softmax turns these scores into weights that add up to 1; and the token " +
          "gets the mean of the values with these weights. Each head uses its own part of the numbers.",
        codes: [
          codeLink("attention.query", "query, key and value", "Q, K, V"),
          codeLink("attention.scores", "scores", "scores"),
          codeLink("attention.mask", "mask", "mask"),
          codeLink("attention.softmax", "softmax", "softmax"),
          codeLink("attention.context", "mean of the values", "mean"),
        ],
      },
      this.heading,
      this.heads,
      this.vectors,
      stages,
      element("div", { class: "matrix-and-lines" }, this.matrix, this.lines),
      this.reason,
      this.where,
    );
  }

  async update(look, current) {
    const asked = `${look.text}\n${look.text_b}\n${look.padding}\n${look.layer}\n${look.head}`;
    if (asked !== this.asked) {
      const answer = await look.ask("/api/attention", { layer: look.layer, head: look.head });
      if (!current()) return;
      this.asked = asked;
      this.answer = answer;
      const { scores, mask_scores: mask } = answer;
      const columns = mask.values.length;
      this.answer.masked = {
        shape: scores.shape,
        values: scores.values.map((value, index) => value + mask.values[index % columns]),
      };
    }
    this.look = look;
    this.pair = null;
    this.describe();
    this.showHeads();
    this.showVectors();
    this.showMatrix();
    this.showLines();
    this.explain(look.token, this.strongest()[0]);
    this.showWhere();
  }

  describe() {
    const { config } = this.model;
    const { layer, head } = this.look;
    const size = config.hidden_size / config.num_attention_heads;
    this.heading.replaceChildren(
      `Layer ${layer}, head ${head} of ${config.num_attention_heads}: numbers ${head * size} to ` +
        `${(head + 1) * size - 1} of the products of the states and `,
      ...["query", "key", "value"].flatMap((name, index) => [
        index ? ", " : "",
        variable(`bert/encoder/layer_${layer}/attention/self/${name}/kernel`, [config.hidden_size, config.hidden_size]),
      ]),
      ".",
    );
  }

  showHeads() {
    const hadFocus = this.heads.contains(document.activeElement);
    const { heads, most, most_weights: weights } = this.answer;
    const {
      read: { tokens },
      token,
    } = this.look;
    this.heads.replaceChildren(
      ...heads.map((summary, index) => {
        const [name, share] = [
          ["itself", summary.itself],
          ["the token before", summary.previous],
          ["the token after", summary.following],
          ["[CLS]", summary.first],
          ["[SEP]", summary.separators],
        ].sort((a, b) => b[1] - a[1])[0];
        const button = element(
          "button",
          { type: "button", class: "head", "aria-pressed": String(index === this.look.head) },
          element("b", {}, `Head ${index}`),
          element(
            "span",
            { class: "looks" },
            `${tokens[token]} \u2192 ${tokens[most[index][token]]} ` +
              `${percent(weights.values[index * tokens.length + token])}`,
          ),
          element("span", {}, `all: ${percent(share)} to ${name}`),
          element("span", {}, `spread over ${number(summary.spread, 1)} tokens`),
        );
        button.addEventListener("click", () => this.look.choose({ head: index }));
        return button;
      }),
    );
    roving(this.heads);
    if (hadFocus) this.heads.children[this.look.head].focus({ preventScroll: true });
  }

  // Row `index` of a matrix [F, H].
  row({ shape, values }, index) {
    return values.subarray(index * shape[1], (index + 1) * shape[1]);
  }

  showVectors() {
    const { read, token } = this.look;
    const { query, key, value, context } = this.answer;
    const of = (name, matrix) =>
      strip({
        values: this.row(matrix, token),
        domain: largest(matrix.values),
        label: `${name} of ${read.tokens[token]}`,
        name: `${name} of ${read.tokens[token]}, [${matrix.shape[1]}]`,
      });
    this.vectors.replaceChildren(
      stack(
        "Query, key, value and context",
        element(
          "div",
          { class: "pair" },
          of("query", query),
          of("key", key),
          of("value", value),
          of("context (mean of the values)", context),
        ),
      ),
    );
  }

  show(stage) {
    this.stage = stage;
    this.state.set({ stage: stage === "probabilities" ? null : stage });
    this.showMatrix();
  }

  showMatrix() {
    const { read, token } = this.look;
    for (const button of this.stages.children)
      button.setAttribute("aria-pressed", String(button.dataset.stage === this.stage));
    const weights = this.stage === "probabilities";
    const given = this.answer[this.stage];
    const name = STAGES.find(([stage]) => stage === this.stage)[1];
    const most = largest(this.answer.scores.values);
    const value = (number_) => (weights ? percent(number_) : number(number_));
    // In a long text, weights are small, so the strongest color is the largest weight.
    const end = weights && read.tokens.length > MOST_LINES_OF_ALL ? largest(given.values) : 1;
    this.matrix.replaceChildren(
      heatMap({
        values: given.values,
        rows: given.shape[0],
        columns: given.shape[1],
        rowLabels: read.tokens,
        columnLabels: read.tokens,
        rowTitle: "from",
        columnTitle: "to",
        scale: weights ? "weight" : "signed",
        domain: weights ? [0, end] : [-most, most],
        gamma: weights ? 0.6 : 1,
        label: `Attention, ${name}, layer ${this.look.layer}, head ${this.look.head}`,
        hint: weights
          ? `Each row adds up to 100 %; the strongest color is ${percent(end)}.`
          : `Blue is negative, orange positive, up to ${number(most)}.`,
        how: "Point at a cell, or use the arrow keys; Enter or a click explains it.",
        describe: (from, to, number_) =>
          `from ${read.tokens[from]} (${from}) to ${read.tokens[to]} (${to}): ${value(number_)}`,
        hover: (from) => this.highlight(from ?? token),
        select: (from, to) => {
          this.explain(from, to);
        },
      }),
    );
  }

  strongest() {
    const row = [...this.row(this.answer.probabilities, this.look.token)];
    return row.map((_, index) => index).sort((a, b) => row[b] - row[a]);
  }

  showLines() {
    const { read, token } = this.look;
    const { values, shape } = this.answer.probabilities;
    const [count] = shape;
    const [width, height] = [360, count * ROW + 8];
    const y = (index) => index * ROW + ROW / 2 + 4;
    const drawn = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      class: "lines",
      role: "img",
      "aria-label":
        `Lines from each token to the tokens that it looks at, layer ${this.look.layer}, head ${this.look.head}; ` +
        `the table below has the numbers of ${read.tokens[token]}`,
    });
    const lines = svg("g");
    for (let from = 0; from < count; from += 1) {
      if (count > MOST_LINES_OF_ALL && from !== token) continue;
      for (let to = 0; to < count; to += 1) {
        const weight = values[from * count + to];
        if (weight < 0.01) continue;
        const line = svg("line", {
          x1: 130,
          y1: y(from),
          x2: width - 130,
          y2: y(to),
          class: from === token ? "from chosen" : "from",
        });
        line.dataset.from = from;
        line.style.strokeWidth = `${0.5 + 4 * weight}px`;
        line.style.setProperty("--weight", Math.sqrt(weight).toFixed(3));
        lines.append(line);
      }
    }
    drawn.append(lines);
    read.tokens.forEach((name, index) => {
      const text = name.length > 14 ? `${name.slice(0, 13)}\u2026` : name;
      const left = svg(
        "text",
        { x: 124, y: y(index) + 4, "text-anchor": "end", class: index === token ? "chosen" : null },
        text,
      );
      left.addEventListener("pointerenter", () => this.highlight(index));
      left.addEventListener("pointerleave", () => this.highlight(this.look.token));
      left.addEventListener("click", () => this.look.choose({ token: index }));
      drawn.append(left, svg("text", { x: width - 124, y: y(index) + 4 }, text));
    });
    this.frame.replaceChildren(drawn);
    this.lines.replaceChildren(picture(`Lines of layer ${this.look.layer}, head ${this.look.head}`, this.frame));
    this.frame.scrollTop = Math.max(0, y(token) - this.frame.clientHeight / 2);
  }

  highlight(from) {
    for (const line of this.lines.querySelectorAll("line"))
      line.classList.toggle("chosen", Number(line.dataset.from) === from);
  }

  // Explains how a weight is computed.
  explain(from, to) {
    const { read } = this.look;
    const { query, key, scores, mask_scores: mask, masked, probabilities } = this.answer;
    const [, size] = query.shape;
    const [q, k] = [this.row(query, from), this.row(key, to)];
    let product = 0;
    q.forEach((value, index) => {
      product += value * k[index];
    });
    const at = from * scores.shape[1] + to;
    const row = this.row(masked, from);
    const most = Math.max(...row);
    const rowSum = row.reduce((sum, value) => sum + Math.exp(value - most), 0);
    const top = Math.exp(masked.values[at] - most);
    const step = (text, value, key_) =>
      element("li", {}, text, element("b", {}, value), " ", this.codeLink(key_, text));
    this.reason.replaceChildren(
      element(
        "h3",
        {},
        "One weight: from ",
        shown(read.tokens[from]),
        ` (${from}) to `,
        shown(read.tokens[to]),
        ` (${to})`,
      ),
      roving(
        element(
          "ol",
          { class: "steps" },
          step(
            `query of ${read.tokens[from]} x key of ${read.tokens[to]}, a sum of ${size} products: `,
            number(product),
            "attention.scores",
          ),
          step(`divided by sqrt(${size}): `, number(scores.values[at]), "attention.scale"),
          step(
            "the mask adds: ",
            `${number(mask.values[to])}${mask.values[to] ? " (padding)" : " (no padding)"}`,
            "attention.mask",
          ),
          step(
            `softmax, e^score over the sum of e^score in the row (${number(top)} of ${number(rowSum)}, with ` +
              "the largest score of the row subtracted from each): ",
            percent(probabilities.values[at]),
            "attention.softmax",
          ),
        ),
      ),
      strip({
        values: Float32Array.from(q, (value, index) => value * k[index]),
        label: "products of query and key",
        name: `the ${size} products that are added`,
      }),
    );
  }

  showWhere() {
    const { read, token } = this.look;
    const row = this.row(this.answer.probabilities, token);
    this.where.replaceChildren(
      element("h3", {}, "Where ", shown(read.tokens[token]), ` (${token}) looks`),
      bars({
        label: `Attention weights from ${read.tokens[token]}`,
        most: 1,
        format: percent,
        items: this.strongest()
          .slice(0, 8)
          .map((to) => ({ label: `${read.tokens[to]} (${to})`, value: row[to], mark: to === token })),
      }),
    );
  }
}
