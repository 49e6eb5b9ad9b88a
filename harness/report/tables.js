// Reads the data of the page; sorts, filters and unfolds its tables; and keeps which strategies are selected.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const textOf = (number) => data.texts[number];
const specOf = ({ spec }) => typeof spec === "string" ? spec : `{${spec.map(textOf).join(",")}}`;
const SVG_TAGS = new Set(["svg", "rect", "text", "line", "title", "g"]);
const make = (tag, attributes = {}, ...children) => {
  const names = document.body.dataset.svg;
  const element = SVG_TAGS.has(tag) ? document.createElementNS(names, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en");
const PREFIXES = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1], ["m", 1e-3], ["µ", 1e-6], ["n", 1e-9]];
// The units are those of harness/base/formatting.py. Counts have a prefix and no unit.
const SYMBOLS = { s: "s", B: "B", count: "", whole: "" };
const withUnit = (value, unit) => {
  if (unit === "%") return `${digits(100 * value)} %`;
  if (unit === "times") return `${digits(value)}×`;
  if (!(unit in SYMBOLS)) return digits(value);
  const known = PREFIXES.filter(([, size]) => unit === "s" ? size <= 1 : size >= 1);
  const [prefix, size] = known.find(([, size]) => Math.abs(value) >= size) || ["", 1];
  return `${digits(value / size)} ${prefix}${SYMBOLS[unit]}`.trim();
};

// Sorting: numbers by value, texts alphabetically, cells without a value last.
const SIZES = { bytes: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, ns: 1e-9, µs: 1e-6, ms: 1e-3, s: 1, min: 60 };
const sortKey = (cell) => {
  const cellText = cell.textContent.trim().replaceAll(",", "");
  if (!cell.classList.contains("number")) return cellText;
  const value = parseFloat(cellText);
  return Number.isNaN(value) ? null : value * (SIZES[cellText.split(" ")[1]] || 1);
};
const sortRows = (heading) => {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const compare = (a, b) => {
    if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null);
    const order = typeof a[0] === "number" ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]), "en");
    return down ? -order : order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].map((row) => [sortKey(row.cells[column]), row]).sort(compare).map((pair) => pair[1]));
};
for (const heading of document.querySelectorAll(".results th")) {
  const button = make("button", { type: "button", class: "sort" }, ...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => sortRows(heading));
}

// Selected strategies: the same in every chart and table.
const selected = new Set();
const onSelect = [];
const showSelection = () => {
  for (const button of document.querySelectorAll("[data-strategy]")) {
    button.setAttribute("aria-pressed", selected.has(button.dataset.strategy));
  }
  const everything = document.getElementById("everything");
  if (everything) everything.hidden = !selected.size;
  for (const act of onSelect) act([...selected]);
};
const toggleStrategy = (name) => {
  if (!selected.delete(name)) selected.add(name);
  showSelection();
};
for (const button of document.querySelectorAll("[data-strategy]")) {
  button.addEventListener("click", () => toggleStrategy(button.dataset.strategy));
}
document.getElementById("everything")?.addEventListener("click", () => { selected.clear(); showSelection(); });

// Filtering: a row stays if its strategy is selected, and it or the title of its table contains every word.
const search = document.getElementById("search");
const filterRows = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0, all = 0;
  for (const table of document.querySelectorAll(".results")) {
    let mine = 0;
    for (const row of table.tBodies[0].rows) {
      const rowText = `${table.caption.textContent} ${row.textContent}`.toLowerCase();
      const wanted = !selected.size || selected.has(row.cells[0].textContent);
      row.hidden = !wanted || !words.every((word) => rowText.includes(word));
      mine += !row.hidden;
      all += 1;
    }
    table.closest(".wide").hidden = mine === 0;
    shown += mine;
  }
  document.getElementById("count").textContent = shown < all ? `${shown} of ${all} rows` : "";
};
search.addEventListener("input", filterRows);
onSelect.push(filterRows);

const more = document.getElementById("more");
more.addEventListener("click", () => {
  const open = document.body.classList.toggle("unfolded");
  more.setAttribute("aria-expanded", open);
  more.textContent = open ? "fewer columns" : "all columns";
});

// On a narrow screen a row shows its name and its time, and a click shows the rest.
for (const row of document.querySelectorAll(".results tbody tr")) {
  const open = row.classList.contains("open");
  const button = make("button", { type: "button", class: "unfold", "aria-expanded": open, "aria-label": "all numbers" });
  button.addEventListener("click", () => button.setAttribute("aria-expanded", row.classList.toggle("open")));
  row.cells[0].append(button);
}
document.body.classList.add("scripted");
for (const control of document.querySelectorAll(".needs-script")) control.hidden = false;
