// Shows a run, or two runs next to each other: timelines of their ranks, results, memory and origin.
const panel = document.getElementById("panel");
const choice = document.getElementById("choice");
const other = document.getElementById("other");
const TIMELINE = { width: 1000, bar: 22, gap: 6, left: 64, right: 10, foot: 30 };
const lengthOf = ([, ...parts]) => parts.reduce((sum, part) => sum + part[2], 0);
const microseconds = (value) => withUnit(value / 1e6, "s");

// A timeline of the part [from, to] of the time scale, in microseconds.
const drawTimeline = (run, [from, to]) => {
  const { width, bar, gap, left, right, foot } = TIMELINE;
  const height = run.ranks.length * (bar + gap) + foot;
  const scale = (width - left - right) / (to - from);
  const place = (time) => left + Math.min(Math.max((time - from) * scale, 0), width - left - right);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "timeline" });
  run.ranks.forEach(([rank, ...parts], row) => {
    const y = row * (bar + gap);
    svg.append(make("text", { x: left - 8, y: y + bar / 2 + 5, "text-anchor": "end" }, `rank ${rank}`));
    let time = 0;
    for (const [group, name, micros] of parts) {
      const x = place(time);
      const size = place(time + micros) - x;
      time += micros;
      if (time < from || time - micros > to) continue;
      const rect = make("rect", { x, y, width: Math.max(size, 0.3), height: bar, class: `group-${group}` });
      rect.append(make("title", {}, `${textOf(name)}: ${microseconds(micros)}`));
      svg.append(rect);
    }
  });
  const span = to - from;
  const step = [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(span / 5))).find((n) => span / n <= 8);
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
    const x = place(tick);
    svg.append(make("line", { x1: x, x2: x, y1: 0, y2: height - foot + 8, class: "tick" }));
    svg.append(make("text", { x, y: height - 5, "text-anchor": "middle" }, microseconds(tick)));
  }
  return svg;
};

// All timelines of the panel share one time scale, which wheel, drag, keys and buttons change.
const makeTimelines = (runs) => {
  const longest = Math.max(...runs.flatMap((run) => run.ranks.map(lengthOf)));
  let range = [0, longest];
  const boxes = runs.map((run) => make("div", { class: "draw", tabindex: "0", role: "img",
    "aria-label": `Timelines of ${run.ranks.length} ranks of run ${run.n}` }));
  const draw = () => boxes.forEach((box, number) => box.replaceChildren(drawTimeline(runs[number], range)));
  const show = (from, to) => {
    const span = Math.min(Math.max(to - from, 1), longest);
    const start = Math.min(Math.max(from, 0), longest - span);
    range = [start, start + span];
    draw();
  };
  const zoom = (factor, share = 0.5) => {
    const span = range[1] - range[0], point = range[0] + share * span;
    show(point - share * span * factor, point + (1 - share) * span * factor);
  };
  const move = (share) => { const span = range[1] - range[0]; show(range[0] + share * span, range[1] + share * span); };
  const reset = () => show(0, longest);
  const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: reset, Escape: reset,
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
  for (const box of boxes) {
    const shareAt = (event) => {
      const area = box.firstChild.getBoundingClientRect();
      const { width, left, right } = TIMELINE;
      return ((event.clientX - area.left) / area.width * width - left) / (width - left - right);
    };
    box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, Math.min(Math.max(shareAt(event), 0), 1));
    }, { passive: false });
    let held = null;
    box.addEventListener("pointerdown", (event) => { held = shareAt(event); box.setPointerCapture(event.pointerId); });
    box.addEventListener("pointermove", (event) => {
      if (held === null) return;
      const at = shareAt(event);
      move(held - at);
      held = at;
    });
    box.addEventListener("pointerup", () => { held = null; });
    box.addEventListener("pointercancel", () => { held = null; });
    box.addEventListener("dblclick", reset);
    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
  const button = (name, label, act) => {
    const made = make("button", { type: "button", "aria-label": label, title: label }, name);
    made.addEventListener("click", act);
    return made;
  };
  draw();
  return { boxes, buttons: [button("+", "zoom in", () => zoom(0.5)), button("−", "zoom out", () => zoom(2)), button("all", "whole epoch", reset)] };
};

// The trace of a run, in the format of Chrome, which Perfetto reads.
const traceOf = (run) => {
  const events = [{ name: "process_name", ph: "M", pid: run.n, args: { name: `run ${run.n}: ${textOf(run.name)}` } }];
  for (const [rank, ...parts] of run.ranks) {
    events.push({ name: "thread_name", ph: "M", pid: run.n, tid: rank, args: { name: `rank ${rank}` } });
    let time = 0;
    for (const [group, name, micros] of parts) {
      events.push({ name: textOf(name), cat: data.groups[group], ph: "X", ts: time, dur: micros, pid: run.n, tid: rank });
      time += micros;
    }
  }
  return { displayTimeUnit: "ms", traceEvents: events };
};
const traceButton = (id, run) => {
  const button = make("button", { type: "button", class: "trace" }, `trace of run ${run.n} for Perfetto`);
  button.addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(traceOf(run))], { type: "application/json" }));
    make("a", { href: url, download: `trace-${id}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  });
  return button;
};

const legendOf = (runs) => {
  const groups = new Set(runs.flatMap((run) => run.ranks.flatMap(([, ...parts]) => parts.map((part) => part[0]))));
  const entries = [...groups].sort((a, b) => a - b).map((group) =>
    make("span", {}, make("i", { class: `group-${group}` }), data.groups[group]));
  return make("p", { class: "legend" }, ...entries);
};
const pairsTable = (rows) => {
  const body = rows.map(([name, ...values]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...values.map((value) => make("td", {}, value))));
  return make("table", { class: "pairs" }, make("tbody", {}, ...body));
};
const factsOf = (run) => (run.facts || []).map(([name, value]) => [textOf(name), value]);
const memoryOf = (run) => (run.memory || []).map(([name, size]) => [textOf(name), withUnit(size, "B")]);
const originOf = (run) => (run.from || []).map(([name, value]) => [textOf(name), textOf(value)]);

// The settings of a spec, one path each.
const flatten = (value, path = "") => value !== null && typeof value === "object" && !Array.isArray(value)
  ? Object.entries(value).flatMap(([name, inner]) => flatten(inner, path ? `${path}.${name}` : name))
  : [[path, JSON.stringify(value)]];
const settingsOf = (run) => {
  try { return flatten(JSON.parse(specOf(run))); } catch { return []; }
};
const differences = (one, two) => {
  const rows = [];
  for (const list of [factsOf, memoryOf, settingsOf, originOf]) {
    const [first, second] = [new Map(list(one)), new Map(list(two))];
    for (const name of new Set([...first.keys(), ...second.keys()])) {
      const pair = [first.get(name) ?? "–", second.get(name) ?? "–"];
      if (pair[0] !== pair[1]) rows.push([name, ...pair]);
    }
  }
  return rows;
};

const showRuns = (id, against = "") => {
  const ids = [id, against].filter((name) => Object.hasOwn(data.runs, name));
  const runs = ids.map((name) => data.runs[name]);
  choice.value = id;
  other.value = against;
  panel.replaceChildren();
  const timed = runs.filter((run) => run.ranks);
  const timelines = timed.length ? makeTimelines(timed) : { boxes: [], buttons: [] };
  if (timed.length) {
    const traces = ids.filter((name) => data.runs[name].ranks).map((name) => traceButton(name, data.runs[name]));
    panel.append(legendOf(timed), make("p", { class: "controls" }, ...timelines.buttons, ...traces));
  }
  for (const run of runs) {
    panel.append(make("h3", {}, `Run ${run.n}: ${textOf(run.name)}`));
    panel.append(make("p", { class: "facts" }, `${run.launch}; ${run.status}`));
    if (run.cause) panel.append(make("p", {}, run.cause));
    if (run.ranks) panel.append(timelines.boxes[timed.indexOf(run)]);
  }
  if (runs.length === 2) {
    const rows = differences(...runs);
    panel.append(make("h3", {}, "Differences"));
    panel.append(rows.length ? pairsTable([["", ...runs.map((run) => `run ${run.n}`)], ...rows]) : make("p", {}, "None."));
    return;
  }
  const [run] = runs;
  const tables = [factsOf(run), memoryOf(run), originOf(run)].filter((rows) => rows.length).map(pairsTable);
  panel.append(make("div", { class: "side" }, ...tables));
  if (run.command !== undefined) panel.append(make("p", {}, "Started by"), make("pre", {}, textOf(run.command)));
  panel.append(make("details", {}, make("summary", {}, "spec"), make("pre", {}, specOf(run))));
};

for (const [id, run] of Object.entries(data.runs)) {
  for (const select of [choice, other]) {
    select.append(make("option", { value: id }, `${run.n}: ${textOf(run.name)}, ${run.launch}`));
  }
}
choice.addEventListener("change", () => { location.hash = `run-${choice.value}`; });
other.addEventListener("change", () => showRuns(choice.value, other.value));
const followHash = () => {
  const id = location.hash.replace(/^#run-/, "");
  if (!Object.hasOwn(data.runs, id)) return;
  showRuns(id, other.value === id ? "" : other.value);
  document.getElementById("runs").scrollIntoView();
};
window.addEventListener("hashchange", followHash);
showRuns(Object.keys(data.runs).find((id) => data.runs[id].ranks) || Object.keys(data.runs)[0]);
followHash();
