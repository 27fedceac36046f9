(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const files = [...document.querySelectorAll("template.file")];
  const waysOf = { cupy: "cuda", pybind: "cuda" };
  const wayOf = (label) => waysOf[label.split(".")[0]] || label.split(".")[0];
  const all = (root, selector) => [...root.querySelectorAll(selector)];

  // ------------------------------------------------------------------ figures

  // Vega's label transform places names where no point lies; Vega-Lite has no word for it.
  const withLabels = (names, datasets) => (vega) => {
    if (!names) return vega;
    // The transform takes no mark without items.
    const avoid = names.avoid.filter((name) => !datasets[name] || datasets[name].length);
    const anchor = `${names.of}_marks`;
    const find = (marks) => {
      const list = marks.marks || [];
      return list.some((mark) => mark.name === anchor) ? list : list.map(find).find(Boolean);
    };
    find(vega).push({
      type: "text",
      from: { data: anchor },
      encode: {
        enter: {
          text: { field: "datum.label" },
          fill: { value: "var(--ink)" },
          font: { value: "system-ui, sans-serif" },
          fontSize: { value: 11 },
        },
      },
      transform: [
        {
          type: "label",
          size: { signal: "[max(1, width), max(1, height)]" },
          anchor: ["right", "left", "top-left", "top-right", "bottom-right", "bottom-left", "top", "bottom"],
          offset: [5],
          padding: 4,
          avoidMarks: avoid.map((name) => `${name}_marks`),
        },
      ],
    });
    return vega;
  };

  const heightOf = (figure, rows) => (figure.dataset.figure === "strip" ? 19 * rows.length : SPECS[figure.dataset.figure].height);

  async function draw(figure, rows, given) {
    const plot = figure.querySelector(".plot");
    figure.hidden = !given;
    if (figure.view) figure.view.finalize();
    figure.view = null;
    if (!given) return;
    const spec = structuredClone(SPECS[figure.dataset.figure]);
    spec.datasets = structuredClone({ ...given.datasets, rows });
    spec.height = heightOf(figure, rows);
    for (const [channel, domain] of Object.entries(given.domain || {})) spec.encoding[channel].scale.domain = domain;
    if (given.x) Object.assign(spec.encoding.x.axis, { title: given.x, values: Object.values(given.cases) });
    const more = figure.querySelector(".more");
    if (more) more.textContent = given.caption || "";
    const labels = spec.usermeta && spec.usermeta.labels;
    const made = await vegaEmbed(plot, spec, {
      ast: true, // no eval: the page's policy allows none
      actions: false,
      renderer: "svg",
      patch: withLabels(labels, spec.datasets),
      tooltip: { theme: "plain", disableDefaultStyle: true },
    });
    figure.view = made.view;
  }

  // ------------------------------------------------------------------ tables

  function sortBy(table, header) {
    const column = [...header.parentNode.children].indexOf(header);
    const number = header.classList.contains("number");
    const up = header.getAttribute("aria-sort") !== "ascending";
    all(table, "th[aria-sort]").forEach((one) => one.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.children[column];
      return number ? parseFloat(cell.dataset.v) : cell.dataset.v || cell.textContent;
    };
    const compare = (a, b) => {
      if (!number) return (up ? 1 : -1) * a.localeCompare(b);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // no figure: last
      return (up ? 1 : -1) * (a - b);
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].map((row) => [value(row), row]);
      rows.sort(([a], [b]) => compare(a, b));
      body.append(...rows.map(([, row]) => row));
    }
  }

  for (const table of all(document, ".sortable")) {
    for (const button of all(table, "th button")) {
      button.addEventListener("click", () => sortBy(table, button.closest("th")));
    }
  }

  // ------------------------------------------------------------------ sources

  function choices(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
  }

  function showFile(column, given) {
    const pre = column.querySelector(".code");
    const number = Number(column.querySelector(".name").value);
    pre.replaceChildren(files[number].content.cloneNode(true));
    pre.scrollTo(0, 0);
    if (number !== given.files[0]) return;
    const [first, last] = given.lines;
    const lines = pre.children;
    for (let i = first; i <= last; i++) lines[i - 1].classList.add("lit");
    pre.scrollTop = Math.max(0, lines[first - 1].offsetTop - 24);
  }

  function showLabel(column, sources, label) {
    const given = sources[label];
    column.querySelector(".label").value = label;
    choices(column.querySelector(".name"), given.files.map((number) => [number, files[number].dataset.name]));
    showFile(column, given);
  }

  function wireSources(op, sources) {
    const columns = all(op, ".column");
    const ofWay = {};
    for (const column of columns) {
      const way = column.dataset.way;
      ofWay[way] = Object.keys(sources).filter((label) => wayOf(label) === way);
      column.hidden = !ofWay[way].length;
      if (column.hidden) continue;
      const select = column.querySelector(".label");
      choices(select, ofWay[way].map((label) => [label, label]));
      select.selectedIndex = -1;
      select.addEventListener("change", () => showLabel(column, sources, select.value));
      column.querySelector(".name").addEventListener("change", () => showFile(column, sources[select.value]));
    }
    // Beside a row: the same name in each other way, else that way's first.
    const beside = (label) => {
      const name = label.split(".").slice(1).join(".").split(":")[0];
      for (const column of columns.filter((one) => !one.hidden)) {
        const labels = ofWay[column.dataset.way];
        const same = labels.find((one) => one.split(".").slice(1).join(".") === name);
        const select = column.querySelector(".label");
        const current = select.value || labels.find((one) => one.endsWith(".eager")) || labels[0];
        const own = labels.includes(label) ? label : same || current;
        showLabel(column, sources, own);
      }
    };
    const first = (ofWay.triton && ofWay.triton[0]) || Object.keys(sources)[0];
    if (columns.length && first) beside(first);
    for (const button of all(op, ".show")) {
      button.addEventListener("click", () => {
        beside(button.dataset.label);
        op.querySelector(".sources").scrollIntoView();
      });
    }
  }

  // ------------------------------------------------------------------ one op

  function wire(op) {
    const given = data.ops[op.dataset.op];
    const picker = op.querySelector(".case");
    const table = op.querySelector(".summary");
    const bodies = all(table, "tbody");
    const sweep = op.querySelector("figure[data-figure=sweep]");
    const show = async () => {
      for (const body of bodies) {
        body.hidden = body.dataset.case !== picker.value;
        if (!body.hidden) op.querySelector(".summary").closest("section").querySelector(".caption").textContent = body.dataset.caption;
      }
      const { rows, roofline } = given.cases[picker.value] || { rows: [] };
      const shown = { strip: rows.length && {}, roofline, effort: rows.some((row) => row.front) && {}, tuning: rows.some((row) => row.tuned) && {} };
      for (const figure of all(op, "figure")) {
        if (figure !== sweep) await draw(figure, rows, shown[figure.dataset.figure]);
      }
    };
    for (const figure of all(op, "figure")) { // so that nothing moves while the figures are drawn one by one
      const { rows } = given.cases[picker.value] || { rows: [] };
      figure.querySelector(".plot").style.minHeight = `${heightOf(figure, rows) + 50}px`;
    }
    picker.disabled = bodies.length < 2;
    picker.addEventListener("change", show);
    const line = op.querySelector(".line");
    const curve = () => {
      const chosen = given.sweeps[line.value];
      const of = ([name, x]) => given.cases[name].rows.map((row) => ({ ...row, samples: [], case: name, x }));
      return draw(sweep, Object.entries(chosen.cases).flatMap(of), chosen);
    };
    if (line) line.addEventListener("change", curve);
    op.querySelector(".if-library").hidden = !op.querySelector("tbody .key.library");
    wireSources(op, given.sources);
    return async () => {
      await show();
      if (line) await curve();
    };
  }

  function follow() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", follow);

  (async () => {
    const starts = all(document, ".op").map(wire);
    follow();
    for (const start of starts) {
      await start();
      await new Promise((next) => setTimeout(next));
    }
    document.body.dataset.ready = "";
  })();
})();
