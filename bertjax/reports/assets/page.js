// Commands and configs; fills the page.

// Each command once, below the starts with it.
function commandText(run) {
  const starts = new Map();
  for (const start of run.starts) {
    const from = start.first_step ? `, from step ${start.first_step.toLocaleString("en")}` : "";
    const line = `# ${start.time}${from}, ${start.device}, bertjax ${start.bertjax}, jax ${start.jax}`;
    starts.set(start.command, [...(starts.get(start.command) || []), line]);
  }
  if (!starts.size && run.command) starts.set(run.command, []);
  return [...starts].map(([command, lines]) => [...lines, command].join("\n")).join("\n\n");
}

// Lines that break between words only, so that an option is not broken after its hyphens.
function commandLines(text) {
  return text.split("\n").map((line) => make("div", {}, ...breakable(line, /(?<= )/)));
}

function fillConfigs() {
  for (const [number, run] of data.runs.entries()) {
    const state = make("span", { className: `state ${run.state.replace(" ", "-")}` }, run.state);
    const body = [make("p", { className: "note" }, [run.kind, run.path, ...run.details].join(" · "))];
    if (run.note) body.push(make("p", {}, run.note));
    const command = commandText(run);
    body.push(make("h3", {}, "Commands"));
    body.push(command ? make("pre", {}, ...commandLines(command)) : make("p", { className: "note" }, "Not recorded."));
    body.push(make("h3", {}, "Config"), make("pre", { tabIndex: 0 }, run.config));
    const summary = make("summary", {}, swatch(number), " ", ...breakable(run.name), state);
    byId("configs").append(make("details", { id: `run-${number}` }, summary, ...body));
  }
  const setAll = (open) => document.querySelectorAll("details").forEach((one) => { one.open = open; });
  byId("unfold-all").addEventListener("click", () => setAll(true));
  byId("fold-all").addEventListener("click", () => setAll(false));
  const unfold = () => {
    const target = location.hash.startsWith("#run-") && byId(location.hash.slice(1));
    if (target) target.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
}

function fillHeader() {
  byId("about").textContent = `${data.summary} · written ${data.written} by bertjax ${data.version}`;
  for (const section of document.querySelectorAll("main > section")) {
    const title = section.querySelector("h2").textContent;
    byId("sections").append(make("a", { href: `#${section.id}` }, title));
  }
}

fillTables();
fillHeader();
fillLegend();
fillControls();
fillConfigs();
let drawnWidth = byId("plot").clientWidth;
new ResizeObserver(() => {
  if (byId("plot").clientWidth === drawnWidth) return;
  drawnWidth = byId("plot").clientWidth;
  redraw();
}).observe(byId("plot"));
