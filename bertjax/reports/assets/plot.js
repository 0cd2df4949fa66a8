// The plot: curves, axes, legend, pointer and keys.

const AXES = ["steps", "tokens", "hours"];
const TRAINING = "training";
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];
const MARGIN = { left: 58, right: 12, top: 10, bottom: 40 };
const NEAR = 50; // pixels between the pointer and a point that it chooses
const MAX_DOTS = 80; // of a curve
const MANY = 30; // curves, which are drawn thinner

const view = { metric: "", axis: 0, log: false, smoothing: 0, hidden: new Set(), splits: new Set() };
let shown = []; // the series in the plot, with the pixels of their points
const legend = []; // {box, item, number, name} of the runs with curves
let chosen = null; // {series, point}, or {run} while the pointer is on a row or a legend entry

function metrics() {
  const found = new Map();
  for (const part of data.parts) {
    for (const curve of part.curves) {
      if (!found.has(curve.metric)) found.set(curve.metric, new Set());
      found.get(curve.metric).add(curve.split);
    }
  }
  return found;
}

function evaluatedSplits(metric) {
  return [...(metrics().get(metric) || [])].filter((split) => split !== TRAINING).sort();
}

function smooth(values) {
  // Exponential moving average, without the bias to the initial zero.
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = view.smoothing * mean + (1 - view.smoothing) * value;
    weight = view.smoothing * weight + (1 - view.smoothing);
    return mean / weight;
  });
}

function visibleSeries() {
  const found = [];
  for (const part of data.parts) {
    if (view.hidden.has(part.run)) continue;
    for (const curve of part.curves) {
      if (curve.metric !== view.metric || view.splits.has(curve.split)) continue;
      const training = curve.split === TRAINING;
      const y = training && view.smoothing > 0 ? smooth(curve.y) : curve.y;
      const points = curve.at.map((row, n) => ({ x: part.x[row], y: y[n], raw: curve.y[n] }));
      found.push({ run: part.run, seed: part.seed, split: curve.split, training, points });
    }
  }
  return found;
}

function isDrawn(point) {
  return point.y !== null && point.x[view.axis] !== null && (!view.log || point.y > 0);
}

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough);
}

function linearTicks(low, high, count) {
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n += 1) ticks.push(n * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  if (inside.length < 3) return linearTicks(low, high, 5);
  return inside.length > 9 ? inside.filter((tick) => Number.isInteger(Math.log10(tick))) : inside;
}

function short(value) {
  const size = Math.abs(value);
  for (const [unit, length] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= length) return `${Number((value / length).toPrecision(4))}${unit}`;
  }
  if (size > 0 && size < 1e-3) return value.toExponential().replace(/(\.\d\d)\d+/, "$1");
  return String(Number(value.toPrecision(4)));
}

function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

function scales(series, width, height) {
  const points = series.flatMap((one) => one.points.filter(isDrawn));
  if (!points.length) return null;
  let [left, right] = range(points.map((point) => point.x[view.axis]));
  if (left === right) [left, right] = [left - (left / 2 || 1), right + (right / 2 || 1)];
  const to = view.log ? Math.log10 : (y) => y;
  let [low, high] = range(points.map((point) => to(point.y)));
  const pad = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low - pad, high + pad];
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  return {
    x: (x) => MARGIN.left + ((x - left) / (right - left)) * inner.width,
    y: (y) => MARGIN.top + (1 - (to(y) - low) / (high - low)) * inner.height,
    xTicks: linearTicks(left, right, Math.max(3, Math.floor(inner.width / 110))),
    yTicks: view.log ? logTicks(10 ** low, 10 ** high) : linearTicks(low, high, 6),
  };
}

function drawGrid(svg, scale, width, height) {
  const bottom = height - MARGIN.bottom;
  for (const tick of scale.yTicks) {
    const y = scale.y(tick);
    svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    svg.append(draw("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of scale.xTicks) {
    const x = scale.x(tick);
    svg.append(draw("line", { class: "grid", x1: x, x2: x, y1: bottom, y2: bottom + 5 }));
    svg.append(draw("text", { x, y: bottom + 18, "text-anchor": "middle" }, short(tick)));
  }
  const middle = (MARGIN.left + width - MARGIN.right) / 2;
  svg.append(draw("text", { x: middle, y: height - 4, "text-anchor": "middle" }, AXES[view.axis]));
}

function drawSeries(svg, series, scale, splits) {
  let path = "";
  let pen = "M";
  series.pixels = [];
  for (const point of series.points) {
    if (!isDrawn(point)) {
      pen = "M";
      continue;
    }
    const [x, y] = [scale.x(point.x[view.axis]), scale.y(point.y)];
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
    series.pixels.push({ x, y, point });
  }
  const kind = series.training ? (splits.length ? "training overlaid" : "training") : "evaluated";
  const line = draw("path", { class: `curve ${kind}`, d: path || "M0 0" });
  if (!series.training) line.setAttribute("stroke-dasharray", DASHES[splits.indexOf(series.split) % DASHES.length]);
  series.elements = [line];
  const dotted = !series.training || series.pixels.length === 1;
  if (dotted && series.pixels.length <= MAX_DOTS) {
    for (const { x, y } of series.pixels) {
      series.elements.push(draw("circle", { class: "dot", cx: x, cy: y, r: 2.8 }));
    }
  }
  for (const element of series.elements) element.style.setProperty("--run", colour(series.run));
  svg.append(...series.elements);
}

function redraw() {
  const plot = byId("plot");
  const width = Math.max(280, Math.floor(plot.clientWidth));
  const height = Math.round(Math.min(480, Math.max(270, width * 0.5)));
  const splits = evaluatedSplits(view.metric);
  const svg = draw("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "application",
    "aria-roledescription": "line plot",
    "aria-label": `${view.metric} by ${AXES[view.axis]}. Left and right: points. Up and down: curves.`,
  });
  shown = visibleSeries();
  plot.classList.toggle("many", shown.length > MANY);
  const scale = scales(shown, width, height);
  if (scale) {
    drawGrid(svg, scale, width, height);
    // Curves of evaluations lie above those of training.
    shown.sort((a, b) => b.training - a.training);
    for (const series of shown) drawSeries(svg, series, scale, splits);
  } else {
    const what = data.parts.length ? "Nothing to draw for this choice" : "No metrics yet";
    svg.append(draw("text", { class: "empty", x: width / 2, y: height / 2 }, what));
  }
  plot.replaceChildren(svg);
  svg.addEventListener("pointermove", choosePointer);
  svg.addEventListener("pointerdown", choosePointer);
  svg.addEventListener("pointerleave", () => choose(null));
  svg.addEventListener("keydown", chooseKey);
  svg.addEventListener("blur", () => choose(null));
  chosen = null;
  byId("tooltip").hidden = true;
  plot.classList.remove("chosen");
  drawKey(splits);
  const withCurve = new Set(shown.map((series) => series.run));
  for (const { item, number, box } of legend) item.classList.toggle("absent", box.checked && !withCurve.has(number));
}

// The legend of line styles by split; a click hides a split.
function drawKey(splits) {
  const all = metrics().get(view.metric) || new Set();
  const drawn = [TRAINING, ...splits].filter((split) => all.has(split));
  byId("key").replaceChildren(
    ...drawn.map((split) => {
      const svg = draw("svg", { width: 34, height: 10, "aria-hidden": "true" });
      const evaluated = split !== TRAINING;
      svg.append(draw("line", {
        x1: 1, x2: 33, y1: 5, y2: 5, "stroke-width": evaluated ? 2.2 : 1.2,
        "stroke-dasharray": evaluated ? DASHES[splits.indexOf(split) % DASHES.length] : "",
      }));
      if (evaluated) svg.append(draw("circle", { cx: 17, cy: 5, r: 3 }));
      const pressed = String(!view.splits.has(split));
      const button = make("button", { type: "button", "aria-pressed": pressed }, svg, split);
      button.addEventListener("click", () => {
        view.splits[view.splits.has(split) ? "delete" : "add"](split);
        redraw();
        byId("key").children[drawn.indexOf(split)].focus();
      });
      return button;
    }),
  );
}

function label(series) {
  const seed = series.seed === null ? "" : `, seed ${series.seed}`;
  return data.runs[series.run].name + seed;
}

function describe(series, point) {
  const [step, tokens, hours] = point.x;
  const value = point.raw === point.y ? "" : ` (smoothed ${point.y.toPrecision(5)})`;
  const lines = [`${series.split} ${view.metric}: ${point.raw.toPrecision(5)}${value}`];
  lines.push(`step ${step.toLocaleString("en")}`);
  if (tokens !== null) lines[1] += `, ${short(tokens)} tokens`;
  if (hours !== null) lines[1] += `, ${Number(hours.toPrecision(3))} h`;
  return lines;
}

function choose(next) {
  chosen = next;
  const [plot, tooltip] = [byId("plot"), byId("tooltip")];
  plot.querySelectorAll(".marker").forEach((marker) => marker.remove());
  plot.classList.toggle("chosen", next !== null);
  for (const series of shown) {
    const active = next !== null && (next.series ? series === next.series : series.run === next.run);
    for (const element of series.elements || []) element.classList.toggle("active", active);
  }
  tooltip.hidden = !next || !next.point;
  if (tooltip.hidden) return;
  const { series, point } = next;
  const marker = draw("circle", { class: "marker", cx: point.x, cy: point.y, r: 5 });
  marker.style.setProperty("--run", colour(series.run));
  plot.firstChild.append(marker);
  const lines = describe(series, point.point);
  tooltip.style.setProperty("--run", colour(series.run));
  tooltip.replaceChildren(make("strong", {}, ...breakable(label(series))), ...lines.map((line) => make("div", {}, line)));
  const left = point.x + 14 + tooltip.offsetWidth > plot.clientWidth;
  tooltip.style.left = `${Math.max(0, left ? point.x - 14 - tooltip.offsetWidth : point.x + 14)}px`;
  tooltip.style.top = `${Math.max(0, point.y - tooltip.offsetHeight - 10)}px`;
}

function choosePointer(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let best = NEAR * NEAR;
  let nearest = null;
  for (const series of shown) {
    for (const point of series.pixels) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < best) [best, nearest] = [distance, { series, point }];
    }
  }
  choose(nearest);
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function chooseKey(event) {
  if (event.key === "Escape") choose(null);
  if (!(event.key in MOVES)) return;
  const all = shown.filter((series) => series.pixels.length);
  if (!all.length) return;
  event.preventDefault();
  let series = all[0];
  let point = series.pixels[0];
  if (chosen && chosen.point) {
    const [down, right] = MOVES[event.key];
    const number = all.indexOf(chosen.series);
    series = all[(number + down + all.length) % all.length];
    const place = series.pixels;
    if (down) {
      const gap = (one) => Math.abs(one.x - chosen.point.x);
      point = place.reduce((a, b) => (gap(b) < gap(a) ? b : a));
    } else {
      const at = place.indexOf(chosen.point) + right;
      point = place[Math.min(Math.max(at, 0), place.length - 1)];
    }
  }
  choose({ series, point });
  byId("spoken").textContent = [label(series), ...describe(series, point.point)].join(", ");
}

function fillControls() {
  const groups = [["Evaluations and training", true], ["Training alone", false]];
  for (const [title, evaluated] of groups) {
    const names = [...metrics().keys()].filter((name) => evaluatedSplits(name).length > 0 === evaluated);
    if (!names.length) continue;
    byId("metric").append(make("optgroup", { label: title }, ...names.map((name) => make("option", { value: name }, name))));
  }
  const all = metrics();
  view.metric = [data.metric, "loss", ...all.keys()].find((name) => all.has(name)) || "";
  byId("metric").value = view.metric;
  const change = () => {
    view.metric = byId("metric").value;
    view.axis = Number(new FormData(byId("controls")).get("axis"));
    view.log = byId("log").checked;
    view.smoothing = Number(byId("smoothing").value);
    redraw();
  };
  byId("controls").addEventListener("input", change);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  change(); // a reloaded page keeps the choices of its controls
}

function fillLegend() {
  const drawn = new Set(data.parts.map((part) => part.run));
  for (const [number, run] of data.runs.entries()) {
    if (!drawn.has(number)) continue;
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      view.hidden[box.checked ? "delete" : "add"](number);
      redraw();
    });
    const entry = make("label", {}, box, swatch(number), make("span", {}, ...breakable(run.name)));
    const item = make("li", {}, entry);
    item.addEventListener("pointerenter", () => choose({ run: number }));
    item.addEventListener("pointerleave", () => choose(null));
    byId("legend-list").append(item);
    legend.push({ box, item, number, name: run.name.toLowerCase() });
  }
  const setAll = (checked) => {
    // With a filter, only the listed runs change.
    for (const { box, item, number } of legend) {
      if (item.hidden) continue;
      box.checked = checked;
      view.hidden[checked ? "delete" : "add"](number);
    }
    redraw();
  };
  byId("show-all").addEventListener("click", () => setAll(true));
  byId("show-none").addEventListener("click", () => setAll(false));
  byId("filter").addEventListener("input", () => {
    const text = byId("filter").value.toLowerCase();
    for (const { item, name } of legend) item.hidden = !name.includes(text);
  });
  byId("legend-controls").hidden = legend.length < 2;
}
