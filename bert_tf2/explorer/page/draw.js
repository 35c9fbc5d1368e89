// The drawing functions of the views: elements, color scales, heat maps, vectors and bars.
//
// All colors are variables of style.css, which has a set for light and a set for dark. All values that the pointer can
// reach can also be reached with the keyboard, and are given in words.

import { roving, singleStop } from "./roving.js";
import { saveButton } from "./svg_file.js";

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A line of text; `kind` is "error" or "hint".
export function notice(kind, text) {
  return element("p", { class: `notice ${kind}`, role: kind === "error" ? "alert" : null }, text);
}

// A picture with a button that saves it.
export function picture(name, shown) {
  return element("figure", { class: "picture" }, shown, saveButton(shown, name));
}

// A part of a view: a heading, an explanation, the buttons with code, and the content.
export function section(title, { text = [], codes = [], id = null, level = "h2" } = {}, ...children) {
  const heading = element(level, { tabindex: "-1" }, title);
  const explained = [text].flat().map((line) => element("p", { class: "explain" }, ...[line].flat()));
  return element(
    "section",
    { id, class: "part" },
    roving(element("div", { class: "part-head" }, heading, ...codes)),
    ...explained,
    ...children,
  );
}

// Numbers with few digits, for reading.
export function number(value, digits = 3) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-3
      ? value.toExponential(2)
      : value.toFixed(Math.max(0, digits - Math.max(0, Math.floor(Math.log10(size)))));
  return text.replaceAll("-", "\u2212");
}

export function percent(value) {
  if (value > 0 && value < 0.0001) return "under 0.01 %";
  return `${(100 * value).toFixed(value >= 0.1 ? 1 : 2)} %`;
}

export function norm(values) {
  let sum = 0;
  for (const value of values) sum += value * value;
  return Math.sqrt(sum);
}

export function largest(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most;
}

// Colors

const STOPS = {
  weight: ["--none", "--weight-mid", "--weight-high"],
  positive: ["--none", "--positive-mid", "--positive-high"],
  negative: ["--none", "--negative-mid", "--negative-high"],
};
let colors = null;
const redrawn = new Set();

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16));
  };
  return Object.fromEntries(Object.entries(STOPS).map(([name, stops]) => [name, stops.map(rgb)]));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = null;
  for (const entry of [...redrawn]) entry.canvas.isConnected ? entry.draw() : redrawn.delete(entry);
});

// The color of a share of the scale, [red, green, blue]: "weight" from 0 to 1, "signed" from -1 to 1.
export function color(scale, share) {
  colors ??= readColors();
  const stops = colors[scale === "weight" ? "weight" : share < 0 ? "negative" : "positive"];
  const at = Math.min(Math.abs(share), 1) * 2;
  const low = Math.min(Math.floor(at), 1);
  return stops[low].map((from, index) => Math.round(from + (stops[low + 1][index] - from) * (at - low)));
}

// Numbers as colored cells, [rows, columns]; gamma below 1 shows small weights more clearly.
function paint(canvas, { values, rows, columns, scale, domain, gamma }) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let index = 0; index < rows * columns; index += 1) {
    if (index >= values.length) continue; // transparent
    const share =
      scale === "weight"
        ? (values[index] - domain[0]) / (domain[1] - domain[0] || 1)
        : values[index] / (domain[1] || 1);
    const shaded = Math.sign(share) * Math.min(Math.abs(share), 1) ** gamma;
    image.data.set([...color(scale, scale === "weight" ? Math.max(0, shaded) : shaded), 255], index * 4);
  }
  context.putImageData(image, 0, 0);
}

// Cells that the pointer or the arrow keys select.
//
//   values           Float32Array or array, row after row
//   label            the name of the picture, for screen readers
//   scale            "weight" (domain [low, high], low is paper) or "signed" (domain [, high] around 0)
//   describe         (row, column, value) => text of a cell
//   select           (row, column) => called on a click or Enter
//   show             (text) => shows the text of the cell; "" if no cell is selected
function cells({ values, rows, columns, label, scale, domain, gamma = 1, describe, select, show, cellHeight }) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const cursor = element("span", { class: "cursor", "aria-hidden": "true", hidden: true });
  const field = element(
    "div",
    {
      class: "cells",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${label}; arrow keys read the values`,
    },
    canvas,
    cursor,
  );
  const draw = () => paint(canvas, { values, rows, columns, scale, domain, gamma });
  draw();
  redrawn.add({ canvas, draw });
  let at = null;
  field.style.setProperty("--columns", columns);
  field.style.setProperty("--rows", rows);
  if (cellHeight) field.style.setProperty("--cell-height", cellHeight);
  const go = (row, column) => {
    const index = row * columns + column;
    if (index >= values.length) return;
    at = [row, column];
    cursor.hidden = false;
    Object.assign(cursor.style, {
      left: `${(100 * column) / columns}%`,
      top: `${(100 * row) / rows}%`,
      width: `${100 / columns}%`,
      height: `${100 / rows}%`,
    });
    show(describe(row, column, values[index]), row, column);
  };
  const leave = () => {
    at = null;
    cursor.hidden = true;
    show("", null, null);
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (offset, size, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
    return [place(event.clientY - box.top, box.height, rows), place(event.clientX - box.left, box.width, columns)];
  };
  field.addEventListener("pointermove", (event) => go(...under(event)));
  field.addEventListener("pointerdown", (event) => go(...under(event)));
  field.addEventListener("pointerleave", () => {
    if (document.activeElement !== field) leave();
  });
  field.addEventListener("focus", () => {
    if (at === null && field.matches(":focus-visible")) go(0, 0);
  });
  field.addEventListener("blur", leave);
  field.addEventListener("click", (event) => select?.(...under(event)));
  field.addEventListener("keydown", (event) => {
    const [row, column] = at ?? [0, 0];
    const last = columns - 1;
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, last],
      PageUp: [0, column],
      PageDown: [rows - 1, column],
    };
    if (event.key === "Enter" && select) select(row, column);
    else if (event.key in moves) {
      const [nextRow, nextColumn] = moves[event.key];
      const beyond = nextRow < 0 ? -1 : nextRow >= rows ? 1 : 0;
      if (
        beyond &&
        field.dispatchEvent(new CustomEvent("beyond", { bubbles: true, cancelable: true, detail: beyond })) === false
      ) {
        event.preventDefault();
        return;
      }
      go(Math.min(rows - 1, Math.max(0, nextRow)), Math.min(last, Math.max(0, nextColumn)));
    } else return;
    event.preventDefault();
  });
  return field;
}

// A small picture of numbers, [rows, columns], without interaction.
export function thumbnail({ values, rows, columns, domain = [0, 1], gamma = 0.6 }) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const draw = () => paint(canvas, { values, rows, columns, scale: "weight", domain, gamma });
  draw();
  redrawn.add({ canvas, draw });
  return canvas;
}

function readout() {
  return element("output", { class: "readout", "aria-live": "polite" });
}

const LABEL = 12; // pixels that a label needs

// A matrix: values [rows, columns]. Labels are shown if cells are large enough.
//
// The arguments of `cells`, and: rowLabels, columnLabels, rowTitle ("from"), columnTitle ("to"), hover(row, column)
// (null if the pointer is outside), a hint that describes the scale, and `how` to use the matrix, which a saved picture
// does not have. The domain defaults to the range of the values.
export function heatMap(given) {
  const {
    values,
    rows,
    columns,
    label,
    scale = "signed",
    rowLabels,
    columnLabels,
    rowTitle = "",
    columnTitle = "",
    hover,
  } = given;
  const domain = given.domain ?? [0, largest(values)];
  const where = (labels, index) => (labels ? `${labels[index]} (${index})` : index);
  const describe =
    given.describe ??
    ((row, column, value) => `${where(rowLabels, row)}, ${where(columnLabels, column)}: ${number(value)}`);
  const told = readout();
  const hint = given.hint ?? `${number(scale === "weight" ? domain[0] : -domain[1])} to ${number(domain[1])}`;
  const rest = () => told.replaceChildren(hint, element("span", { class: "how" }, given.how ? ` ${given.how}` : ""));
  rest();
  const show = (text, row, column) => {
    if (text) told.textContent = text;
    else rest();
    hover?.(row, column);
  };
  const field = cells({ ...given, scale, domain, describe, show });
  const names = (labels, kind) =>
    element(
      "div",
      { class: `labels ${kind}`, "aria-hidden": "true" },
      ...(labels ?? []).map((text) => element("span", {}, element("span", {}, text))),
    );
  const map = element(
    "div",
    { class: "heat-map" },
    element("span", { class: "axis row-axis", "aria-hidden": "true" }, rowTitle),
    element("span", { class: "axis column-axis", "aria-hidden": "true" }, columnTitle),
    names(columnLabels, "above"),
    names(rowLabels, "beside"),
    field,
    told,
  );
  map.style.setProperty("--columns", columns);
  map.style.setProperty("--rows", rows);
  new ResizeObserver(([entry]) => {
    thin(map.querySelector(".above"), entry.contentRect.width / columns);
    thin(map.querySelector(".beside"), entry.contentRect.height / rows);
  }).observe(field);
  map.dataset.label = label;
  return picture(label, map);
}

// If cells are too small for labels, only every second (third, ...) label is shown.
function thin(labels, room) {
  const step = Math.ceil(LABEL / Math.max(room, 0.1));
  for (const [index, label] of [...labels.children].entries()) label.classList.toggle("left-out", index % step !== 0);
}

// A vector as a strip of cells; a long vector has several lines. Strips to be compared get the same domain.
export function strip({ values, label, domain = null, name = label, wrap = 128 }) {
  const columns = Math.min(values.length, wrap);
  const rows = Math.ceil(values.length / columns);
  const most = domain ?? largest(values);
  const told = readout();
  const about = `norm ${number(norm(values))}; colors to \u00b1${number(most)}`;
  told.textContent = about;
  const describe = (row, column, value) => `[${row * columns + column}] ${number(value)}`;
  const show = (text) => {
    told.textContent = text || about;
  };
  const field = cells({
    values,
    rows,
    columns,
    label,
    scale: "signed",
    domain: [-most, most],
    describe,
    show,
    cellHeight: rows > 1 ? "9px" : "18px",
  });
  field.classList.add("strip-cells");
  return element("div", { class: "strip" }, element("span", { class: "strip-name" }, ...[name].flat()), told, field);
}

// Strips below each other, which are a single stop of the Tab key: the arrows up and down move between the strips and
// the buttons between them.
export function stack(name, ...children) {
  const strips = element("div", { class: "stack" }, ...children);
  const group = picture(name, strips);
  const items = singleStop(group, ".strip-cells, .code-link, .save");
  const move = (from, by) => items()[items().indexOf(from) + by]?.focus({ focusVisible: true });
  group.addEventListener("beyond", (event) => {
    move(event.target, event.detail);
    event.preventDefault();
  });
  group.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by || !event.target.matches(".code-link, .save")) return;
    move(event.target, by);
    event.preventDefault();
  });
  return group;
}

// A bar; `width` is a length of CSS.
export function bar(width, kind = "bar") {
  const drawn = element("span", { class: kind });
  drawn.style.width = width;
  return drawn;
}

// A table with a bar in each row: items of {label, value, note, mark}. Values are shares of `most`.
export function bars({ items, label, most = null, format = number }) {
  const end = most ?? largest(items.map((item) => item.value));
  const body = element(
    "tbody",
    {},
    ...items.map((item) => {
      const drawn = bar(`${end ? (100 * Math.abs(item.value)) / end : 0}%`, item.value < 0 ? "bar negative" : "bar");
      return element(
        "tr",
        { class: item.mark ? "mark" : null },
        element("th", { scope: "row" }, item.label),
        element("td", { class: "number" }, format(item.value)),
        element("td", { class: "bar-cell", "aria-hidden": "true" }, drawn),
        element("td", { class: "note" }, item.note ?? ""),
      );
    }),
  );
  return picture(label, element("table", { class: "bars" }, element("caption", { class: "only-heard" }, label), body));
}
