"use strict";
for (const head of document.querySelectorAll("th")) head.addEventListener("click", () => {
  const table = head.closest("table"), body = table.tBodies[0], place = head.cellIndex;
  const up = head.dataset.up = head.dataset.up === "1" ? "0" : "1";
  const key = row => {
    const cell = row.cells[place];
    return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
  };
  const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b); return x < y ? -1 : x > y ? 1 : 0; });
  body.append(...(up === "1" ? rows : rows.reverse()));
});
for (const input of document.querySelectorAll("input")) input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(" ");
  for (const row of input.closest("section").querySelectorAll("tbody tr"))
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
});
const data = JSON.parse(document.getElementById("pages").textContent), dialog = document.querySelector("dialog");
const unpacked = text => new Response(new Blob([Uint8Array.from(atob(text), sign => sign.charCodeAt(0))]).stream()
  .pipeThrough(new DecompressionStream("gzip"))).text();
async function show() {
  const text = data.cells[location.hash.slice(1)];
  if (text === undefined) { dialog.close(); return; }
  const [frame, content] = await Promise.all([unpacked(data.frame), unpacked(text)]), at = frame.lastIndexOf(data.mark);
  const start = frame.lastIndexOf(">", at) + 1, end = frame.indexOf("<", at);
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("iframe").srcdoc = frame.slice(0, start) + content + frame.slice(end);
}
dialog.addEventListener("close", () => { if (location.hash) history.replaceState(null, "", location.href.split("#")[0]); });
dialog.querySelector("button").addEventListener("click", () => dialog.close());
addEventListener("hashchange", show);
show();
