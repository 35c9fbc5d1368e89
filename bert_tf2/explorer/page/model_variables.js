// Every variable of the model: its names and size, and where the code uses it.

import { choice, controls, search, table } from "./controls.js";
import { element, number, section } from "./draw.js";

export const whole = (count) => count.toLocaleString("en-US");
export const code = (text) => element("code", {}, text);

const ORDERS = {
  file: ["as they are saved", () => 0],
  name: ["name", (a, b) => a.name.localeCompare(b.name, "en", { numeric: true })],
  parameters: ["parameters", (a, b) => b.parameters - a.parameters],
  norm: ["norm", (a, b) => b.norm - a.norm],
  deviation: ["standard deviation", (a, b) => b.deviation - a.deviation],
};

export function variables(facts, context) {
  const { state } = context;
  const shown = element("div", { class: "variables" });
  const details = element("div", { class: "details" });
  const found = element("p", { class: "explain", role: "status" });
  const draw = () => {
    const wanted = state.get("find", "").toLowerCase();
    const part = state.get("part", "");
    const rows = facts.variables
      .filter((row) => !part || row.part === part)
      .filter((row) =>
        [row.name, row.huggingface, row.model_garden].some((name) => name.toLowerCase().includes(wanted)),
      )
      .sort((ORDERS[state.get("sort")] ?? ORDERS.file)[1]);
    const parameters = rows.reduce((sum, row) => sum + row.parameters, 0);
    found.textContent = `${rows.length} of ${facts.variables.length} variables, ${whole(parameters)} parameters`;
    shown.replaceChildren(
      table({
        label: "Variables",
        tall: true,
        head: [
          "Name here and in the reference, in Hugging Face",
          "shape",
          "parameters",
          "norm",
          "mean",
          "std. deviation",
          "code",
        ],
        rows: rows.map((row) => [
          namesOf(row, details, context),
          shapeOf(row),
          whole(row.parameters),
          told(row.norm),
          told(row.mean),
          told(row.deviation),
          context.codeLink(row.code, `where ${row.name} is used`),
        ]),
        numeric: [2, 3, 4, 5],
      }),
    );
  };
  const change = (name) => (value) => {
    state.set({ [name]: value });
    draw();
  };
  draw();
  const wanted = facts.variables.find((row) => row.name === state.get("variable"));
  if (wanted) showNames(wanted, details, context);
  return section(
    "Every variable",
    {
      text:
        "The names are those of google-research/bert, which are also those of the checkpoints. A kernel is " +
        "[inputs, outputs] here; PyTorch's weight of the same layer is its transpose. Choose a name to see " +
        "its other names.",
    },
    controls(
      search({ label: "Find", value: state.get("find", ""), change: change("find") }),
      choice({
        label: "Part",
        options: [["", "all"], ...facts.parts.map((part) => [part.name, part.name])],
        value: state.get("part", ""),
        change: change("part"),
      }),
      choice({
        label: "Sort by",
        options: Object.entries(ORDERS).map(([name, [text]]) => [name, text]),
        value: state.get("sort", "file"),
        change: change("sort"),
      }),
    ),
    found,
    details,
    shown,
  );
}

const told = (value) => (value === null ? "not finite" : number(value));

function shapeOf(row) {
  return `[${row.shape.map(whole).join(", ")}]`;
}

function namesOf(row, details, context) {
  return element("span", { class: "names" }, opener(row, details, context), code(row.huggingface));
}

function opener(row, details, context) {
  const button = element("button", { type: "button", class: "as-text" }, code(row.name));
  button.addEventListener("click", () => {
    context.state.set({ variable: row.name });
    showNames(row, details, context, true);
  });
  return button;
}

function showNames(row, details, context, wanted = false) {
  const heading = element("h3", { tabindex: "-1" }, code(row.name));
  const close = element("button", { type: "button", class: "plain" }, "Close");
  close.addEventListener("click", () => {
    context.state.set({ variable: null });
    details.replaceChildren();
  });
  const names = [
    ["in Hugging Face", `${row.huggingface}${row.transposed ? " (transposed)" : ""}`],
    ["in Model Garden", row.model_garden || "none"],
    ["in Python, from a model of bert_tf2.heads", `model.${row.attribute.replace(/\.(\d+)\./g, "[$1].")}`],
    ["shape", `${shapeOf(row)} (${row.letters})`],
  ];
  details.replaceChildren(
    element(
      "div",
      { class: "detail" },
      element("div", { class: "part-head" }, heading, context.codeLink(row.code, `where ${row.name} is used`), close),
      element("dl", {}, ...names.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, code(value))])),
    ),
  );
  if (wanted) {
    heading.focus({ preventScroll: true });
    details.scrollIntoView({ block: "nearest" });
  }
}
