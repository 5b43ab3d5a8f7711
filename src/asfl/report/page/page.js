// Draws the charts of the page from the JSON in #data, and keeps what the reader chose. Text always enters the page
// as text: labels through textContent, and for Plotly, which knows some markup, through plain().
"use strict";

const root = document.documentElement;
const state = { theme: null, hidden: new Set(), run: null, map: "rbs", axis: "delay", scale: {}, drift: "discrepancy", driftScale: {} };
let data = JSON.parse(document.getElementById("data").textContent);

// ------------------------------------------------------------------ small helpers
const byId = (id) => document.getElementById(id);
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const isDark = () => root.dataset.theme === "dark";
const colour = (name) => (data.styles[name] ? data.styles[name][isDark() ? "dark" : "color"] : css("--bar"));
const narrow = () => window.innerWidth < 560;

function faded(hex, alpha) {
  const part = (at) => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shorten(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

// ------------------------------------------------------------------ drawing
function layout(title, x, y, more = {}) {
  const axis = { gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    title: { text: title ? `<b>${plain(title)}</b>` : "", font: { size: 14 }, x: 0, xref: "paper", xanchor: "left", y: 0.98, yanchor: "top" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--ink") },
    margin: { l: 48, r: 12, t: title ? 34 : 12, b: 42 },
    showlegend: false, hovermode: "closest", dragmode: narrow() ? false : "zoom",
    hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--line"), font: { color: css("--ink") } },
    legend: { orientation: "h", y: 1, yanchor: "bottom", x: 1, xanchor: "right", font: { size: 11 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
    xaxis: { ...axis, title: { text: x, standoff: 8 }, ...xaxis },
    yaxis: { ...axis, title: { text: y, standoff: 8 }, ...yaxis },
    ...rest,
  };
}

// Only buttons that work on this page alone; none that would send the data anywhere.
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, plotlyServerURL: "", topojsonURL: "" };
const TOOLS = { ...CONFIG, displayModeBar: "hover", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], toImageButtonOptions: { format: "svg", filename: "asfl" } };

function draw(id, traces, shape, config = CONFIG) {
  const place = byId(id);
  if (place) Plotly.react(place, traces, shape, config);
}

// From nothing to much: one hue, so that it is read without telling colours apart.
const ramp = () => (isDark() ? [[0, "#24272d"], [0.5, "#4a7ba6"], [1, "#d6ebff"]] : [[0, "#f3f1ec"], [0.5, "#7fa3c7"], [1, "#17355c"]]);
const scaleBar = (unit, more = {}) => ({ colorscale: ramp(), zmin: 0, colorbar: { thickness: 10, title: { text: unit, side: "top" }, outlinewidth: 0, ...more } });

function line(name, x, y, style, more = {}) {
  return { type: "scatter", mode: "lines", name: plain(name), x, y, line: style, hovertemplate: "%{x}: %{y:.4g}<extra>" + plain(name) + "</extra>", ...more };
}

// ------------------------------------------------------------------ accuracy
const AXES = { delay: ["simulated seconds", "s"], energy: ["joules, all clients", "J"], rounds: ["round", "rounds"] };

function drawAccuracy() {
  if (!data.accuracy) return;
  const log = scaleOf(state.axis) === "log";
  const [title, unit] = AXES[state.axis];
  const many = Object.keys(data.styles).length > 6;
  const bands = [], lines = [];
  for (const one of data.accuracy.series) {
    if (state.hidden.has(one.name)) continue;
    const { x, mean, low, high } = one.axes[state.axis];
    const style = data.styles[one.name], tint = colour(one.name);
    if (low) {
      bands.push({ type: "scatter", x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faded(tint, many && !style.ours ? 0.07 : 0.17), line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
    }
    const name = plain(one.name) + (one.open ? "<br>" + plain(one.label) : one.seeds > 1 ? `<br>mean of ${one.seeds} seeds` : "");
    const range = low ? x.map((_, i) => ` (${low[i].toFixed(1)} – ${high[i].toFixed(1)})`) : x.map(() => "");
    lines.push({
      type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y: mean, text: range, opacity: one.open ? 0.75 : 1,
      line: { color: tint, dash: style.dash, width: one.open ? 1 : style.width }, marker: { color: tint },
      hovertemplate: `%{y:.1f} %%{text} after %{x:,.4g} ${unit}<extra>${name}</extra>`,
    });
    if (!one.open) lines.push({ type: "scatter", mode: "markers", x: x.slice(-1), y: mean.slice(-1), marker: { color: tint, size: 7 }, hoverinfo: "skip" });
  }
  lines.sort((a, b) => (a.line ? a.line.width : 0) - (b.line ? b.line.width : 0));
  const targets = data.accuracy.targets.map((target) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 100 * target, y1: 100 * target, line: { dash: "dot", width: 1, color: css("--soft") } }));
  const x = log ? { type: "log", dtick: narrow() ? 1 : "D2", tickformat: ",~r" } : { rangemode: "tozero" };
  draw("chart-accuracy", [...bands, ...lines], layout("", title, "accuracy, %", { shapes: targets, xaxis: x, yaxis: { rangemode: "tozero" }, margin: { l: 48, r: 12, t: 30, b: 42 } }), TOOLS);
}

const scaleOf = (axis) => state.scale[axis] || (data.accuracy && data.accuracy.log[axis] ? "log" : "linear");

function swatch(name) {
  const style = data.styles[name];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of [["width", 26], ["height", 10], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const looks = { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour(name), "stroke-width": style.width + 0.6 };
  if (style.dash !== "solid") looks["stroke-dasharray"] = style.dash.replace(/px/g, "");
  for (const [key, value] of Object.entries(looks)) stroke.setAttribute(key, value);
  svg.append(stroke);
  return svg;
}

function drawLegend() {
  for (const legend of document.querySelectorAll("[data-legend]")) {
    const names = Object.keys(data.styles);
    const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const buttons = names.map((name) => {
      const button = element("button", { type: "button", "aria-pressed": !state.hidden.has(name), "data-name": name }, swatch(name), name);
      if (data.styles[name].ours) button.classList.add("ours");
      button.addEventListener("click", () => {
        if (!state.hidden.delete(name)) state.hidden.add(name);
        drawLegend(); drawAccuracy(); drawDiscrepancy();
      });
      return button;
    });
    if (names.length > 2) {
      const all = element("button", { type: "button", class: "every", "data-name": "" }, state.hidden.size ? "show all" : "hide all");
      all.addEventListener("click", () => {
        if (state.hidden.size) state.hidden.clear(); else names.forEach((name) => state.hidden.add(name));
        drawLegend(); drawAccuracy(); drawDiscrepancy();
      });
      buttons.push(all);
    }
    legend.replaceChildren(...buttons);
    if (focused !== null) legend.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }
}

// ------------------------------------------------------------------ way to a target
function drawBars() {
  data.bars.forEach((world, number) => {
    const chosen = world.targets[targetOf(number)] || world.targets[0];
    drawResource(`chart-delay-${number}`, chosen, "delay", "s", `Delay to ${chosen.label}`);
    drawResource(`chart-energy-${number}`, chosen, "energy", "J", `Energy to ${chosen.label}`);
  });
}

const targetOf = (number) => Number(state[`target-${number}`] ?? data.bars[number].main);

function drawResource(id, target, key, unit, title) {
  const rows = [...target.rows].reverse();
  const known = rows.map((row) => row[key]).filter(Boolean).map((one) => one.mean).filter((value) => value > 0);
  const log = known.length > 0 && Math.max(...known) > 10 * Math.min(...known);
  const floor = log ? Math.min(...known) / 2 : 0;
  const most = Math.max(...rows.map((row) => (row[key] ? row[key].mean + (row[key].sd || 0) : 0)), floor * 2, 1e-12);
  const index = key === "delay" ? 0 : 1;
  const trace = {
    type: "bar", orientation: "h", y: rows.map((_, n) => n), base: log ? floor : 0,
    x: rows.map((row) => (row[key] ? row[key].mean - floor : null)),
    marker: { color: rows.map((row) => (row.scheme === "asfl" ? colour(row.series) : css("--bar"))) },
    hovertext: rows.map((row) => (row[key] ? `${plain(row.scheme)}: ${row[key].text} ${unit}` + (row.saves ? `<br>ASFL ${saving(row.saves[index])}` : "") : "")),
    hoverinfo: "text",
  };
  const whiskers = {
    type: "scatter", mode: "markers", marker: { size: 1, color: css("--budget") }, hoverinfo: "skip",
    y: rows.map((_, n) => n), x: rows.map((row) => (row[key] && row[key].sd ? row[key].mean : null)),
    error_x: { type: "data", array: rows.map((row) => (row[key] && row[key].sd) || 0), color: css("--budget"), thickness: 1.2, width: 3 },
  };
  const notes = rows.map((row, n) => {
    const end = row[key] ? row[key].mean + (row[key].sd || 0) : floor;
    const at = log ? Math.log10(Math.max(end, floor || 1)) : end;
    const text = row[key] ? plain(row[key].text) + (row.saves && !narrow() ? `  <i>ASFL ${saving(row.saves[index])}</i>` : "") : "<i>not reached</i>";
    return { x: row[key] ? at : 0, xref: row[key] ? "x" : "paper", y: n, text, showarrow: false, xanchor: "left", xshift: 5, font: { size: 11, color: row[key] ? css("--ink") : css("--soft") } };
  });
  const room = narrow() ? 1.7 : 1.9;
  const x = log ? { type: "log", range: [Math.log10(floor), Math.log10(floor) + (Math.log10(most / floor)) * room], dtick: 1, tickformat: ",~r" } : { range: [0, most * room] };
  const labels = rows.map((row) => (row.scheme === "asfl" ? "<b>asfl</b>" : plain(shorten(row.scheme, 18))));
  draw(id, [trace, whiskers], layout(title, unit, "", { annotations: notes, xaxis: x, bargap: 0.3, yaxis: { tickvals: rows.map((_, n) => n), ticktext: labels, showgrid: false, zeroline: false, range: [-0.6, rows.length - 0.4], fixedrange: true } }));
}

const saving = (share) => (share.startsWith("-") ? `needs ${share.slice(1)} % more` : `saves ${share} %`);

// ------------------------------------------------------------------ one run
const MAPS = {
  rbs: ["Resource blocks of every client", "blocks"], power: ["Transmit power", "W"], errors: ["Expected packet error rate", "rate"],
  energy: ["Energy of every client", "J"], queue: ["Energy queue of every client", "backlog"],
  uplink: ["Uplink of every client, as measured", "Mbit/s"],
};

function mapOf(packed) {
  const bytes = Uint8Array.from(atob(packed.cells), (character) => character.charCodeAt(0));
  const columns = bytes.length / packed.rows;
  return Array.from({ length: packed.rows }, (_, row) => Array.from(bytes.slice(row * columns, (row + 1) * columns), (cell) => (cell === 255 ? null : packed.low + cell * packed.step)));
}

function drawRun() {
  const run = data.runs[currentRun()];
  if (!run || !byId("run")) return;
  drawMap(run);
  const own = colour(run.series), lines = run.lines, dots = { color: css("--budget"), dash: "dash", width: 1.3 };
  const level = (name, value, style = dots) => (value === null || !lines.x.length ? [] : [line(`${name} ${format(value)}`, [lines.x[0], lines.x.at(-1)], [value, value], style)]);
  const thick = { color: own, width: 1.8 }, thin = { color: css("--second"), width: 1.3 };
  const legend = { showlegend: true, xaxis: { rangemode: "normal" } };
  const known = lines.cut.some((value) => value !== null);
  draw("chart-cut", known ? [line("cut", lines.x, lines.cut, { ...thick, shape: "hvh" })] : [], layout("Cut: layers on the client", "round", "", { yaxis: { rangemode: "tozero", tickformat: "~r" }, ...(known ? {} : { annotations: [{ text: "no cut: the whole model is on the client", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] }) }));
  draw("chart-round-delay", [line("delay", lines.x, lines.delay, thick), line("of it re-split", lines.x, lines.resplit, thin), ...level("budget", run.budget.delay)], layout("Delay of a round", "round", "s", { ...legend, yaxis: { rangemode: "tozero" } }));
  draw("chart-delay-queue", [line("queue", lines.x, lines.delayQueue, thick), ...level("Lemma 4", run.bound.delay)], layout("Delay queue", "round", "backlog", { ...legend, yaxis: { rangemode: "tozero" } }));
  draw("chart-energy-queue", [line("largest", lines.x, lines.energyQueueMost, thin), line("mean", lines.x, lines.energyQueue, thick), ...level("Lemma 4", run.bound.energy)], layout("Energy queues", "round", "backlog", { ...legend, yaxis: { rangemode: "tozero" } }));
  draw("chart-round-energy", [line("largest", lines.x, lines.energyMost, thin), line("mean", lines.x, lines.energy, thick), ...level("budget", run.budget.energy)], layout("Energy of a client in a round", "round", "J", { ...legend, yaxis: { rangemode: "tozero" } }));
  draw("chart-lost", [line("realised", lines.x, lines.realisedLost, { ...thin, width: 1 }), line("expected", lines.x, lines.expectedLost, thick)], layout("Packets lost", "round", "%", { ...legend, yaxis: { rangemode: "tozero" } }));
  drawClients(run, own, dots);
  drawMix(run);
  for (const part of document.querySelectorAll("[data-of-run]")) part.hidden = Number(part.dataset.ofRun) !== currentRun();
}

const format = (value) => Number(value).toPrecision(3).replace(/\.?0+$/, "");

function drawMap(run) {
  const packed = run.maps[state.map], [title, unit] = MAPS[state.map];
  const cells = packed ? mapOf(packed) : [];
  const most = Math.max(0, ...cells.map((row) => Math.max(...row)));
  const x = cells.length ? cells[0].map((_, column) => 1 + column * run.mapEvery + (run.mapEvery - 1) / 2) : [];
  const trace = { type: "heatmap", z: cells, x, y: cells.map((_, client) => client), ...scaleBar(unit, state.map === "rbs" && most <= 10 ? { dtick: 1 } : {}), hoverongaps: false, hovertemplate: "round %{x:.0f}, client %{y}: %{z:.3g}<extra></extra>" };
  const more = run.mapEvery > 1 ? ` (means of ${run.mapEvery} rounds)` : "";
  draw("chart-map", [trace], layout(title + more, "round", "client", { xaxis: { showgrid: false, zeroline: false }, yaxis: { showgrid: false, zeroline: false, tickformat: "d", autorange: "reversed" } }));
}

function drawClients(run, own, dots) {
  const clients = run.clientEnergy.map((_, client) => client);
  const bar = (name, y, color) => ({ type: "bar", name, x: clients, y, marker: { color }, hovertemplate: `client %{x}: %{y:.3g} J<extra>${name}</extra>` });
  const budget = run.budget.energy, ends = [-0.5, clients.length - 0.5];
  const level = budget === null ? [] : [line(`budget ${format(budget)}`, ends, [budget, budget], dots)];
  draw("chart-client-energy", [bar("rounds", run.clientEnergy, own), bar("re-splits", run.clientResplit, css("--second")), ...level], layout("Mean energy of every client", "client", "J a round", { barmode: "stack", showlegend: true, xaxis: { showgrid: false, tickformat: "d" }, yaxis: { rangemode: "tozero" } }));
}

function drawMix(run) {
  const mix = run.mix ? data.mixes[run.mix] : null;
  const place = byId("chart-mix");
  if (!place) return;
  place.hidden = !mix;
  if (!mix) return;
  const trace = { type: "heatmap", z: mix.shares, ...scaleBar("%"), hovertemplate: "client %{y}, label %{x}: %{z:.1f} %<extra></extra>" };
  draw("chart-mix", [trace], layout("Label mix of every client", `label (${plain(run.mix)})`, "client", { xaxis: { showgrid: false, zeroline: false, tickformat: "d" }, yaxis: { showgrid: false, zeroline: false, tickformat: "d", autorange: "reversed" } }));
}

const currentRun = () => (state.run === null ? data.first : state.run);

// ------------------------------------------------------------------ discrepancy, losses, layers
function drawDiscrepancy() {
  const shown = data.discrepancy.filter((one) => !state.hidden.has(one.name));
  const lines = shown.map((one) => line(one.name, one.x, one[state.drift], { color: colour(one.name), dash: data.styles[one.name].dash, width: data.styles[one.name].width }));
  const log = driftScale() === "log";
  draw("chart-discrepancy", lines, layout("", "round", state.drift === "spread" ? "spread, squared weights" : "discrepancy, updates", { margin: { l: 48, r: 12, t: 30, b: 42 }, yaxis: log ? { type: "log", dtick: 1, tickformat: ",~r" } : { rangemode: "tozero" } }), TOOLS);
}

function driftScale() {
  const tops = data.discrepancy.map((one) => Math.max(...one[state.drift])).filter((top) => top > 0);
  const far = tops.length > 0 && Math.max(...tops) > 30 * Math.min(...tops);
  return state.driftScale[state.drift] || (far ? "log" : "linear");
}

function drawLosses() {
  const names = data.losses.map((one) => plain(shorten(one.name, 24)));
  const bar = (name, key, color) => ({ type: "bar", name, x: names, y: data.losses.map((one) => one[key]), marker: { color }, hovertemplate: `%{x}: %{y:.1f} %<extra>${name}</extra>` });
  draw("chart-losses", [bar("expected", "expected", css("--bar")), bar("realised", "realised", css("--second"))], layout("", "", "packets lost, %", { showlegend: true, xaxis: { showgrid: false }, yaxis: { rangemode: "tozero" } }));
}

function drawLayers() {
  data.profiles.forEach((profile, number) => {
    const units = profile.units.map((name, index) => `${index + 1} ${plain(name)}`);
    const bar = (name, y, color) => ({ type: "bar", name, x: units, y, marker: { color }, hovertemplate: `%{x}: %{y:.4g}<extra>${name}</extra>` });
    const few = { showgrid: false, tickangle: narrow() ? -90 : "auto" };
    draw(`chart-bits-${number}`, [bar("parameters", profile.parameters, css("--bar")), bar("activations of a sample", profile.activations, css("--second"))], layout("Size", "", "Mbit", { showlegend: true, xaxis: few, yaxis: { type: "log", dtick: 1, tickformat: ",~r" } }));
    draw(`chart-flops-${number}`, [bar("forward", profile.forward, css("--bar")), bar("backward", profile.backward, css("--second"))], layout("Work", "", "MFLOP a sample", { showlegend: true, xaxis: few }));
    const names = Object.keys(profile.cuts);
    const trace = { type: "heatmap", z: names.map((name) => profile.cuts[name]), x: units.slice(0, -1), y: names.map((name) => plain(shorten(name, 24))), ...scaleBar("%"), zmax: 100, xgap: 1, ygap: 2, hovertemplate: "%{y} cut behind %{x} in %{z:.1f} % of rounds<extra></extra>" };
    draw(`chart-cuts-${number}`, [trace], layout("Where the cut was", "cut behind", "", { xaxis: { ...few, zeroline: false }, yaxis: { showgrid: false, autorange: "reversed" } }));
  });
}

// ------------------------------------------------------------------ choices
function valueOf(key) {
  if (key === "scale") return scaleOf(state.axis);
  if (key === "drift-scale") return driftScale();
  if (key.startsWith("target-")) return String(targetOf(Number(key.slice(7))));
  return state[key];
}

function markChoices() {
  for (const group of document.querySelectorAll("[data-choice]")) {
    const value = valueOf(group.dataset.choice);
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
}

const REDRAW = { axis: drawAccuracy, scale: drawAccuracy, map: drawRun, drift: drawDiscrepancy, "drift-scale": drawDiscrepancy };

function listen() {
  for (const group of document.querySelectorAll("[data-choice]")) {
    const key = group.dataset.choice;
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (key === "scale") state.scale[state.axis] = button.dataset.value;
      else if (key === "drift-scale") state.driftScale[state.drift] = button.dataset.value;
      else state[key] = button.dataset.value;
      markChoices();
      (REDRAW[key] || drawBars)();
    });
  }
  for (const select of document.querySelectorAll("[data-run]")) {
    select.value = String(currentRun());
    select.addEventListener("change", () => { state.run = Number(select.value); drawRun(); });
  }
}

function drawAll() {
  markChoices();
  drawLegend();
  for (const one of [drawAccuracy, drawBars, drawRun, drawDiscrepancy, drawLosses, drawLayers]) one();
}

// ------------------------------------------------------------------ light and dark
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try { return localStorage.getItem("asfl-theme"); } catch { return null; }
}

function applyTheme() {
  root.dataset.theme = state.theme || (prefersDark.matches ? "dark" : "light");
}

document.querySelector(".theme").addEventListener("click", () => {
  state.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("asfl-theme", state.theme); } catch { /* a page without storage forgets */ }
  applyTheme();
  drawAll();
});
prefersDark.addEventListener("change", () => { applyTheme(); drawAll(); });

// ------------------------------------------------------------------ where the reader is
function followReader() {
  const links = new Map([...document.querySelectorAll(".bar nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of document.querySelectorAll("section")) watcher.observe(section);
}

// ------------------------------------------------------------------ a page that is served follows the experiment
async function lookForNews() {
  const badge = document.querySelector(".live");
  try {
    const { version } = await (await fetch("version", { cache: "no-store" })).json();
    badge.textContent = "live";
    if (version === root.dataset.version) return;
    const text = await (await fetch("./", { cache: "no-store" })).text();
    takeOver(new DOMParser().parseFromString(text, "text/html"));
  } catch {
    badge.textContent = "not reachable";
  }
}

function takeOver(newer) {
  const label = data.runs[currentRun()]?.label;
  const open = [...document.querySelectorAll("main details")].map((one) => one.open);
  const top = window.scrollY;
  for (const place of document.querySelectorAll(".chart")) Plotly.purge(place);
  data = JSON.parse(newer.getElementById("data").textContent);
  document.querySelector("main").replaceWith(document.adoptNode(newer.querySelector("main")));
  document.querySelector(".bar nav").replaceWith(document.adoptNode(newer.querySelector(".bar nav")));
  document.title = newer.title;
  root.dataset.version = newer.documentElement.dataset.version;
  const same = data.runs.findIndex((run) => run.label === label);
  if (state.run !== null) state.run = same >= 0 ? same : null;
  [...document.querySelectorAll("main details")].forEach((one, index) => { one.open = open[index] ?? false; });
  begin();
  window.scrollTo({ top, behavior: "instant" });
}

function begin() {
  listen();
  drawAll();
  followReader();
}

state.theme = remembered();
applyTheme();
begin();
if (root.dataset.version) {
  document.querySelector(".live").hidden = false;
  setInterval(() => { if (!document.hidden) lookForNews(); }, 3000);
}
