"use strict";

(async () => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...inner) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...inner);
    return element;
  };

  const bytes = Uint8Array.from(atob($("packed").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { kernels, texts, kinds, sources, diffs, tints } = JSON.parse(await new Response(unpacked).text());

  const SIDES = ["left", "right"];
  const FIRST = ["source", "sass"];
  const ORDER = ["inductor", "frontend", "ttir", "ttgir", "llir", "ptx"];
  const GROUP = 200; // lines that the browser lays out together, once they come into view
  const hidden = new Set(["frontend", "llir"]);
  const columns = { left: [], right: [] };
  let chosen = null; // {side, line}

  const nameOf = (kernel) => `${kernel.label}: ${kernel.kernel}`;
  const kernelOf = (side) => ($(side).value === "" ? undefined : kernels[Number($(side).value)]);
  const shown = () => SIDES.filter(kernelOf);
  const milliseconds = (ms) => (ms === null ? "-" : ms < 10 ? ms.toFixed(1) : String(Math.round(ms)));

  // ------------------------------------------------------------------ columns

  const escaped = (text) => text.replace(/[&<]/g, (sign) => (sign === "&" ? "&amp;" : "&lt;"));

  function coloured(text, runs) {
    let made = "";
    let at = 0;
    for (const run of runs ? runs.split(" ") : []) {
      const length = parseInt(run, 10);
      const letter = run.slice(String(length).length);
      const part = escaped(text.slice(at, at + length));
      made += letter ? `<span class="${letter}">${part}</span>` : part;
      at += length;
    }
    return made + escaped(text.slice(at));
  }

  function column(side, kernel, stage) {
    const { lines } = texts[stage.text];
    const list = make("div", { className: "code", tabIndex: 0 });
    list.setAttribute("aria-label", `${kernel.label} ${stage.name}`);
    list.setAttribute("role", "listbox");
    const took = stage.ms === null ? "" : ` · ${milliseconds(stage.ms)} ms`;
    const where = stage.name === "source" ? kernel.file : stage.by;
    const element = make(
      "section",
      { className: `column ${side}`, hidden: hidden.has(stage.name) },
      make("h3", { textContent: `${kernel.label} ${stage.name}` }),
      make("p", { className: "by", textContent: `${where}${took} · ${stage.bytes} bytes` }),
      list,
    );
    element.dataset.stage = stage.name;
    const own = { side, stage: stage.name, text: stage.text, element, list, lines, items: null, cursor: 0, lit: [] };
    list.addEventListener("click", (event) => {
      const item = event.target.closest(".line");
      if (!item) return;
      point(own, Number(item.dataset.index));
      choose(own);
      if (event.target.matches(".number")) link(own);
    });
    list.addEventListener("keydown", (event) => keyed(event, own));
    list.addEventListener("mouseover", (event) => glow(own, Number(event.target.closest(".line")?.dataset.index)));
    list.addEventListener("mouseleave", () => glow());
    list.addEventListener("blur", () => glow());
    return own;
  }

  // Of a source, its line in the file.
  const numberOf = (own, index) => (own.stage === "source" ? own.lines[index][0] : index + 1);

  // By source line that became machine code: its tint. Lines that follow each other differ.
  function tinted(side) {
    const sass = columns[side].find((own) => own.stage === "sass");
    const lines = [...new Set((sass?.lines ?? []).map(([line]) => line))].filter((line) => line !== undefined);
    return new Map(lines.sort((one, other) => one - other).map((line, place) => [line, place % tints]));
  }

  // Under the mouse or the cursor: a line and all that it comes from or became.
  let near = [];
  function glow(own, index) {
    for (const item of near) item.classList.remove("near");
    const line = own?.lines[index]?.[0];
    const of = line === undefined ? [] : columns[own.side].filter((one) => one.items);
    near = of.flatMap((one) => [...one.items].filter((_, at) => one.lines[at].includes(line)));
    for (const item of near) item.classList.add("near");
  }

  // A column's lines are made when it is shown: LLVM IR alone can be megabytes.
  function fillIn(own) {
    if (own.items || own.element.hidden) return;
    const { text, lines, colours } = texts[own.text];
    const runs = colours.split("\n");
    const tintOf = tinted(own.side);
    const rows = text.split("\n").map((row, index) => {
      const number = `<span class="number" title="Link to this line">${numberOf(own, index)}</span>`;
      const traced = lines[index].length ? " data-traced" : "";
      const id = `${own.side}-${own.stage}-${index}`;
      const tint = tintOf.has(lines[index][0]) ? ` style="--tint: var(--tint-${tintOf.get(lines[index][0])})"` : "";
      return `<div class="line" role="option" id="${id}" data-index="${index}"${traced}${tint}>${number}${coloured(row, runs[index])}</div>`;
    });
    const groups = [];
    for (let at = 0; at < rows.length; at += GROUP) groups.push(rows.slice(at, at + GROUP).join(""));
    own.list.innerHTML = groups.map((group) => `<div role="presentation">${group}</div>`).join("");
    own.items = own.list.querySelectorAll(".line");
  }

  function point(own, index) {
    own.items?.[own.cursor].classList.remove("cursor");
    own.cursor = Math.max(0, Math.min(own.lines.length - 1, index));
    if (!own.items) return;
    const item = own.items[own.cursor];
    item.classList.add("cursor");
    own.list.setAttribute("aria-activedescendant", item.id);
    reveal(own, own.cursor, false);
  }

  function reveal(own, index, centred) {
    if (!own.items) return;
    const { list } = own;
    const box = list.getBoundingClientRect();
    const line = own.items[index].getBoundingClientRect();
    if (line.height && (centred || line.top < box.top || line.bottom > box.bottom)) {
      list.scrollTop += line.top - box.top - list.clientHeight / 3;
    }
  }

  const lineHeight = (own) => parseFloat(getComputedStyle(own.list).lineHeight);

  function keyed(event, own) {
    const page = Math.max(1, Math.floor(own.list.clientHeight / lineHeight(own)) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in steps) {
      point(own, own.cursor + steps[event.key]); // which ends at the first and the last line
      glow(own, own.cursor);
    }
    else if (event.key === "Enter" || event.key === " ") choose(own);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const all = visible();
      const next = all[all.indexOf(own) + (event.key === "ArrowRight" ? 1 : -1)];
      if (next) {
        next.list.focus();
        next.element.scrollIntoView({ block: "nearest" });
      }
    } else return;
    event.preventDefault();
  }

  function choose(own) {
    const line = own.lines[own.cursor][0];
    if (line !== undefined) light({ side: own.side, line }, own);
  }

  function light(wanted, from) {
    chosen = wanted;
    const counts = [];
    for (const own of inOrder()) {
      for (const item of own.lit) {
        item.classList.remove("lit");
        item.removeAttribute("aria-selected");
      }
      own.lit = [];
      if (wanted === null || own.side !== wanted.side) continue;
      const found = [...own.lines.keys()].filter((index) => own.lines[index].includes(wanted.line));
      if (own.stage !== "source") counts.push(`${found.length} ${own.stage}`);
      if (found.length && own !== from) {
        point(own, found[0]);
        reveal(own, found[0], true);
      }
      own.lit = own.items ? found.map((index) => own.items[index]) : [];
      for (const item of own.lit) {
        item.classList.add("lit");
        item.setAttribute("aria-selected", "true");
      }
    }
    const kernel = wanted && kernelOf(wanted.side);
    $("status").textContent = wanted
      ? `${kernel.file}:${wanted.line} of ${kernel.label} became lines: ${counts.join(", ")}.`
      : "No line chosen.";
  }

  // Source and SASS of one kernel side by side; of the further stages, those of both kernels.
  const inOrder = () => {
    const all = SIDES.flatMap((side) => columns[side]);
    const further = all.filter((own) => !FIRST.includes(own.stage));
    further.sort((one, other) => ORDER.indexOf(one.stage) - ORDER.indexOf(other.stage));
    return [...all.filter((own) => FIRST.includes(own.stage)), ...further];
  };
  const visible = () => inOrder().filter((own) => !own.element.hidden);

  function place() {
    const failed = shown().map(kernelOf).filter((kernel) => kernel.failure);
    const failures = failed.map(({ label, failure: { stage, line, message } }) => {
      const textContent = `${label} stopped at ${stage}${line ? `, at ${line}` : ""}: ${message}`;
      return make("p", { className: "failure", textContent });
    });
    const further = inOrder().filter((own) => !FIRST.includes(own.stage));
    $("first").replaceChildren(...inOrder().filter((own) => FIRST.includes(own.stage)).map((own) => own.element));
    $("further").replaceChildren(...further.map((own) => own.element));
    $("failures").replaceChildren(...failures);
    for (const own of inOrder()) {
      fillIn(own);
      if (own.stage !== "source") continue;
      point(own, own.lines.findIndex(([line]) => line === kernelOf(own.side).first));
      reveal(own, own.cursor, true);
    }
    const boxes = [...new Set(further.map((own) => own.stage))].map((stage) => {
      const box = make("input", { type: "checkbox", checked: !hidden.has(stage) });
      box.addEventListener("change", () => display(stage, box.checked));
      box.dataset.stage = stage;
      return make("label", {}, box, stage);
    });
    $("shown").replaceChildren($("shown").firstElementChild, ...boxes);
  }

  function display(stage, on) {
    hidden[on ? "delete" : "add"](stage);
    for (const own of inOrder()) {
      own.element.hidden = hidden.has(own.stage);
      fillIn(own);
    }
    for (const box of $("shown").querySelectorAll("input")) box.checked = !hidden.has(box.dataset.stage);
    if (chosen) light(chosen, null);
    search();
  }

  // ------------------------------------------------------------------ search

  let matches = [];
  let match = -1; // the current one's place among them

  function search() {
    const wanted = $("find").value.trim().toLowerCase();
    for (const item of document.querySelectorAll(".found")) item.classList.remove("found", "current");
    matches = [];
    match = -1;
    for (const own of wanted ? visible() : []) {
      const rows = texts[own.text].text.toLowerCase().split("\n");
      rows.forEach((row, index) => row.includes(wanted) && matches.push({ own, index }));
    }
    for (const { own, index } of matches) own.items[index].classList.add("found");
    document.body.classList.toggle("only", wanted !== "" && $("only").checked);
    $("matches").textContent = wanted && `${matches.length} lines`;
  }

  function step(by) {
    if (!matches.length) return;
    matches[match]?.own.items[matches[match].index].classList.remove("current");
    match = match < 0 && by < 0 ? matches.length - 1 : (match + by + matches.length) % matches.length;
    const { own, index } = matches[match];
    own.items[index].classList.add("current");
    own.element.scrollIntoView({ block: "nearest" });
    point(own, index);
    $("matches").textContent = `${match + 1} of ${matches.length} lines: ${kernelOf(own.side).label} ${own.stage}`;
  }

  // ------------------------------------------------------------------ links

  // #sass-123 is line 123 of the first kernel's SASS; &side=right, &arch=, &left= and &right= choose others.
  function link(own) {
    const kernel = (side) => nameOf(kernelOf(side));
    const chosen = { side: own.side, arch: $("arch").value, left: kernel("left"), right: kernel("right") };
    history.replaceState(null, "", `#${own.stage}-${numberOf(own, own.cursor)}&${new URLSearchParams(chosen)}`);
    mark(own);
  }

  function mark(own) {
    document.querySelector(".line.linked")?.classList.remove("linked");
    own.items[own.cursor].classList.add("linked");
  }

  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if ([...$("arch").options].some((option) => option.value === asked.get("arch"))) $("arch").value = asked.get("arch");
    offer(asked);
    const [, stage, number] = [...asked.keys()].map((key) => key.match(/^(\w+)-(\d+)$/)).find(Boolean) ?? [];
    const own = columns[asked.get("side") === "right" ? "right" : "left"].find((one) => one.stage === stage);
    const index = own ? own.lines.findIndex((_, at) => numberOf(own, at) === Number(number)) : -1;
    if (index < 0) return;
    display(stage, true);
    own.element.scrollIntoView({ block: "start" });
    point(own, index);
    choose(own);
    reveal(own, index, true);
    mark(own);
  }

  // ------------------------------------------------------------------ steps, instruction mix

  const key = (side) => make("span", { className: `key ${side}`, textContent: kernelOf(side).label });

  function steps() {
    const cell = (text) => make("td", { textContent: text });
    const tables = shown().map((side) => {
      const heads = ["stage", "made by", "ms", "bytes"].map((text) => make("th", { textContent: text, scope: "col" }));
      const rows = kernelOf(side).stages.map(({ name, by, ms, bytes }) => {
        const head = make("th", { textContent: name, scope: "row" });
        return make("tr", {}, head, cell(by), cell(milliseconds(ms)), cell(bytes));
      });
      const caption = make("caption", {}, key(side));
      return make("table", {}, caption, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
    });
    $("steps").replaceChildren(...tables);
  }

  function bar(side, count, most) {
    const stripe = make("i");
    stripe.style.setProperty("--share", most ? count / most : 0);
    return make("div", { className: `bar ${side}` }, stripe, make("span", { textContent: count || "-" }));
  }

  function mix() {
    const mixes = shown().map((side) => kernelOf(side).mix);
    const most = Math.max(0, ...mixes.flatMap(Object.values));
    const here = kinds.filter((kind) => mixes.some((found) => kind in found));
    const rows = here.map((kind) => {
      const bars = shown().map((side, i) => bar(side, mixes[i][kind] || 0, most));
      return make("tr", {}, make("th", { textContent: kind, scope: "row" }), make("td", {}, ...bars));
    });
    const caption = make("caption", {}, ...shown().map(key));
    $("mix").replaceChildren(make("table", {}, caption, make("tbody", {}, ...rows)));
  }

  // ------------------------------------------------------------------ what only Triton has

  let listed = [];

  // The first kernel that has any; the section is hidden where none has.
  function having(section) {
    const found = shown().map(kernelOf).find((kernel) => kernel[section].length);
    $(section).hidden = !found;
    return found ?? { [section]: [] };
  }

  function passes() {
    const kernel = having("passes");
    const all = kernel.passes.map((pass, index) => ({ ...pass, number: index + 1, of: kernel }));
    listed = all.filter((pass) => $("every").checked || pass.changed);
    $("pass").max = Math.max(0, listed.length - 1); // the browser keeps the value below it
    pass();
  }

  function pass() {
    const one = listed[Number($("pass").value)];
    if (!one) {
      $("pass-name").textContent = "none changed anything";
      $("diff").replaceChildren();
      return;
    }
    const said = `${one.name} (${one.stage}), pass ${one.number} of ${one.of.passes.length} of ${one.of.label}`;
    $("pass-name").textContent = said;
    $("pass").setAttribute("aria-valuetext", said);
    const signs = { "+": "added", "-": "removed", "@": "place" };
    const rows = one.diff
      ? one.diff.split("\n").map((row) => make("span", { className: signs[row[0]] || "", textContent: `${row}\n` }))
      : ["It changed nothing."];
    $("diff").replaceChildren(...rows);
    $("diff").scrollTop = 0;
  }

  // What to change in the first kernel's source to get the second's, where both are of one language.
  function sourceDiff() {
    const [left, right] = SIDES.map((side) => sources[kernelOf(side)?.label]);
    const forward = diffs[`${left} ${right}`];
    const diff = left === right ? "" : (forward ?? diffs[`${right} ${left}`]);
    $("source-diff").hidden = diff === undefined;
    const heads = shown().map((side) => make("th", { scope: "col" }, key(side)));
    $("source-diff-head-row").replaceChildren(...heads);
    $("source-diff-rows").replaceChildren(...(diff ? sideBySide(diff, forward === undefined ? "+-" : "-+") : [cells(["Their sources are equal."], "")]));
  }

  const cells = (texts, kind) =>
    make("tr", { className: kind }, ...texts.map((textContent) => make("td", { textContent })));

  // The lines of a unified diff as rows of two cells: runs of lines that replace each other stand side by side.
  function sideBySide(diff, [left, right]) {
    const rows = [];
    let runs = { "-": [], "+": [] };
    const flush = () => {
      for (let i = 0; i < Math.max(runs["-"].length, runs["+"].length); i++) {
        rows.push(cells([runs[left][i] ?? "", runs[right][i] ?? ""], "changed"));
      }
      runs = { "-": [], "+": [] };
    };
    for (const line of diff.split("\n").slice(1)) { // the first names the place
      if (line[0] in runs) runs[line[0]].push(line.slice(1) || " "); // a cell that is not empty is coloured
      else {
        flush();
        rows.push(cells([line.slice(1), line.slice(1)], ""));
      }
    }
    flush();
    return rows;
  }

  // ------------------------------------------------------------------ choices

  function show() {
    for (const side of SIDES) {
      const stages = (kernelOf(side)?.stages ?? []).filter((stage) => stage.text !== null);
      columns[side] = stages.map((stage) => column(side, kernelOf(side), stage));
    }
    place();
    light(null, null);
    document.body.style.setProperty("--left", `var(--${kernelOf("left")?.way})`);
    const alike = kernelOf("left")?.way === kernelOf("right")?.way;
    document.body.style.setProperty("--right", alike ? "var(--faint)" : `var(--${kernelOf("right")?.way})`);
    sourceDiff();
    steps();
    mix();
    passes();
    search();
    for (const one of document.querySelectorAll(".difference")) one.hidden = one.dataset.arch !== $("arch").value;
  }

  function offer(asked = new URLSearchParams()) {
    const here = kernels.map((kernel, index) => ({ kernel, index })).filter(({ kernel }) => kernel.arch === $("arch").value);
    for (const side of SIDES) {
      const before = kernelOf(side);
      const wanted = ({ kernel }) => [nameOf(kernel), kernel.label].includes(asked.get(side));
      const named = ({ kernel }) => before && nameOf(kernel) === nameOf(before);
      const fit = ({ kernel }) => (kernel.way === "triton") === (side === "left");
      const options = here.map(({ kernel, index }) => make("option", { value: index, textContent: nameOf(kernel) }));
      $(side).replaceChildren(...options);
      const best = here.find(wanted) || here.find(named) || here.find(fit) || here[0];
      if (best) $(side).value = best.index;
    }
    show();
  }

  $("arch").addEventListener("change", () => offer());
  for (const side of SIDES) $(side).addEventListener("change", show);
  $("every").addEventListener("change", passes);
  $("pass").addEventListener("input", pass);
  for (const id of ["find", "only"]) $(id).addEventListener("input", search);
  $("wrap").addEventListener("change", () => document.body.classList.toggle("wrap", $("wrap").checked));
  $("next").addEventListener("click", () => step(1));
  $("previous").addEventListener("click", () => step(-1));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target === $("find")) {
      if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape" && chosen) light(null, null);
    else if (event.target.matches("select")) return; // letters choose an option there
    else if (event.key === "n") step(1);
    else if (event.key === "N") step(-1);
    else if (event.key === "/") {
      event.preventDefault();
      $("find").focus();
    }
  });
  addEventListener("hashchange", follow);
  follow();
  document.body.dataset.ready = "";
})();
