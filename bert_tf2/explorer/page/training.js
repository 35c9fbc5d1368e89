// The curves of trainings, one chart for each number, with all runs in it.

import { controls, slider, table } from "./controls.js";
import { element, lineChart, notice, number, section } from "./draw.js";

export const title = "Training";

const EVAL = "eval/";
const SECONDS = 10; // between two looks at a training that runs
const RUNNING = 120; // seconds without a point after which a training is taken for ended

// In this order; others follow the losses, by name.
const FIRST = ["loss", "masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy", "next_sentence_accuracy"];
const LAST = ["learning_rate", "gradient_norm", "examples/sec"];

const step = (value) => value.toLocaleString("en-US");

export async function render(container, context) {
  const { state, signal } = context;
  let facts = await context.api("/api/training");
  const status = element("p", { class: "explain", role: "status" });
  const charts = element("div", {});
  const smooth = () => Number(state.get("smooth", 0));
  const draw = () => {
    status.textContent = told(facts);
    charts.replaceChildren(...facts.problems.map((text) => notice("error", text)), ...parts(facts, smooth(), context.model));
  };
  if (!facts.runs.length && !facts.problems.length) {
    container.append(section("Curves of a training", {
      text: [["These weights are not in the folder of a training. With ", element("code", {}, "--training_dir=OUTPUT_DIR"), ", which may be repeated, explore.py shows the curves of trainings here."]],
    }));
    return;
  }
  container.append(
    section("Curves of a training", { text: "Each point is the mean over the steps since the point before; dots are evaluations, on other text than the training's if there is some. Several runs are in one chart. Smoothing draws a moving average over the points, and leaves them behind it." }),
    controls(slider({ label: "Smoothing", value: smooth(), change: (value) => { state.set({ smooth: value || null }); draw(); } })),
    status, charts);
  draw();
  const timer = setInterval(async () => {
    if (!facts.runs.some(running) || document.hidden) return;
    const next = await context.api("/api/training").catch(() => null); // the server ended; the curves stay
    if (!next || signal.aborted) return;
    const changed = JSON.stringify(next.runs.map((run) => run.updated)) !== JSON.stringify(facts.runs.map((run) => run.updated));
    facts = next;
    if (changed && !charts.contains(document.activeElement)) draw();
    else status.textContent = told(facts);
  }, SECONDS * 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function running(run) {
  return Date.now() / 1000 - run.updated < RUNNING;
}

function told({ runs }) {
  return runs.map((run) => {
    const last = Math.max(...Object.values(run.scalars).flatMap(([steps]) => steps.at(-1) ?? 0));
    const when = running(run) ? `running, read again every ${SECONDS} seconds` : `last point ${new Date(run.updated * 1000).toLocaleString("en-GB")}`;
    return `${run.name}: ${step(last)} steps, ${when}.`;
  }).join(" ");
}

function parts(facts, smooth, model) {
  const { runs } = facts;
  if (!runs.length) return [];
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.scalars)).map((name) => name.replace(EVAL, "")))];
  const middle = names.filter((name) => !FIRST.includes(name) && !LAST.includes(name)).sort();
  const ordered = [...FIRST, ...middle, ...LAST].filter((name) => names.includes(name));
  return [
    ...settings(facts),
    element("div", { class: "pair charts" }, ...ordered.map((name) => chart(name, runs, smooth, model))),
  ];
}

function settings({ runs, settings: different }) {
  const names = Object.keys(different);
  if (!names.length) return [];
  return [section("What is different", { text: "The settings that are not the same in all runs.", level: "h3" }, table({
    label: "Settings that differ",
    head: ["setting", ...runs.map((run) => run.name)],
    rows: names.map((name) => [element("code", {}, name), ...different[name]]),
  }))];
}

function chart(name, runs, smooth, model) {
  const series = runs.flatMap((run, color) => {
    const several = runs.length > 1;
    const points = pointsOf(run.scalars[name]);
    const evaluated = pointsOf(run.scalars[EVAL + name]);
    const trained = several ? run.name : "training";
    return [
      ...(points && smooth ? [{ name: `${trained}, as measured`, points, color, faint: true }] : []),
      ...(points ? [{ name: trained, points: smoothed(points, smooth), color, dots: points.length === 1 }] : []),
      ...(evaluated ? [{ name: several ? `${run.name}, evaluation` : "evaluation", points: evaluated, color: several ? color : color + 1, dots: true }] : []),
    ];
  });
  const broken = runs.filter((run) => [name, EVAL + name].some((each) => run.scalars[each]?.[1].includes(null)));
  return section(name, {
    level: "h3",
    text: [about(name, model), broken.length ? `Not finite at some steps: ${broken.map((run) => run.name).join(", ")}.` : ""].filter(Boolean),
  }, lineChart({
    series, label: `${name} by step`, xLabel: "step", formatX: step, width: 520, height: 240, captioned: false,
    formatY: name === "learning_rate" ? (value) => value.toExponential(2) : number,
    formatTick: name === "learning_rate" ? (value) => (value ? value.toExponential(1) : "0") : undefined,
    low: /accuracy|examples/.test(name) ? 0 : null,
  }));
}

function pointsOf(columns) {
  return columns && columns[0].map((at, index) => [at, columns[1][index]]);
}

// A moving average that gives a point `weight` times the weight of the next one, and makes up for the missing past.
export function smoothed(points, weight) {
  let sum = 0;
  let total = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, null];
    sum = sum * weight + y;
    total = total * weight + 1;
    return [x, sum / total];
  });
}

function about(name, { config }) {
  const guess = Math.log(config.vocab_size).toFixed(2);
  const known = {
    loss: "What the training makes smaller: the sum of the losses of its tasks.",
    masked_lm_loss: `The cross entropy of the masked words. A guess without any knowledge, one of ${step(config.vocab_size)} words, has ln ${step(config.vocab_size)} = ${guess}.`,
    next_sentence_loss: "The cross entropy of whether the second text follows the first. A guess has ln 2 = 0.69.",
    masked_lm_accuracy: "The share of masked words whose most probable word is the right one.",
    next_sentence_accuracy: "The share of pairs judged rightly; a guess has 0.5.",
    learning_rate: "It rises in the warmup steps, and falls to 0 at the end.",
    gradient_norm: "The norm of all gradients together, before they are clipped to 1.",
    "examples/sec": "How fast it went.",
  };
  return known[name] ?? "";
}
