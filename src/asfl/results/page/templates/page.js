// Shows the charts that Python drew, in the choice and the colours the reader wants, and keeps that choice.
"use strict";

const root = document.documentElement;
const all = (selector) => [...document.querySelectorAll(selector)];
const narrow = () => window.innerWidth < 560;
const isDark = () => root.dataset.theme === "dark";
const picked = {};
let data = JSON.parse(document.getElementById("data").textContent);

// ------------------------------------------------------------------ drawing
// Only buttons that work on this page alone; none that would send the data anywhere.
const CONFIG = {
  responsive: true, displaylogo: false, displayModeBar: "hover", plotlyServerURL: "", topojsonURL: "",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], toImageButtonOptions: { format: "svg", filename: "asfl" },
};

const chosen = (key) => picked[key] ?? data.chosen[key];
const keyOf = (place) => place.dataset.by.split(" ").map((key) => chosen(key) ?? "").join("|");

// A copy in the colours of the page: plotly may change what it is given.
function themed(value) {
  if (typeof value === "string") return isDark() ? data.dark[value] ?? value : value;
  if (Array.isArray(value)) return value.map(themed);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, part]) => [key, themed(part)])) : value;
}

function draw(place) {
  const figure = data.charts[place.id][keyOf(place)];
  place.hidden = !figure;
  if (!figure) return;
  const wanted = [keyOf(place), root.dataset.theme, narrow()].join("|");
  if (place.drawn === wanted) return; // a click changes few of many charts
  place.drawn = wanted;
  // What the reader hid in a legend stays hidden, whatever is chosen.
  const layout = { ...figure.layout, template: data.template, dragmode: narrow() ? false : "zoom", legend: { uirevision: "kept" } };
  Plotly.react(place, themed(figure.data), themed(layout), CONFIG);
}

function drawAll() {
  for (const group of all("[data-choice]")) {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === chosen(group.dataset.choice)));
  }
  for (const part of all("[data-of-run]")) part.hidden = part.dataset.ofRun !== chosen("run");
  for (const select of all("[data-run]")) select.value = chosen("run");
  all(".chart").forEach(draw);
}

// ------------------------------------------------------------------ what the reader does
document.addEventListener("click", ({ target }) => {
  const button = target.closest("button"), group = button?.closest("[data-choice]");
  if (group) picked[group.dataset.choice] = button.dataset.value;
  else if (button?.matches(".sort")) return sortBy(button.closest("th"));
  else if (button?.matches(".csv")) return saveAsCsv(button.closest("figure"));
  else if (button?.matches(".theme")) paint(isDark() ? "light" : "dark");
  else return;
  drawAll();
});
document.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-run]")) return;
  picked.run = target.value;
  drawAll();
});

// ------------------------------------------------------------------ tables
// By number where a cell begins with one; what has none, such as "not reached", comes last in either direction.
const numberIn = (cell) => parseFloat(cell.textContent.replaceAll(",", "").replace("−", "-"));

function sortBy(header) {
  const column = header.cellIndex, table = header.closest("table"), up = header.ariaSort !== "ascending";
  const rows = [...table.tBodies[0].rows], byNumber = rows.some((row) => !Number.isNaN(numberIn(row.cells[column])));
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.ariaSort = up ? "ascending" : "descending";
  const compared = (a, b) => {
    if (!byNumber) return (up ? 1 : -1) * a.textContent.localeCompare(b.textContent);
    const [x, y] = [numberIn(a), numberIn(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return up ? x - y : y - x;
  };
  table.tBodies[0].append(...rows.sort((a, b) => compared(a.cells[column], b.cells[column])));
}

/** Whether a spreadsheet would compute a text: numbers with a sign and a unit are none. */
const isFormula = (text) => /^[=+\-@]/.test(text) && !/^[+-][\d.,]+( ?[%A-Za-zµ]{1,3})?$/.test(text);

function saveAsCsv(figure) {
  const quoted = (text) => `"${isFormula(text) ? "'" : ""}${text.replaceAll('"', '""')}"`;
  const cell = (one) => quoted(one.textContent.trim());
  const text = [...figure.querySelectorAll("tr")].map((row) => [...row.cells].map(cell).join(",")).join("\r\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", text, "\r\n"], { type: "text/csv" }));
  link.download = `${figure.querySelector("b").textContent.trim().replace(/[^A-Za-z0-9]+/g, "-").toLowerCase()}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// ------------------------------------------------------------------ light and dark
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function remembered(theme) {
  try {
    if (theme) localStorage.setItem("asfl-theme", theme);
    return localStorage.getItem("asfl-theme");
  } catch { return theme; } // a page without storage forgets
}

function paint(theme) {
  root.dataset.theme = remembered(theme) || (prefersDark.matches ? "dark" : "light");
}
prefersDark.addEventListener("change", () => { paint(); drawAll(); });

// ------------------------------------------------------------------ where the reader is
function begin() {
  drawAll();
  const links = all(".bar nav a");
  const watcher = new IntersectionObserver((entries) => {
    const here = entries.find((entry) => entry.isIntersecting);
    if (here) links.forEach((link) => link.toggleAttribute("aria-current", link.hash === `#${here.target.id}`));
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("section").forEach((section) => watcher.observe(section));
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
  const open = all("main details").map((one) => one.open), top = window.scrollY;
  all(".chart").forEach((place) => Plotly.purge(place));
  data = JSON.parse(newer.getElementById("data").textContent);
  for (const part of ["main", ".bar nav"]) document.querySelector(part).replaceWith(document.adoptNode(newer.querySelector(part)));
  document.title = newer.title;
  root.dataset.version = newer.documentElement.dataset.version;
  if (!all("[data-run] option").some((option) => option.value === picked.run)) delete picked.run;
  all("main details").forEach((one, index) => { one.open = open[index] ?? false; });
  begin();
  window.scrollTo({ top, behavior: "instant" });
}

paint();
begin();
if (root.dataset.version) {
  document.querySelector(".live").hidden = false;
  setInterval(() => { if (!document.hidden) lookForNews(); }, 3000);
}
