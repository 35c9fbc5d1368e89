// The rest of a layer for one token: residual sums, LayerNorm, the feed-forward half with its activation function.

import { element, largest, number, picture, section, stack, strip, svg } from "./draw.js";
import { shown, variable } from "./sentence_tokens.js";

export class Block {
  uses = ["token", "layer"];
  name = "Block";

  constructor({ codeLink, model }) {
    this.model = model;
    this.codeLink = codeLink;
    this.inside = element("div");
    this.element = section(
      "The rest of the layer, for one token",
      {
        id: "block",
        text:
          "The outputs of the heads are concatenated and mixed by a dense layer. The result is added to the input " +
          "of the layer (the residual sum), and LayerNorm scales the sum to mean 0 and variance 1. The feed-forward " +
          "half processes each token alone: it widens the vector, applies the activation function, and narrows " +
          "the vector again; then the result is added and normalized as before.",
        codes: [
          codeLink("attention.output", "mixing the heads", "mix"),
          codeLink("attention.norm", "residual sum and LayerNorm", "residual sum"),
          codeLink("layer_norm", "LayerNorm", "LayerNorm"),
          codeLink("intermediate", "feed-forward half", "feed-forward"),
          codeLink("gelu", "gelu", "gelu"),
        ],
      },
      this.inside,
    );
  }

  async update(look, current) {
    const steps = await look.ask("/api/block", { layer: look.layer, token: look.token });
    if (!current()) return;
    const { config } = this.model;
    const [d, i] = [config.hidden_size, config.intermediate_size];
    const base = `bert/encoder/layer_${look.layer}`;
    // The narrow vectors share a scale, and the wide vectors share another: in each group, equal colors are equal numbers.
    const reach = (...names) => Math.max(...names.map((name) => largest(steps[name].values)));
    const wide = reach("intermediate", "activated");
    const narrow = reach(
      "states",
      "context",
      "attention_output",
      "attention_sum",
      "attention_norm",
      "output",
      "output_sum",
      "output_norm",
    );
    const vector = (name, key, ...title) =>
      strip({
        values: steps[name].values,
        domain: steps[name].values.length === i ? wide : narrow,
        label: title.map((part) => part.textContent ?? part).join(""),
        name: key ? [...title, " ", this.codeLink(key, name.replaceAll("_", " "))] : title,
      });
    this.inside.replaceChildren(
      element("h3", {}, shown(look.read.tokens[look.token]), ` (${look.token}) in layer ${look.layer}`),
      stack(
        "First half of a layer",
        vector("states", null, look.layer ? `enters, from layer ${look.layer - 1}` : "enters, from the embeddings"),
        vector("context", "attention.context", "contexts of all heads, side by side"),
        vector(
          "attention_output",
          "attention.output",
          "mixed by ",
          variable(`${base}/attention/output/dense/kernel`, [d, d]),
        ),
        vector("attention_sum", "attention.norm", "residual sum: input + mixed"),
        vector(
          "attention_norm",
          "layer_norm",
          "after ",
          variable(`${base}/attention/output/LayerNorm/gamma, beta`, [d]),
        ),
      ),
      element("h3", {}, "The feed-forward half"),
      stack(
        "Feed-forward half",
        vector("intermediate", "intermediate", "widened by ", variable(`${base}/intermediate/dense/kernel`, [d, i])),
        vector("activated", "gelu", `after ${config.hidden_act}`),
      ),
      this.curve(steps.intermediate.values, steps.activated.values),
      stack(
        "End of a layer",
        vector("output", "output", "back by ", variable(`${base}/output/dense/kernel`, [i, d])),
        vector("output_sum", "output", "residual sum: after the first LayerNorm + back"),
        vector(
          "output_norm",
          "layer_norm",
          "after ",
          variable(`${base}/output/LayerNorm/gamma, beta`, [d]),
          look.layer + 1 < config.num_hidden_layers
            ? `: enters layer ${look.layer + 1}`
            : ": the output of the encoder",
        ),
      ),
      this.shares(steps),
    );
  }

  // Each number before and after the activation function.
  curve(before, after) {
    const [width, height, edge] = [320, 200, 28];
    const reach = Math.max(1, largest(before));
    const high = Math.max(1, largest(after));
    const x = (value) => edge + ((value + reach) / (2 * reach)) * (width - 2 * edge);
    const y = (value) => height - edge - ((value + 0.2 * high) / (1.2 * high)) * (height - 2 * edge);
    const below = before.reduce((count, value) => count + (value < 0), 0);
    const drawn = svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        class: "activation",
        role: "img",
        "aria-label":
          `${this.model.config.hidden_act}: each of ${before.length} numbers before and after; ${below} are ` +
          "negative and become about 0",
      },
      svg("line", { class: "grid", x1: edge, x2: width - edge, y1: y(0), y2: y(0) }),
      svg("line", { class: "grid", x1: x(0), x2: x(0), y1: edge, y2: height - edge }),
      svg("text", { class: "tick", x: edge, y: height - 8 }, number(-reach, 2)),
      svg("text", { class: "tick", x: width - edge, y: height - 8, "text-anchor": "end" }, number(reach, 2)),
      svg("text", { class: "tick", x: x(0), y: 16, "text-anchor": "middle" }, `after, up to ${number(high, 2)}`),
      svg("text", { class: "tick", x: x(0), y: height - 8, "text-anchor": "middle" }, "before"),
    );
    for (const [index, value] of before.entries())
      drawn.append(svg("circle", { class: "dot", cx: x(value).toFixed(1), cy: y(after[index]).toFixed(1), r: 2.5 }));
    return element(
      "div",
      { class: "activation-figure" },
      picture(`${this.model.config.hidden_act} of a token`, element("div", {}, drawn)),
      element(
        "p",
        { class: "caption" },
        `${this.model.config.hidden_act}, one dot for each of the ${before.length} numbers: ${below} are ` +
          "negative and become about 0, the other numbers hardly change. ",
        this.codeLink("gelu", "activation function"),
      ),
    );
  }

  // The length of the vector that each half adds, relative to the state.
  shares(steps) {
    const length = (name) => Math.hypot(...steps[name].values);
    return element(
      "p",
      { class: "explain" },
      `Attention adds a vector ${number(length("attention_output") / length("states"), 2)} times as long as its ` +
        "input; the feed-forward half adds a vector " +
        `${number(length("output") / length("attention_norm"), 2)} times as long as its input.`,
    );
  }
}
