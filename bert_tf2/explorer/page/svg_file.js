// Saves a picture of the page as an SVG file: its cells, lines and texts, in the colors of the page.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MOST_CELLS = 20000; // a larger heat map is saved as an image within the file
const INLINED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];

// A button that saves the element `picture`.
export function saveButton(picture, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "save";
  button.textContent = "Save as SVG";
  button.setAttribute("aria-label", `Save as SVG: ${name}`);
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([toSvg(picture)], { type: "image/svg+xml" }));
    link.download = `${name
      .toLowerCase()
      .replaceAll(/[^a-z0-9]+/g, "-")
      .replaceAll(/^-|-$/g, "")}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  return button;
}

// The text of an SVG file that shows an element.
export function toSvg(root) {
  const origin = root.getBoundingClientRect();
  const file = { parts: [], left: origin.left, top: origin.top, right: origin.right, bottom: origin.bottom };
  draw(root, file);
  const [width, height] = [file.right - file.left, file.bottom - file.top].map((size) => Math.ceil(size) + 16);
  const paper = getComputedStyle(document.body).backgroundColor;
  return (
    `<svg xmlns="${NAMESPACE}" width="${width}" height="${height}" viewBox="-8 -8 ${width} ${height}">\n<rect ` +
    `x="-8" y="-8" width="${width}" height="${height}" fill="${paper}"/>\n${file.parts.join("\n")}\n</svg>\n`
  );
}

function draw(node, file) {
  if (node.nodeType === Node.TEXT_NODE) return texts(node, file);
  if (
    node.nodeType !== Node.ELEMENT_NODE ||
    node.matches(".save, .code-link, .cursor, .how, .only-heard, select, input")
  )
    return undefined;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden") return undefined;
  const box = placed(node, file);
  if (node.localName === "canvas") return cells(node, box, file);
  if (node.localName === "svg") return inner(node, box, file);
  background(box, style, file);
  for (const child of node.childNodes) draw(child, file);
  return undefined;
}

function placed(node, file) {
  const { left, top, width, height, right, bottom } = node.getBoundingClientRect();
  if (width && height) [file.right, file.bottom] = [Math.max(file.right, right), Math.max(file.bottom, bottom)];
  return { x: left - file.left, y: top - file.top, width, height };
}

const short = (value) => Number(value.toFixed(2));
const rectangle = ({ x, y, width, height }, more) =>
  `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" ${more}/>`;

function background(box, style, file) {
  if (!box.width || !box.height) return;
  const filled = !/^rgba\(.*, 0\)$|^transparent$/.test(style.backgroundColor);
  const line = parseFloat(style.borderTopWidth) > 0 && parseFloat(style.borderLeftWidth) > 0;
  const radius = parseFloat(style.borderTopLeftRadius) || 0;
  if (filled || line)
    file.parts.push(
      rectangle(
        box,
        `rx="${radius}" fill="${filled ? style.backgroundColor : "none"}" ` +
          `stroke="${line ? style.borderTopColor : "none"}"`,
      ),
    );
}

function cells(canvas, box, file) {
  if (!canvas.width || !canvas.height) return;
  if (canvas.width * canvas.height > MOST_CELLS) {
    file.parts.push(
      `<image x="${short(box.x)}" y="${short(box.y)}" width="${short(box.width)}" ` +
        `height="${short(box.height)}" preserveAspectRatio="none" image-rendering="pixelated" ` +
        `href="${canvas.toDataURL()}"/>`,
    );
    return;
  }
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const [width, height] = [box.width / canvas.width, box.height / canvas.height];
  const drawn = [];
  for (let index = 0; index < canvas.width * canvas.height; index += 1) {
    const [red, green, blue, opacity] = data.subarray(4 * index, 4 * index + 4);
    if (!opacity) continue;
    const hex = [red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("");
    drawn.push(
      rectangle(
        {
          x: box.x + (index % canvas.width) * width,
          y: box.y + Math.floor(index / canvas.width) * height,
          width,
          height,
        },
        `fill="#${hex}"`,
      ),
    );
  }
  file.parts.push(`<g shape-rendering="crispEdges">${drawn.join("")}</g>`);
}

function inner(picture, box, file) {
  const copy = picture.cloneNode(true);
  const [from, to] = [
    [picture, ...picture.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  from.forEach((each, index) => {
    const style = getComputedStyle(each);
    for (const name of INLINED) to[index].style.setProperty(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, String(short(value)));
  copy.removeAttribute("class");
  copy.removeAttribute("tabindex");
  file.parts.push(new XMLSerializer().serializeToString(copy));
}

// The lines of a text, with the line breaks of the page.
function texts(node, file) {
  if (!node.data.trim()) return;
  const style = getComputedStyle(node.parentElement);
  const size = parseFloat(style.fontSize);
  if (!size) return;
  const lines = new Map(); // by their top
  const range = document.createRange();
  for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const line = lines.get(Math.round(box.top));
    if (line) Object.assign(line, { right: box.right, words: `${line.words} ${word}` });
    else
      lines.set(Math.round(box.top), {
        left: box.left,
        right: box.right,
        top: box.top,
        bottom: box.bottom,
        words: word,
      });
  }
  const look =
    `font-family="${escaped(style.fontFamily)}" font-size="${size}" font-weight="${style.fontWeight}" ` +
    `fill="${style.color}"`;
  const upright = !style.writingMode.startsWith("vertical");
  for (const { left, right, top, bottom, words } of lines.values()) {
    const [x, y] = [(upright ? left : (left + right) / 2) - file.left, (top + bottom) / 2 - file.top];
    const turned = upright ? "" : ` text-anchor="middle" transform="rotate(-90 ${short(x)} ${short(y)})"`;
    file.parts.push(`<text x="${short(x)}" y="${short(y + 0.35 * size)}" ${look}${turned}>${escaped(words)}</text>`);
  }
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}
