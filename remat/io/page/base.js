// Page of remat: a canvas with one horizontal axis that zooms, and a list that describes the place under the pointer.
// Names are data from files: they reach the page only as text (textContent, fillText).
const data = JSON.parse(document.getElementById("data").textContent);
const element = id => document.getElementById(id);
const canvas = element("canvas"), pen = canvas.getContext("2d");
const { INK, GREY, RULE: PALE, FIRST, AGAIN, FETCHED, GIVEN, FAULT } = PALETTE, FOUND = "#000000";
const FONT = "12px system-ui, sans-serif";
const LEFT = 62, RIGHT = 8;  // pixels next to the picture

// ---- text

function bytes(size) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (power < 5 && size >= 1024 ** (power + 1)) power++;
  return power ? (size / 1024 ** power).toFixed(2) + " " + units[power] : size + " bytes";
}

const exact = size => size < 1024 ? bytes(size) : `${bytes(size)} (${size.toLocaleString("en")} bytes)`;
const number = value => Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });

function clipped(text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}

function write(text, x, y, align = "left", colour = INK) {
  pen.font = FONT; pen.textAlign = align; pen.textBaseline = "middle"; pen.fillStyle = colour;
  pen.fillText(text, x, y);
}

/** Write over lines: letters with a white edge. */
function writeOver(text, x, y, align = "left", colour = INK) {
  pen.font = FONT; pen.textAlign = align; pen.textBaseline = "middle";
  pen.strokeStyle = "#fff"; pen.lineWidth = 3; pen.setLineDash([]);
  pen.strokeText(text, x, y);
  write(text, x, y, align, colour);
}

/** Write a number below the axis, within the canvas. */
function writeTick(text, x, y) {
  pen.font = FONT;
  write(text, Math.min(x, view.width - pen.measureText(text).width / 2 - 1), y, "center");
}

function line(x0, y0, x1, y1, colour = INK, dash = [], width = 1) {
  pen.strokeStyle = colour; pen.lineWidth = width; pen.setLineDash(dash);
  pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); pen.setLineDash([]);
}

/** Return round numbers between two values, about `count` of them; `base` 2 for bytes. */
function ticks(low, high, count, base = 10) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const unit = base ** Math.floor(Math.log(rough) / Math.log(base) + 1e-9);
  const step = (base === 2 ? [1, 2] : [1, 2, 5, 10]).map(k => k * unit).find(each => each >= rough * 0.999);
  const result = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12); k++) result.push(k * step);
  return result;
}

/** Return the first position in ascending `values` that is above `value`. */
function above(values, value) {
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] > value) high = middle; else low = middle + 1; }
  return low;
}

// ---- window of the axis

const view = { low: 0, high: 1, width: 0, height: 0 };
const toPixel = x => LEFT + (x - view.low) / (view.high - view.low) * (view.width - LEFT - RIGHT);
const toValue = px => view.low + (px - LEFT) / (view.width - LEFT - RIGHT) * (view.high - view.low);

/** Show the values from `low` to `high`, within the picture's extent. */
function show(low, high) {
  const [first, last] = picture.extent();
  const span = Math.min(Math.max(high - low, picture.closest()), last - first);
  view.low = Math.min(Math.max((low + high - span) / 2, first), last - span);
  view.high = view.low + span;
  request();
}

const zoom = (factor, at = (view.low + view.high) / 2) => show(at - (at - view.low) * factor, at + (view.high - at) * factor);
const all = () => show(...picture.extent());

let waiting = false;
function request() {
  if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); }
}

function draw() {
  const began = performance.now(), ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  view.width = box.width; view.height = box.height;
  canvas.width = Math.round(box.width * ratio); canvas.height = Math.round(box.height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  pen.font = FONT;
  picture.draw();
  document.body.dataset.milliseconds = (performance.now() - began).toFixed(1);
}

function describe(rows) {
  const list = element("detail");
  list.replaceChildren();
  for (const [word, text] of rows) {
    for (const [tag, content] of [["dt", word], ["dd", text]]) {
      const node = document.createElement(tag);
      node.textContent = content;
      list.append(node);
    }
  }
}

/** Show colours with their meaning; a third value is a sign in that colour, in place of a box. */
function legend(entries) {
  element("legend").replaceChildren(...entries.map(([colour, text, glyph]) => {
    const entry = document.createElement("li"), box = document.createElement(glyph ? "b" : "i");
    if (glyph) { box.textContent = glyph; box.style.color = colour; } else box.style.background = colour;
    entry.append(box, text);
    return entry;
  }));
}

function button(text, title, act) {
  const made = document.createElement("button");
  made.textContent = text; made.title = title;
  made.addEventListener("click", act);
  element("extra").append(made, " ");
  return made;
}
