// Sorts, filters and unfolds the tables of results, and draws the panel of a run. The page can be read without it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = (number) => data.texts[number];
  const specOf = ({ spec }) => typeof spec === "string" ? spec : `{${spec.map(text).join(",")}}`;
  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "rect", "text", "line", "title", "g"].includes(tag);
    const element = svg ? document.createElementNS(document.body.dataset.svg, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const units = [[1, "µs"], [1e3, "ms"], [1e6, "s"]];
  const unitOf = (micros) => units.findLast(([size]) => micros >= size) || units[0];
  const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  const bytes = (value) => {
    const names = ["bytes", "kB", "MB", "GB", "TB"];
    let number = 0;
    while (value >= 1e3 && number < 4) { value /= 1e3; number += 1; }
    return `${digits(value)} ${names[number]}`;
  };

  // Sorting: numbers by value, texts alphabetically, cells without a value last.
  const key = (cell) => {
    const cellText = cell.textContent.trim().replaceAll(",", "");
    const sizes = { bytes: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
    if (!cell.classList.contains("number")) return cellText;
    const value = parseFloat(cellText);
    return Number.isNaN(value) ? null : value * (sizes[cellText.split(" ")[1]] || 1);
  };
  const sort = (heading) => {
    const table = heading.closest("table");
    const column = [...heading.parentNode.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = (a, b) => {
      if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null);
      const order = typeof a[0] === "number" ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]), "en");
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].map((row) => [key(row.cells[column]), row]).sort(compare).map((pair) => pair[1]));
  };
  for (const heading of document.querySelectorAll(".results th")) {
    const button = make("button", { type: "button", class: "sort" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sort(heading));
  }

  // Filtering: a row stays if it or the title of its table contains every word.
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const table of document.querySelectorAll(".results")) {
      let mine = 0;
      for (const row of table.tBodies[0].rows) {
        const rowText = `${table.caption.textContent} ${row.textContent}`.toLowerCase();
        row.hidden = !words.every((word) => rowText.includes(word));
        mine += !row.hidden;
        all += 1;
      }
      table.closest(".wide").hidden = mine === 0;
      shown += mine;
    }
    count.textContent = words.length ? `${shown} of ${all} rows` : "";
  };
  search.addEventListener("input", filter);

  const more = document.getElementById("more");
  more.addEventListener("click", () => {
    const open = document.body.classList.toggle("unfolded");
    more.setAttribute("aria-expanded", open);
    more.textContent = open ? "fewer columns" : "all columns";
  });
  for (const control of document.querySelectorAll(".needs-script")) control.hidden = false;

  // The panel of a run.
  const timelines = (run) => {
    const width = 1000, bar = 22, gap = 6, left = 64;
    const longest = Math.max(...run.ranks.map(([, ...parts]) => parts.reduce((sum, part) => sum + part[2], 0)));
    const [size, unit] = unitOf(longest);
    const height = run.ranks.length * (bar + gap) + 30;
    const label = `Timelines of ${run.ranks.length} ranks`;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "timeline" });
    const scale = (width - left - 10) / longest;
    run.ranks.forEach(([rank, ...parts], row) => {
      const y = row * (bar + gap);
      svg.append(make("text", { x: left - 8, y: y + bar / 2 + 5, "text-anchor": "end" }, `rank ${rank}`));
      let at = left;
      for (const [group, name, micros] of parts) {
        const rect = make("rect", { x: at, y, width: Math.max(micros * scale, 0.3), height: bar, class: `group-${group}` });
        const [own, ownUnit] = unitOf(micros);
        rect.append(make("title", {}, `${text(name)}: ${digits(micros / own)} ${ownUnit}`));
        svg.append(rect);
        at += micros * scale;
      }
    });
    const base = height - 22;
    const step = [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(longest / 5))).find((n) => longest / n <= 8);
    for (let tick = 0; tick <= longest; tick += step) {
      const x = left + tick * scale;
      svg.append(make("line", { x1: x, x2: x, y1: 0, y2: base, class: "tick" }));
      svg.append(make("text", { x, y: height - 5, "text-anchor": "middle" }, digits(tick / size)));
    }
    svg.append(make("text", { x: left - 8, y: height - 5, "text-anchor": "end" }, unit));
    return svg;
  };
  const legend = (run) => {
    const groups = new Set(run.ranks.flatMap(([, ...parts]) => parts.map((part) => part[0])));
    const entries = [...groups].sort((a, b) => a - b).map((group) =>
      make("span", {}, make("i", { class: `group-${group}` }), data.groups[group]));
    return make("p", { class: "legend" }, ...entries);
  };
  const table = (rows) => {
    const body = rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
    return make("table", { class: "pairs" }, make("tbody", {}, ...body));
  };
  const panel = document.getElementById("panel");
  const choice = document.getElementById("choice");
  const show = (id) => {
    const run = data.runs[id];
    if (!run) return;
    choice.value = id;
    panel.replaceChildren(make("h3", {}, `Run ${run.n}: ${text(run.name)}`));
    panel.append(make("p", { class: "facts" }, `${run.launch}; ${run.status}`));
    if (run.cause) panel.append(make("p", {}, run.cause));
    if (run.ranks) panel.append(legend(run), make("div", { class: "draw" }, timelines(run)));
    const tables = make("div", { class: "side" });
    if (run.facts) tables.append(table(run.facts.map(([name, value]) => [text(name), value])));
    if (run.memory) tables.append(table(run.memory.map(([name, size]) => [text(name), bytes(size)])));
    if (run.from) tables.append(table(run.from.map(([name, value]) => [text(name), text(value)])));
    panel.append(tables);
    if (run.command !== undefined) panel.append(make("p", {}, "Started by"), make("pre", {}, text(run.command)));
    const spec = make("details", {}, make("summary", {}, "spec, for harness run --spec FILE"), make("pre", {}, specOf(run)));
    panel.append(spec);
  };
  for (const [id, run] of Object.entries(data.runs)) {
    choice.append(make("option", { value: id }, `${run.n}: ${text(run.name)}, ${run.launch}`));
  }
  choice.addEventListener("change", () => { location.hash = `run-${choice.value}`; });
  const follow = () => {
    const id = location.hash.replace(/^#run-/, "");
    if (id in data.runs) { show(id); document.getElementById("runs").scrollIntoView(); }
  };
  window.addEventListener("hashchange", follow);
  show(Object.keys(data.runs).find((id) => data.runs[id].ranks) || Object.keys(data.runs)[0]);
  follow();
})();
