// Draws the charts by Vega-Lite from the embedded rows, with tooltips, zoom, and the selected strategies.
const FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif';
const CHART_CONFIG = {
  background: null, font: FONT, view: { stroke: null },
  axis: {
    labelColor: "var(--ink)", titleColor: "var(--ink)", titleFontWeight: "normal", domainColor: "var(--muted)",
    gridColor: "var(--rule)", gridOpacity: 0.6, tickColor: "var(--muted)", labelFontSize: 11, titleFontSize: 12,
    labelOverlap: "greedy", labelSeparation: 8,
  },
  axisQuantitative: { tickCount: 5 },
  axisDiscrete: { labelOverlap: false, grid: false, ticks: false },
  text: { color: "var(--ink)", fontSize: 11 },
  rule: { color: "var(--muted)" },
  legend: { labelColor: "var(--ink)", titleColor: "var(--ink)", orient: "top", labelLimit: 0, labelFontSize: 11 },
  header: { labelColor: "var(--ink)", titleColor: "var(--ink)" },
};
const PRINTED_WIDTH = { column: 400, page: 820 };  // smaller on paper, where 11 pixels become 7 points
const views = new Map();

// Vega keeps groups in plain objects, in which names such as constructor mean something else: an invisible space makes
// them differ. The column strategy is never grouped alone, and keeps its names for the selection.
const keyOf = (name, text) => name !== "strategy" && text in Object.prototype ? `${text}\u200b` : text;
const specOfChart = ({ spec }) => JSON.parse(JSON.stringify(spec), (name, value) => typeof value === "string"
  ? keyOf(name, value).replace(/(['"])(\w+)\1/g, (_, quote, text) => `${quote}${keyOf("", text)}${quote}`) : value);

const rowsOf = (chart) => {
  const columns = Object.entries(chart.columns).map(([name, { values, texts }]) => {
    const at = (number) => values[values.length === 1 ? 0 : number];
    return [name, texts ? (number) => at(number) === null ? null : keyOf(name, textOf(at(number))) : at];
  });
  const row = (_, number) => Object.fromEntries(columns.map(([name, at]) => [name, at(number)]));
  return Array.from({ length: chart.rows }, row);
};

// The tooltip: only texts, never markup.
const tooltip = make("div", { class: "tooltip", role: "status", hidden: "" });
document.body.append(tooltip);
const HIDDEN_COLUMNS = new Set(["curve", "strategy", "run_id", "shared_cores", "label", "note"]);
const describeRow = (row, chart) => {
  const lines = Object.entries(row).filter(([name, value]) => value !== null && value !== "" && typeof value !== "object"
    && !HIDDEN_COLUMNS.has(name) && !(name === "status" && value === "ok") && !name.startsWith("_"));
  const pairs = lines.map(([name, value]) => {
    const [label, unit] = chart.scales[name] || [name.replaceAll("_", " "), "number"];
    return [label, typeof value === "number" ? withUnit(value, unit) : String(value)];
  });
  return Object.hasOwn(data.runs, row.run_id) ? [...pairs, ["run", String(data.runs[row.run_id].n)]] : pairs;
};
const showTooltip = (chart) => (_, event, item, value) => {
  tooltip.hidden = value === null || value === undefined || value === "";
  if (tooltip.hidden) return;
  const datum = typeof value === "object" ? value : {};
  const whole = item.mark.marktype === "line" || item.mark.marktype === "area";
  const pairs = whole ? [] : describeRow(datum, chart);
  const body = pairs.map(([name, number]) => make("tr", {}, make("th", {}, name), make("td", {}, number)));
  tooltip.replaceChildren(make("b", {}, datum.curve || String(value)), make("table", {}, ...body));
  const { width, height } = tooltip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
};

// Zoom by keys: + and - around the middle, arrows move, 0 shows everything again.
const ZOOM_KEYS = {
  "+": [0.15, 0.85], "=": [0.15, 0.85], "-": [-0.25, 1.25],
  ArrowLeft: [-0.2, 0.8, "x"], ArrowRight: [0.2, 1.2, "x"], ArrowDown: [-0.2, 0.8, "y"], ArrowUp: [0.2, 1.2, "y"],
};
const zoomChart = (figure, key) => {
  const found = views.get(figure);
  if (!found) return false;
  const { view, fields } = found;
  const reset = key === "0" || key === "Escape";
  if (!reset && !(key in ZOOM_KEYS)) return false;
  const [from, to, only] = ZOOM_KEYS[key] || [];
  for (const [channel, field] of fields) {
    const scale = view.scale(channel);
    const [low, high] = scale.domain();
    const log = scale.type === "log";
    const move = (share) => log ? low * (high / low) ** share : low + share * (high - low);
    const moved = only && only !== channel ? [low, high] : [move(from), move(to)];  // Vega wants both
    view.signal(`zoom_${field}`, reset ? null : moved);
  }
  view.runAsync();
  return true;
};

// A narrow chart has no room for notes, short labels, and few entries in a line of its legend.
const fitWidth = (spec, width) => {
  const narrow = width < 440;
  const isNote = (layer) => layer.encoding?.text?.field === "note";
  const config = {
    ...CHART_CONFIG,
    axis: { ...CHART_CONFIG.axis, labelLimit: narrow ? 0.4 * width : 320 },
    legend: { ...CHART_CONFIG.legend, columns: Math.max(1, Math.floor(width / 150)) },
  };
  if (!narrow || !spec.layer?.some(isNote)) return { ...spec, config };
  return { ...spec, config, layer: spec.layer.filter((layer) => !isNote(layer)), padding: 5 };
};
const drawChart = async (figure) => {
  const chart = data.charts[figure.dataset.chart];
  const plot = figure.querySelector(".plot");
  const spec = {
    ...fitWidth(specOfChart(chart), plot.clientWidth), width: "container", height: Number(plot.dataset.height),
    autosize: { type: "fit-x", contains: "padding" }, description: figure.getAttribute("aria-label"),
    data: { values: rowsOf(chart) },
  };
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: showTooltip(chart),
  };
  const { view } = await vegaEmbed(plot, spec, options);
  const zoomed = [chart.spec, ...(chart.spec.layer || [])].find((layer) => layer.params?.some(({ name }) => name === "zoom"));
  const channels = zoomed ? zoomed.params.find(({ name }) => name === "zoom").select.encodings : [];
  views.set(figure, { view, fields: channels.map((name) => [name, zoomed.encoding[name].field]) });
  view.addEventListener("click", (_, item) => { if (item?.datum?.strategy) toggleStrategy(item.datum.strategy); });
  view.signal("selected", [...selected]).runAsync();
  figure.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && zoomChart(figure, event.key)) event.preventDefault();
  });
};
onSelect.push((names) => { for (const { view } of views.values()) view.signal("selected", names).runAsync(); });

// Charts are drawn one after the other, so that the page can be used meanwhile.
const drawCharts = async () => {
  for (const figure of document.querySelectorAll("[data-chart]")) {
    await drawChart(figure).catch((error) => {
      figure.querySelector(".plot").textContent = `This chart cannot be drawn: ${error.message}`;
      console.error(error);
    });
    await new Promise((resolve) => { setTimeout(resolve, 0); });
  }
  document.body.classList.add("drawn");
};

// Paper has its own width, and no room for a selection.
window.addEventListener("beforeprint", () => {
  for (const [figure, { view }] of views) {
    view.width(figure.classList.contains("page-wide") ? PRINTED_WIDTH.page : PRINTED_WIDTH.column).run();
  }
});
window.addEventListener("afterprint", () => window.dispatchEvent(new Event("resize")));
drawCharts();
