// The parts of the model, its positions, and every variable.

import { table } from "./controls.js";
import { bars, heatMap, number, percent, section } from "./draw.js";
import { code, variables, whole } from "./model_variables.js";

export const title = "Model";

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
      ? "The file also holds what only a training needs, the arrays of the optimizer and the step: " +
        `${whole(facts.optimizer)}.`
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
  return names.length ? `Not in the file, and therefore random here: ${listed(names)}.` : "";
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
        "These weights have no masked-LM head. A model with one would multiply its output with the word " +
        `embeddings, ${size} parameters, which are there once.`,
    });
  }
  return section(
    "One table at both ends",
    {
      text: [
        "The masked-LM head has no weights of its own for the words: it multiplies the transformed state, " +
          "[hidden_size], with the word embeddings, [vocab_size, hidden_size], transposed. A word's score is " +
          "the dot product of the state and the word's own embedding. It is not a copy that was made once: " +
          `there is one variable, which gets gradients from both ends. This saves ${size} parameters ` +
          "(vocab_size x hidden_size, whatever the length of the sentences), " +
          `${percent(saved / (parameters + saved))} of what the model would have otherwise.`,
        "The bias is at the output only. It can say how frequent a word is in general, whatever the state " +
          "is. At the input, there is nothing that it could be added to but the embedding itself, which is " +
          "learned anyway.",
      ],
      codes: [
        context.codeLink("head.table", "the table", "the table"),
        context.codeLink("head.logits", "where the states are multiplied with it", "the product"),
        context.codeLink("head.bias", "the bias", "the bias"),
      ],
    },
    table({
      label: "Names of Hugging Face that are one array",
      head: ["In Hugging Face's BertLMPredictionHead", "is the same array as", "which is here"],
      rows: copies.map(({ copy, of, name }) => [code(copy), code(of), code(name)]),
    }),
  );
}

// The learned table, whose directions mean nothing by themselves

function positions({ shown, cosines }, context) {
  const step = shown.length > 1 ? shown[1] - shown[0] : 1;
  return section(
    "How alike is each position to each other?",
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
