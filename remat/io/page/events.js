// ---- pointer, keyboard, search

const pointers = new Map();
let moved = 0;
const spread = () => { const [a, b] = [...pointers.values()]; return [Math.abs(a - b), (a + b) / 2]; };

canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const span = view.high - view.low, room = view.width - LEFT - RIGHT;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(view.low + event.deltaX / room * span, view.high + event.deltaX / room * span);
  else zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), toValue(event.offsetX));
}, { passive: false });
canvas.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, event.offsetX);
  moved = 0;
  if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  if (event.pointerType !== "mouse") picture.point(event.offsetX, event.offsetY);
});
canvas.addEventListener("pointermove", event => {
  const last = pointers.get(event.pointerId);
  if (last === undefined) {
    picture.point(event.offsetX, event.offsetY);
  } else if (pointers.size === 1) {
    const shift = (last - event.offsetX) / (view.width - LEFT - RIGHT) * (view.high - view.low);
    moved += Math.abs(last - event.offsetX);
    if (moved > 3) show(view.low + shift, view.high + shift);
    pointers.set(event.pointerId, event.offsetX);
  } else if (pointers.size === 2) {
    const [old, centre] = spread(), value = toValue(centre);
    pointers.set(event.pointerId, event.offsetX);
    const [now] = spread();
    if (old > 0 && now > 0) zoom(old / now, value);
  }
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, event => pointers.delete(event.pointerId));

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === element("find");
  if (typing && event.key !== "Escape") return;
  const acts = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": all, "/": () => element("find").focus(), Enter: next,
    Escape: () => { element("find").value = ""; find(); canvas.focus(); } };
  if (event.key === "Enter" && event.target !== canvas) return;
  if (event.target === canvas && picture.key(event.key.length === 1 ? event.key.toLowerCase() : event.key)) event.preventDefault();
  else if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
}

function find() {
  const found = picture.find(element("find").value);
  element("found").textContent = element("find").value ? `${found.toLocaleString("en")} found` : "";
}

function next() {
  const at = picture.next();
  if (at) element("found").textContent = element("found").textContent.replace(/^.*?(?=[\d,]+ found)/, `${at.toLocaleString("en")} of `);
}

const picture = ({ schedule: schedulePicture, chart: chartPicture })[data.kind](data);
element("title").textContent = data.title;
let lines = element("lines");
if (data.kind === "chart" && data.lines.length) {  // folded on a phone, where they would push the picture down
  const folded = document.createElement("details"), summary = document.createElement("summary");
  summary.textContent = `without a schedule: ${data.lines.length}`;
  folded.open = innerWidth > 600;
  folded.append(summary);
  lines.append(folded);
  lines = folded;
}
for (const [kind, text] of data.lines) {
  const made = document.createElement("p");
  made.className = kind; made.textContent = text;
  lines.append(made);
}
canvas.setAttribute("aria-label", data.title);
document.addEventListener("keydown", keys);
element("find").addEventListener("input", find);
element("find").addEventListener("keydown", event => { if (event.key === "Enter") next(); });
element("closer").addEventListener("click", () => zoom(0.5));
element("wider").addEventListener("click", () => zoom(2));
element("all").addEventListener("click", all);
window.addEventListener("resize", request);
[view.low, view.high] = picture.extent();
draw();
