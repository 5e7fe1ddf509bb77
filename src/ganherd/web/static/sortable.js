// Tables that are sorted by a click on a heading, or by the keyboard: numbers by size, everything else by its letters.

import { announce, h } from "./dom.js";

/** Return what a cell is sorted by: a number if its text begins with one, otherwise its text; null for a dash. */
export function sortKey(text) {
  const plain = text.trim().replaceAll(",", "").replace(/[−–]/g, "-");
  if (plain === "" || plain === "-") return null;
  const number = Number.parseFloat(plain);
  return Number.isNaN(number) ? plain.toLowerCase() : number;
}

function compared(a, b) {
  if (a === null || b === null) return (a === null) - (b === null); // dashes are last in both directions
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Put a button into every heading of a table. */
export function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  if (body.rows.length < 2) return;
  heads.forEach((head, column) => {
    const button = h("button", { type: "button", class: "sort" }, [...head.childNodes]);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", way = down ? -1 : 1;
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = [...body.rows].map((row) => [sortKey(row.cells[column]?.textContent ?? ""), row]);
      keyed.sort(([a], [b]) => (a === null || b === null ? compared(a, b) : way * compared(a, b)));
      body.append(...keyed.map(([, row]) => row));
      announce(`sorted by ${button.textContent}, ${down ? "largest" : "smallest"} first`);
    });
  });
}
