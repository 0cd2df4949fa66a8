// Data, and elements that show it.
"use strict";

// Data: see bertjax/reports/page.py. Text from runs is only ever set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);

const byId = (id) => document.getElementById(id);

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

// A fixed palette for up to ten runs; for more, hues in the order of the runs, as of a sweep.
const PALETTE_SIZE = 10;

function colour(run) {
  const count = data.runs.length;
  if (count <= PALETTE_SIZE) return `var(--c${run})`;
  return `oklch(var(--lightness) var(--chroma) ${Math.round((360 * run) / count) + 20})`;
}

function swatch(run) {
  const element = make("span", { className: "swatch" });
  element.style.setProperty("--run", colour(run));
  return element;
}

// A name that breaks into lines at commas and slashes only, not at the minus sign of a number.
function breakable(text, where = /(?<=[,/])/) {
  const parts = text.split(where);
  return parts.flatMap((part, n) => [...(n ? [make("wbr")] : []), make("span", { className: "part" }, part)]);
}
