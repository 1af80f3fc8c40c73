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
