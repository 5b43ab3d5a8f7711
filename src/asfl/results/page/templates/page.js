// Shows the charts that Python drew, in the choice the reader wants, and keeps that choice.
"use strict";

const root = document.documentElement;
const all = (selector) => [...document.querySelectorAll(selector)];
const narrow = () => window.innerWidth < 560;
const picked = {};
let data = JSON.parse(document.getElementById("data").textContent);

// ------------------------------------------------------------------ drawing
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, plotlyServerURL: "", topojsonURL: "" };

const rounds = () => data.rounds[chosen("run")] ?? [];
const roundAt = () => Math.min(picked.round ?? 0, rounds().length - 1);
const chosen = (key) => key === "round" ? rounds()[roundAt()] : picked[key] ?? data.chosen[key];
const keyOf = (place) => place.dataset.by.split(" ").map((key) => chosen(key) ?? "").join("|");

function draw(place) {
  const figure = data.charts[place.id][keyOf(place)];
  place.hidden = !figure;
  if (!figure) return;
  const wanted = [keyOf(place), narrow()].join("|");
  if (place.drawn === wanted) return; // a click changes few of many charts
  place.drawn = wanted;
  // What the reader hid in a legend stays hidden, whatever is chosen.
  const layout = { ...figure.layout, template: data.template, dragmode: narrow() ? false : "zoom", legend: { uirevision: "kept" } };
  Plotly.react(place, structuredClone(figure.data), structuredClone(layout), CONFIG); // plotly may change what it is given
}

function drawAll() {
  for (const group of all("[data-choice]")) {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === chosen(group.dataset.choice)));
  }
  for (const part of all("[data-of-run]")) part.hidden = part.dataset.ofRun !== chosen("run");
  for (const select of all("[data-run]")) select.value = chosen("run");
  for (const slider of all("[data-round]")) {
    slider.parentElement.hidden = rounds().length < 2;
    [slider.max, slider.value] = [rounds().length - 1, roundAt()];
    slider.setAttribute("aria-valuetext", `round ${chosen("round")}`);
  }
  all(".chart").forEach(draw);
}

// ------------------------------------------------------------------ what the reader does
document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-choice] button");
  if (!button) return;
  picked[button.parentElement.dataset.choice] = button.dataset.value;
  drawAll();
});
document.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-run]")) return;
  picked.run = target.value;
  drawAll();
});
document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-round]")) return;
  picked.round = Number(target.value);
  drawAll();
});

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

begin();
if (root.dataset.version) {
  document.querySelector(".live").hidden = false;
  setInterval(() => { if (!document.hidden) lookForNews(); }, 3000);
}
