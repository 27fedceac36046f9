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
  const { kernels, texts, kinds } = JSON.parse(await new Response(unpacked).text());

  const SIDES = ["left", "right"];
  const ORDER = ["source", "inductor", "frontend", "ttir", "ttgir", "llir", "ptx", "sass"];
  const GROUP = 200; // lines that the browser lays out together, once they come into view
  const hidden = new Set(["frontend", "llir"]);
  const columns = { left: [], right: [] };
  let chosen = null; // {side, line}

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
      if (item) point(own, Number(item.dataset.index)), choose(own);
    });
    list.addEventListener("keydown", (event) => keyed(event, own));
    return own;
  }

  // A column's lines are made when it is shown: LLVM IR alone can be megabytes.
  function fillIn(own) {
    if (own.items || own.element.hidden) return;
    const { text, lines, colours } = texts[own.text];
    const runs = colours.split("\n");
    const rows = text.split("\n").map((row, index) => {
      const number = own.stage === "source" ? `<span class="number">${lines[index][0]}</span>` : "";
      const traced = lines[index].length ? " data-traced" : "";
      const id = `${own.side}-${own.stage}-${index}`;
      return `<div class="line" role="option" id="${id}" data-index="${index}"${traced}>${number}${coloured(row, runs[index])}</div>`;
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
    const height = lineHeight(own);
    const top = index * height; // lines are never wrapped, and not laid out before they are seen
    const inside = top >= list.scrollTop && top + height <= list.scrollTop + list.clientHeight;
    if (!inside || centred) list.scrollTop = top - (centred || !inside ? list.clientHeight / 3 : 0);
  }

  const lineHeight = (own) => parseFloat(getComputedStyle(own.list).lineHeight);

  function keyed(event, own) {
    const page = Math.max(1, Math.floor(own.list.clientHeight / lineHeight(own)) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in steps) point(own, own.cursor + steps[event.key]); // which ends at the first and the last line
    else if (event.key === "Enter" || event.key === " ") choose(own);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const all = inOrder().filter((other) => !other.element.hidden);
      const next = all[all.indexOf(own) + (event.key === "ArrowRight" ? 1 : -1)];
      if (next) {
        next.list.focus();
        next.element.scrollIntoView({ block: "nearest", inline: "nearest" });
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

  // A stage of the one way stands next to the same stage of the other.
  const inOrder = () =>
    SIDES.flatMap((side) => columns[side]).sort((one, other) => ORDER.indexOf(one.stage) - ORDER.indexOf(other.stage));

  function place() {
    const failed = shown().map(kernelOf).filter((kernel) => kernel.failure);
    const failures = failed.map(({ label, failure: { stage, line, message } }) => {
      const textContent = `${label} stopped at ${stage}${line ? `, at ${line}` : ""}: ${message}`;
      return make("p", { className: "failure", textContent });
    });
    $("columns").replaceChildren(...inOrder().map((own) => own.element));
    $("failures").replaceChildren(...failures);
    for (const own of inOrder()) {
      fillIn(own);
      if (own.stage !== "source") continue;
      point(own, own.lines.findIndex(([line]) => line === kernelOf(own.side).first));
      reveal(own, own.cursor, true);
    }
    const names = [...new Set(inOrder().map((own) => own.stage))];
    const boxes = names.map((name) => {
      const box = make("input", { type: "checkbox", checked: !hidden.has(name) });
      box.addEventListener("change", () => {
        hidden[box.checked ? "delete" : "add"](name);
        for (const own of inOrder()) {
          own.element.hidden = hidden.has(own.stage);
          fillIn(own);
        }
        if (chosen) light(chosen, null);
      });
      return make("label", {}, box, name);
    });
    $("shown").replaceChildren($("shown").firstElementChild, ...boxes);
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

  function dots() {
    const terms = ([stage, said]) => [make("dt", { textContent: stage }), make("dd", { textContent: said })];
    $("dots").lastElementChild.replaceChildren(...having("dots").dots.flatMap(terms));
  }

  function layouts() {
    const folded = having("layouts").layouts.map((text) => {
      const summary = make("summary", { textContent: text.split(" = ")[0].split("\n")[0] });
      return make("details", {}, summary, make("pre", { textContent: text, tabIndex: 0 }));
    });
    $("layouts").lastElementChild.replaceChildren(...folded);
  }

  // ------------------------------------------------------------------ choices

  function show() {
    for (const side of SIDES) {
      const stages = (kernelOf(side)?.stages ?? []).filter((stage) => stage.text !== null);
      columns[side] = stages.map((stage) => column(side, kernelOf(side), stage));
    }
    place();
    light(null, null);
    steps();
    mix();
    passes();
    dots();
    layouts();
    for (const one of document.querySelectorAll(".difference")) one.hidden = one.dataset.arch !== $("arch").value;
  }

  function offer() {
    const here = kernels.map((kernel, index) => ({ kernel, index })).filter(({ kernel }) => kernel.arch === $("arch").value);
    for (const side of SIDES) {
      const before = kernelOf(side);
      const named = ({ kernel }) => before && kernel.label === before.label && kernel.kernel === before.kernel;
      const fit = ({ kernel }) => (kernel.way === "triton") === (side === "left");
      const options = here.map(({ kernel, index }) => make("option", { value: index, textContent: `${kernel.label}: ${kernel.kernel}` }));
      $(side).replaceChildren(...options);
      const best = here.find(named) || here.find(fit) || here[0];
      if (best) $(side).value = best.index;
    }
    show();
  }

  $("arch").addEventListener("change", offer);
  for (const side of SIDES) $(side).addEventListener("change", show);
  $("every").addEventListener("change", passes);
  $("pass").addEventListener("input", pass);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen) light(null, null);
  });
  offer();
  document.body.dataset.ready = "";
})();
