// Tables of runs, which can be sorted, and of scores.

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortRows(body, rows, column, sign) {
  const order = [...rows].sort((a, b) => {
    const [first, second] = [a.cells[column].value, b.cells[column].value];
    if (first === null || second === null) return (first === null) - (second === null);
    return sign * compare(first, second);
  });
  body.append(...order.map((row) => row.element));
}

function headerRows(columns, numeric, onSort) {
  const names = make("tr");
  const groups = make("tr");
  let last = null;
  for (const [number, column] of columns.entries()) {
    const button = make("button", { type: "button" }, ...breakable(column.name));
    const cell = make("th", { scope: "col", className: numeric[number] ? "number" : "" }, button);
    button.addEventListener("click", () => onSort(number, cell));
    if (last === null || column.group !== last.group) {
      const element = make("th", { colSpan: 0, scope: "colgroup", className: "group" }, column.group);
      last = { group: column.group, element, count: 0 };
      groups.append(element);
      if (number) {
        cell.classList.add("start");
        element.classList.add("start");
      }
    }
    last.count += 1;
    last.element.colSpan = last.count;
    names.append(cell);
  }
  return columns.some((column) => column.group) ? [groups, names] : [names];
}

function runTable(table) {
  const numeric = table.columns.map((_, n) =>
    table.rows.every((row) => row[n].value === null || typeof row[n].value === "number"));
  const starts = table.columns.map((column, n) => n > 0 && column.group !== table.columns[n - 1].group);
  const body = make("tbody");
  const rows = table.rows.map((cells, number) => {
    const run = table.runs[number];
    const element = make("tr");
    for (const [n, cell] of cells.entries()) {
      if (n === 0) {
        const name = make("span", { className: "name" }, ...breakable(cell.text));
        element.append(make("th", { scope: "row" }, swatch(run), make("a", { href: `#run-${run}` }, name)));
        continue;
      }
      const state = table.columns[n].name === "state" ? `state ${cell.text.replace(" ", "-")}` : "";
      const names = [numeric[n] ? "number" : "", starts[n] ? "start" : "", state];
      const made = make("td", { className: names.filter(Boolean).join(" ") }, cell.text);
      if (cell.title) made.title = cell.title;
      element.append(made);
    }
    element.addEventListener("pointerenter", () => choose({ run }));
    element.addEventListener("pointerleave", () => choose(null));
    return { cells, element };
  });
  body.append(...rows.map((row) => row.element));
  let sorted = null;
  const header = headerRows(table.columns, numeric, (column, cell) => {
    const sign = sorted && sorted.cell === cell ? -sorted.sign : 1;
    if (sorted) sorted.cell.removeAttribute("aria-sort");
    sorted = { cell, sign };
    cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    sortRows(body, rows, column, sign);
  });
  return scrollable(table.title, make("table", {}, make("thead", {}, ...header), body));
}

function scrollable(title, table) {
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": title }, table);
}

// A table that is not sorted, such as of a suite, whose last row is the average.
function plainTable(title, header, rows) {
  const cell = (name, { text, title: whole }, properties = {}) => {
    const made = make(name, properties, ...breakable(text));
    if (whole) made.title = whole;
    return made;
  };
  const head = make("tr", {}, ...header.map((text) => make("th", { scope: "col" }, ...breakable(text))));
  const body = rows.map(([first, ...rest]) =>
    make("tr", {}, cell("th", first, { scope: "row" }), ...rest.map((one) => cell("td", one))));
  return scrollable(title, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function fillTables() {
  for (const table of data.tables) {
    byId("runs").append(make("h3", {}, table.title), runTable(table));
    if (!table.differences) continue;
    const title = `${table.title}: config fields that differ`;
    byId("runs").append(make("h3", {}, title), plainTable(title, table.differences.header, table.differences.rows));
  }
  const notes = data.runs.filter((run) => run.note);
  const items = notes.map((run) => make("li", {}, `${run.name}: ${run.note}`));
  if (notes.length) byId("runs").append(make("ul", { className: "note" }, ...items));
  if (!data.tables.length) byId("runs").append(make("p", { className: "note" }, "No run has started."));
  for (const suite of data.suites) byId("scores").append(make("h3", {}, suite.title), plainTable(suite.title, suite.header, suite.rows));
  for (const table of data.scores) byId("scores").append(make("h3", {}, table.title), runTable(table));
  if (!data.suites.length && !data.scores.length) byId("scores").remove();
}
