// The parts of the model, its positions, and every variable.

import { choice, controls, search, table } from "./controls.js";
import { bars, element, heatMap, number, percent, section } from "./draw.js";

export const title = "Model";

const whole = (count) => count.toLocaleString("en-US");
const code = (text) => element("code", {}, text);

export async function render(container, context) {
  const facts = await context.api("/api/inventory");
  container.append(
    totals(facts),
    sharing(facts, context),
    ...(facts.positions ? [positions(facts.positions, context)] : []),
    variables(facts, context),
  );
}

function totals(facts) {
  const more = [
    facts.optimizer
      ? `The file also has ${whole(facts.optimizer)} arrays that only training needs: the optimizer and the step.`
      : "",
    facts.unused.length ? `The file also has variables that this model does not use: ${listed(facts.unused)}.` : "",
    missing(facts.variables),
  ].filter(Boolean);
  return section(
    "Where are the parameters?",
    {
      text: [
        `${whole(facts.parameters)} parameters in ${facts.variables.length} variables, from a ${facts.kind}. ` +
          "Every block has the same sizes.",
        ...more,
      ],
    },
    bars({
      label: "Parameters by part",
      format: whole,
      items: facts.parts.map((part) => ({
        label: part.name,
        value: part.parameters,
        note: `${percent(part.parameters / facts.parameters)}, ${part.variables} variables`,
      })),
    }),
  );
}

function missing(rows) {
  const names = rows.filter((row) => !row.in_file).map((row) => row.name);
  return names.length ? `These variables are not in the file and have random values: ${listed(names)}.` : "";
}

function listed(names, most = 5) {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}

// Questions about the decoder of the masked-LM head

function sharing({ copies, parameters }, context) {
  const { vocab_size, hidden_size } = context.model.config;
  const saved = vocab_size * hidden_size;
  const size = `${whole(vocab_size)} x ${whole(hidden_size)} = ${whole(saved)}`;
  if (!context.model.heads.includes("masked_lm")) {
    return section("One table at both ends?", {
      text:
        "These weights have no masked-LM head. A model with a masked-LM head multiplies its output by the word " +
        `embeddings, ${size} parameters, which it stores once.`,
    });
  }
  return section(
    "One table at both ends",
    {
      text: [
        "The masked-LM head has no weights of its own for the words: it multiplies the transformed state, " +
          "[hidden_size], by the transposed word embeddings, [vocab_size, hidden_size]. The score of a word is " +
          "the dot product of the state and the word's embedding. The table is not a copy: both ends share one " +
          `variable, which gets gradients from both ends. This saves ${size} parameters ` +
          "(vocab_size x hidden_size, independent of the length of the sentences), " +
          `${percent(saved / (parameters + saved))} of the parameters of a model without sharing.`,
        "Only the output has a bias, which learns how frequent a word is, independent of the state. The input " +
          "needs no bias, because a bias there would be added to the embedding, which is learned anyway.",
      ],
      codes: [
        context.codeLink("head.table", "the table", "the table"),
        context.codeLink("head.logits", "where the states are multiplied by the table", "the product"),
        context.codeLink("head.bias", "the bias", "the bias"),
      ],
    },
    table({
      label: "Names of Hugging Face that share an array",
      head: ["In Hugging Face's BertLMPredictionHead", "is the same array as", "name here"],
      rows: copies.map(({ copy, of, name }) => [code(copy), code(of), code(name)]),
    }),
  );
}

// The learned table of positions: only its cosines have a meaning, not its directions

function positions({ shown, cosines }, context) {
  const step = shown.length > 1 ? shown[1] - shown[0] : 1;
  return section(
    "How alike are the positions?",
    {
      text: [
        "Each cell is the cosine of two rows of the table; position 0 is at the top and at the left. A " +
          "diagonal that fades to both sides means that neighbors are " +
          `alike.${step > 1 ? ` One of ${step} positions is shown.` : ""}`,
      ],
      codes: [context.codeLink("embeddings.positions", "where the positions are added")],
    },
    heatMap({
      values: cosines.values,
      rows: shown.length,
      columns: shown.length,
      domain: [-1, 1],
      label: "Cosines of the positions",
      describe: (row, column, value) => `${shown[row]} and ${shown[column]}: ${number(value)}`,
    }),
  );
}

// Every variable: its names and size, and where the code uses it

const ORDERS = {
  file: ["as they are saved", () => 0],
  name: ["name", (a, b) => a.name.localeCompare(b.name, "en", { numeric: true })],
  parameters: ["parameters", (a, b) => b.parameters - a.parameters],
  norm: ["norm", (a, b) => b.norm - a.norm],
  deviation: ["standard deviation", (a, b) => b.deviation - a.deviation],
};

function variables(facts, context) {
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
        "The names are the names in google-research/bert and in checkpoints. A kernel is [inputs, outputs]; " +
        "PyTorch's weight of the same layer is its transpose. Choose a name to see the variable's other names.",
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
