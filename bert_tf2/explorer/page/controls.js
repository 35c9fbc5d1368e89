// Controls of the views: choices, a search, and tables.

import { element } from "./draw.js";

let made = 0;

function labeled(label, control) {
  made += 1;
  control.id ||= `control-${made}`;
  return element("span", { class: "control" }, element("label", { for: control.id }, label), control);
}

// A choice between options [[value, text], ...].
export function choice({ label, options, value, change }) {
  const select = element("select", {}, ...options.map(([name, text]) => element("option", { value: name }, text)));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return labeled(label, select);
}

// A field for a text to search for.
export function search({ label, value, change }) {
  const input = element("input", { type: "search", value, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => change(input.value));
  return labeled(label, input);
}

export function controls(...given) {
  return element("div", { class: "controls" }, ...given);
}

// A table that scrolls within its frame if it is wide. `head` is a row of texts or elements, `rows` are such rows. The
// first cell of a row is its heading. `numeric`: the columns of numbers; `bars`: the columns of bars, which screen
// readers skip; `marked`: the index of the row that is marked; `tall`: whether the table scrolls vertically; `kind`: a
// class of the table.
export function table({ label, head, rows, numeric = [], bars = [], marked = null, tall = false, kind = null }) {
  const look = (index) => ({
    class: numeric.includes(index) ? "number" : bars.includes(index) ? "bar-cell" : null,
    "aria-hidden": bars.includes(index) ? "true" : null,
  });
  return element(
    "div",
    { class: tall ? "table-frame tall" : "table-frame", tabindex: "0", role: "region", "aria-label": label },
    element(
      "table",
      { class: kind ? `facts ${kind}` : "facts" },
      element(
        "thead",
        {},
        element("tr", {}, ...head.map((text, index) => element("th", { scope: "col", ...look(index) }, text))),
      ),
      element(
        "tbody",
        {},
        ...rows.map((row, at) =>
          element(
            "tr",
            { class: at === marked ? "mark" : null },
            ...row.map((cell, index) =>
              element(index ? "td" : "th", { scope: index ? null : "row", ...look(index) }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}
