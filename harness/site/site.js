"use strict";
// Search: rows without all words are hidden, and so are sections without rows.
const search = document.getElementById("search");
const filterRows = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const section of document.querySelectorAll("main section")) {
    const rows = [...section.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    section.hidden = words.length > 0 && rows.length > 0 && rows.every((row) => row.hidden);
  }
  document.getElementById("count").textContent = words.length ? `${shown} found` : "";
};
if (search) {
  search.addEventListener("input", filterRows);
  search.value = new URLSearchParams(location.search).get("q") || search.value;
  filterRows();
}

// Sorting: a click on a heading sorts by it, numbers by value and cells without a value last.
const sortRows = (heading) => {
  const table = heading.closest("table");
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyOf = (row) => {
    const cell = row.cells[heading.cellIndex];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim() || null;
  };
  const compare = (one, other) => {
    const [a, b] = [keyOf(one), keyOf(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
    return down ? -order : order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare));
};
for (const heading of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.className = "sort";
  button.textContent = heading.textContent;
  button.addEventListener("click", () => sortRows(heading));
  heading.replaceChildren(button);
}

// A link to a run opens it.
const openRun = () => {
  const run = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(run instanceof HTMLDetailsElement)) return;
  run.open = true;
  run.scrollIntoView();
};
addEventListener("hashchange", openRun);
openRun();
for (const control of document.querySelectorAll(".needs-script")) control.hidden = false;
