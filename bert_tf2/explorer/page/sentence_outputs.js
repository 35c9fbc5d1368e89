// The answers of the heads other than the masked-LM head.

import { table } from "./controls.js";
import { bars, element, number, percent, section } from "./draw.js";
import { shown } from "./sentence_tokens.js";

// Whether the output can be shown: next sentences need a second text.
export function isAsked({ title }, look) {
  return title !== "Next sentence" || Boolean(look.text_b.trim());
}

export class Outputs {
  uses = [];
  name = "Other heads";

  constructor({ codeLink }) {
    this.codeLink = codeLink;
    this.element = element("div");
  }

  async update(look, current) {
    const { outputs } = await look.ask("/api/outputs");
    if (!current()) return;
    this.element.replaceChildren(
      ...outputs.map((output) =>
        section(
          output.title,
          {
            id: "outputs",
            text:
              output.of === "text"
                ? "The answer for the whole text: the pooler and an output layer process the state of [CLS]."
                : "The answer for each token: an output layer processes its state.",
            codes: [
              this.codeLink("pooler", "pooler", "pooler"),
              this.codeLink("head.labels", "output layer", "output layer"),
            ].slice(output.of === "text" ? 0 : 1),
          },
          isAsked(output, look)
            ? output.of === "text"
              ? this.ofText(output)
              : this.ofTokens(output, look)
            : element("p", { class: "explain" }, "This head compares two texts: type a second sentence above."),
        ),
      ),
    );
  }

  ofText({ title, labels, values }) {
    const score = title === "Regression";
    return bars({
      label: title,
      most: score ? null : 1,
      format: score ? number : percent,
      items: labels.map((label, index) => ({ label, value: values.values[index] })),
    });
  }

  ofTokens({ title, labels, values }, look) {
    return table({
      label: title,
      head: ["token", ...labels],
      rows: look.read.tokens.map((token, index) => [
        shown(token),
        ...labels.map((_, label) => percent(values.values[index * labels.length + label])),
      ]),
      numeric: labels.map((_, label) => label + 1),
    });
  }
}
