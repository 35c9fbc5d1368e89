// The learned positions beside the sinusoid's.

import { controls, choice, count, table } from "./controls.js";
import { element, heatMap, largest, lineChart, notice, number, percent, section } from "./draw.js";

export const title = "Positions";

const NAMES = { learned: "learned", sinusoid: "sinusoid", shuffled: "sinusoid, rows shuffled", random: "random numbers" };
const MEASURES = { cosine: "cosine", dot: "dot product" };

export async function render(container, context) {
  const { state } = context;
  const facts = await context.api("/api/positions", { rows: state.get("rows") });
  const shown = element("div", {});
  const draw = () => shown.replaceChildren(...parts(facts, state.get("measure", "cosine"), context));
  container.append(
    section("Why learned, and not predefined?", {
      text: [
        "The paper that introduced the Transformer adds a fixed pattern of sines and cosines to the words. BERT adds a table that is learned like any other. Column by column, the two have nothing in common, and they need not have: the matrices that read the positions are learned as well, so it does not matter into which directions a table is turned. What can be compared is what turning does not change.",
        unused(facts),
      ].filter(Boolean),
      codes: [context.codeLink("embeddings.positions", "where the positions are added")],
    }),
    controls(
      choice({
        label: "Similarity",
        options: Object.entries(MEASURES),
        value: state.get("measure", "cosine"),
        change: (value) => { state.set({ measure: value }); draw(); },
      }),
      count({
        label: `Rows, from the first (of ${facts.positions})`,
        value: facts.rows,
        low: Math.min(3, facts.positions),
        high: facts.positions,
        change: async (rows) => {
          const answer = await context.api("/api/positions", { rows }).catch((error) => ({ error }));
          if (context.signal.aborted) return;
          if (answer.error) {
            shown.replaceChildren(notice("error", answer.error.message));
            return;
          }
          state.set({ rows });
          Object.assign(facts, answer);
          draw();
          context.announce(verdict(facts, state.get("measure", "cosine")));
        },
      }),
    ),
    shown,
  );
  draw();
}

function unused({ positions, trained }) {
  if (trained === positions) return "";
  if (trained === 0) return "No row is more like its neighbor than random numbers are: this table looks untrained.";
  return `The rows from ${trained} on look as they were before training: their norms are equal, and no row is more like its neighbor than random numbers are. The training had no longer sequences, so only the first ${trained} of ${positions} rows are compared.`;
}

function verdict(facts, measure) {
  const { correlation } = facts.similarity[measure];
  const { aligned, smooth } = facts;
  const beyond = correlation.sinusoid - smooth.correlation[measure] > 0.1 && aligned.sinusoid - smooth.aligned > 0.1;
  const found = beyond
    ? "The learned table has more of the sinusoid than similar neighbors bring with them"
    : correlation.sinusoid > 0.1
      ? "Neighbors are alike, as in the sinusoid, and the figures show no more than that"
      : "There is no similarity to speak of";
  return `${found}. Where two positions are alike in the sinusoid, they tend to be alike in the learned table with a correlation of ${rounded(correlation.sinusoid)} (1 would be the same pattern, 0 none), and random rows whose neighbors are as alike as the learned ones' reach ${rounded(smooth.correlation[measure])}. Turned in the best way, the sinusoid explains ${percent(aligned.sinusoid)} of the learned table, ${percent(smooth.aligned)} of such random rows, and with its own rows shuffled ${percent(aligned.shuffled)} of the learned table.`;
}

function parts(facts, measure, context) {
  return [similar(facts, measure, context), figures(facts, measure), distance(facts, measure), waves(facts), directions(facts), norms(facts)];
}

function similar(facts, measure) {
  const matrices = facts.similarity[measure];
  const size = facts.shown.length;
  const most = measure === "cosine" ? 1 : Math.max(largest(matrices.learned.values), largest(matrices.sinusoid.values));
  const map = (name) => element("figure", { class: "beside-each-other" },
    element("figcaption", {}, `${NAMES[name][0].toUpperCase()}${NAMES[name].slice(1)}`),
    heatMap({
      values: matrices[name].values, rows: size, columns: size, scale: "signed", domain: [-most, most],
      label: `${MEASURES[measure]} of the positions, ${NAMES[name]}`,
      describe: (row, column, value) => `${facts.shown[row]} and ${facts.shown[column]}: ${number(value)}`,
    }));
  const step = facts.shown[1] - facts.shown[0];
  return section("How alike is each position to each other?", {
    text: `Each cell is the ${MEASURES[measure]} of two rows of a table; the first position is at the top and at the left. A diagonal that fades to both sides means that neighbors are alike.${step > 1 ? ` One of ${step} positions is shown; the figures below use all.` : ""}${measure === "dot" ? " The sinusoid is scaled to the norm of the learned table." : ""}`,
  }, element("div", { class: "pair" }, map("learned"), map("sinusoid")));
}

function figures(facts, measure) {
  const others = ["sinusoid", "shuffled", "random"];
  const correlation = facts.similarity[measure].correlation;
  return section("Are they alike?", { text: verdict(facts, measure) },
    table({
      label: "Figures that compare the learned positions with others",
      head: ["The learned table and", ...others.map((name) => NAMES[name])],
      rows: [
        ["correlation of the similarities", ...others.map((name) => rounded(correlation[name]))],
        ["explained after the best rotation", ...others.map((name) => percent(facts.aligned[name]))],
        ["correlation, random rows with such neighbors", rounded(facts.smooth.correlation[measure]), "", ""],
        ["explained, random rows with such neighbors", percent(facts.smooth.aligned), "", ""],
      ],
      numeric: [1, 2, 3],
    }),
    element("p", { class: "explain" }, `The two columns at the right show what the figures are where there is nothing to find; the last two rows, what they are for random rows whose neighbors are as alike as the learned ones' (an autoregressive series). A rotation is free enough to explain a part of anything: the more so, the fewer rows there are (${facts.rows}) for the dimensions (${facts.width}), and the more directions the other table uses.`));
}

function distance(facts, measure) {
  const curves = facts.similarity[measure].by_distance;
  return section("How far does a position see?", {
    text: `The mean ${MEASURES[measure]} of two positions by the distance between them. The sinusoid's depends on nothing but the distance; a learned table need not be so regular.`,
  }, lineChart({
    label: `Mean ${MEASURES[measure]} by distance`, xLabel: "distance", formatX: String,
    series: Object.entries(curves).map(([name, { values }]) => ({ name: NAMES[name], points: points(values) })),
  }));
}

function waves(facts) {
  const chart = (name) => {
    const { shape: [count, length], values } = facts.components[name];
    return lineChart({
      label: `First principal components, ${NAMES[name]}`, xLabel: "position", formatX: String, width: 460, height: 240, low: -1, high: 1,
      series: Array.from({ length: count }, (_, index) => ({
        name: `component ${index + 1}`, points: points(values.subarray(index * length, (index + 1) * length)),
      })),
    });
  };
  return section("Turned so that most of it shows", {
    text: "The rows of each table along the directions in which they vary most. Those of the sinusoid are slow waves over the positions. The components of any table whose neighbors are alike are waves, so waves alone do not show that a model found what the paper prescribes.",
  }, element("div", { class: "pair" }, chart("learned"), chart("sinusoid")));
}

function directions(facts) {
  const ranks = Object.entries(facts.variance).map(([name, { effective_rank: rank }]) => `${NAMES[name]} ${rank.toFixed(1)}`);
  return section("How many directions do they use?", {
    text: `The share of a table's variance in its first principal components together. The effective number of directions is ${ranks.join(", ")}, of ${facts.width}.`,
  }, lineChart({
    label: "Share of the variance by number of components", xLabel: "components", formatX: String, low: 0, high: 1, formatY: percent, formatTick: (value) => `${Math.round(100 * value)} %`,
    series: Object.entries(facts.variance).map(([name, { shares }]) => ({ name: NAMES[name], points: points(shares.values, 1) })),
  }));
}

function norms(facts) {
  return section("How large are they?", {
    text: "The norm of each learned row, of all positions. What was never trained shows here as an even line.",
  }, lineChart({
    label: "Norm by position", xLabel: "position", formatX: String, low: 0,
    series: [{ name: "norm", points: points(facts.norms.values) }],
  }));
}

// Two digits, and no minus before a zero.
function rounded(value) {
  return value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "\u2212");
}

function points(values, first = 0) {
  return Array.from(values, (value, index) => [index + first, value]);
}
