// All heads of all layers at a glance: a small map of the weights of each head; a click opens the head.

import { element, percent, picture, section, thumbnail } from "./draw.js";
import { roving } from "./roving.js";

export class Maps {
  uses = ["token", "layer", "head"];
  name = "All heads at a glance";

  constructor({ codeLink, model }) {
    this.model = model;
    this.inside = element("div");
    this.element = section(
      "All heads at a glance",
      {
        id: "maps",
        text:
          "The attention of every head; each row of maps is a layer. In a map, a row is a token and the columns " +
          "are the tokens that it looks at. A diagonal shows a head that looks at a neighbor, a vertical line " +
          "shows a head in which all tokens look at the same token. Click a map to open it.",
        codes: [codeLink("attention.softmax", "softmax", "softmax")],
      },
      this.inside,
    );
  }

  async update(look, current) {
    const asked = [look.text, look.text_b, look.padding].join("\n");
    if (asked !== this.asked) {
      const { maps } = await look.ask("/api/maps", this.wanted === asked ? { all: 1 } : {});
      if (!current()) return;
      if (!maps) {
        this.offer(look, asked);
        return;
      }
      this.asked = asked;
      this.maps = maps;
      this.draw(look);
    }
    this.mark(look);
  }

  // Offers a button, because a long text in a large model takes seconds.
  offer(look, asked) {
    const button = element("button", { type: "button", class: "plain" }, "Compute all maps");
    button.addEventListener("click", () => {
      this.wanted = asked;
      look.choose({});
    });
    this.inside.replaceChildren(
      element(
        "p",
        { class: "explain" },
        `The maps of all heads take a moment for ${look.read.tokens.length} tokens. `,
        button,
      ),
    );
  }

  draw(look) {
    const [layers, heads, size] = this.maps.shape;
    this.told = element("output", { class: "readout", "aria-live": "off" });
    this.buttons = [];
    const grid = element(
      "div",
      { class: "maps", role: "group", "aria-label": "All heads" },
      element("span"),
      ...Array.from({ length: heads }, (_, head) =>
        element("span", { class: "map-head", "aria-hidden": "true" }, String(head)),
      ),
    );
    grid.style.setProperty("--heads", heads);
    for (let layer = 0; layer < layers; layer += 1) {
      grid.append(element("span", { class: "map-layer", "aria-hidden": "true" }, `layer ${layer}`));
      for (let head = 0; head < heads; head += 1) grid.append(this.map(look, layer, head, size));
    }
    const tell = ({ target }) => {
      this.told.textContent = target.closest(".map")?.title ?? this.hint;
    };
    for (const event of ["pointerover", "focusin", "pointerleave", "focusout"]) grid.addEventListener(event, tell);
    this.grid = grid;
    this.columns = heads;
    this.inside.replaceChildren(picture("Attention of all heads", element("div", {}, grid)), this.told);
  }

  map(look, layer, head, size) {
    const start = (layer * this.maps.shape[1] + head) * size * size;
    const button = element(
      "button",
      { type: "button", class: "map" },
      thumbnail({ values: this.maps.values.subarray(start, start + size * size), rows: size, columns: size }),
    );
    button.addEventListener("click", () => look.choose({ layer, head }));
    this.buttons.push([button, layer, head, start]);
    return button;
  }

  mark(look) {
    const { tokens } = look.read;
    const size = this.maps.shape[2];
    for (const [button, layer, head, start] of this.buttons) {
      button.setAttribute("aria-pressed", String(layer === look.layer && head === look.head));
      button.title = `Layer ${layer}, head ${head}${size === tokens.length ? `: ${this.most(look, start)}` : ""}`;
      button.setAttribute("aria-label", button.title);
    }
    roving(this.grid, ".map", this.columns);
    this.hint =
      size === tokens.length
        ? `Layer ${look.layer}, head ${look.head} is open.`
        : `Layer ${look.layer}, head ${look.head} is open. Each cell is the largest weight of several tokens.`;
    this.told.textContent = this.hint;
  }

  // The token at which the chosen token looks most.
  most({ read, token }, start) {
    const row = this.maps.values.subarray(start + token * read.tokens.length, start + (token + 1) * read.tokens.length);
    const to = row.reduce((best, value, index) => (value > row[best] ? index : best), 0);
    return `${read.tokens[token]} (${token}) looks at ${read.tokens[to]} (${to}), ${percent(row[to])}`;
  }
}
