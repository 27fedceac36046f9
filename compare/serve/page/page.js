// The page: what it shows, its state in the address, and the events of a run.  Texts of others become text nodes only.

const $ = (id) => document.getElementById(id);
const WAYS = { torch: "torch", triton: "Triton", cuda: "CUDA" };
const COMMENT = /^(?:#|\/\/) page: ([\w-]+)$/m;

let catalogue, stream;
let state = { op: "", way: "triton", case: "", arch: "sm_90a", labels: {}, texts: {}, lab: "", files: {}, file: "", predict: false, answers: {}, run: "", marks: {}, hints: {} };
const originals = {};  // by "op/way/label", and by "lab/file"
const sweeps = {};  // likewise: the last one measured, else the one on record
let lab = null;

const editor = startEditor();

function startEditor() {
  ace.config.set("useStrictCSP", true);
  ace.config.set("basePath", "ace");
  const found = ace.edit("editor", {
    theme: { cssClass: "ace-page", isDark: false, cssText: "" },
    useWorker: false, enableKeyboardAccessibility: true, showPrintMargin: false, useSoftTabs: true, tabSize: 4,
    fontSize: 13, fontFamily: 'ui-monospace, "DejaVu Sans Mono", monospace', textInputAriaLabel: "Source of the kernel", scrollPastEnd: 0.2,
  });
  found.commands.addCommand({ name: "run", bindKey: "Ctrl-Enter|Command-Enter", exec: run });
  found.session.on("change", () => { if (!found.quiet) edited(); });
  return found;
}

// ---------------------------------------------------------------------------- elements

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((each) => each != null));
  return made;
}

function table(head, rows) {
  const cells = (kind, row) => row.map((cell) => (cell instanceof Node && cell.matches?.("td,th") ? cell : el(kind, {}, cell ?? "")));
  const body = rows.map(({ cells: row, ...attributes }) => el("tr", attributes, ...cells("td", row)));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...body));
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function parsed(text, type) {
  return document.importNode(new DOMParser().parseFromString(text, type).documentElement, true);
}

// ---------------------------------------------------------------------------- requests

async function ask(path, body, method = body ? "POST" : "GET") {
  const given = body ? { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } } : {};
  let answer;
  try {
    answer = await fetch(path, { method, ...given });
  } catch {
    throw new Error("The server does not answer: start it again, and open the address that it prints. Save file keeps your text.");
  }
  if (answer.headers.get("Content-Type") !== "application/json") return answer;
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

// ---------------------------------------------------------------------------- state

async function packed(value) {
  const bytes = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const text = String.fromCharCode(...new Uint8Array(await new Response(bytes).arrayBuffer()));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const value = JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text());
  const known = {};
  for (const [key, usual] of Object.entries(state)) if (typeof value[key] === typeof usual) known[key] = value[key];
  return known;
}

let keeping;
function keep() {
  clearTimeout(keeping);
  keeping = setTimeout(async () => history.replaceState(null, "", "#" + (await packed(state))), 200);
}

const key = () => (lab ? `lab/${lab.number}/${state.file}` : `${state.op}/${state.way}/${state.labels[state.way]}`);
const edits = () => (lab ? state.files : state.texts);

function edited() {
  const text = editor.getValue();
  if (text === originals[key()]) delete edits()[key()];
  else edits()[key()] = text;
  mark([]);
  keep();
}

// ---------------------------------------------------------------------------- the left side

function opOf(name) {
  return catalogue.ops.find((each) => each.name === name) ?? catalogue.ops[0];
}

async function show() {
  const op = opOf(lab ? lab.op : state.op);
  state.op = op.name;
  $("op").value = op.name;
  $("op").disabled = Boolean(lab);
  $("formula").textContent = lab ? lab.title : op.formula;
  options($("case"), [["", `${op.cases[0]} (usual)`], ...op.cases.slice(1).map((each) => [each, each])], state.case);
  state.case = $("case").value;
  $("arch").value = state.arch;
  $("predict").checked = state.predict;
  for (const name of ["start", "save", "notebook"]) $(name).hidden = Boolean(lab);
  for (const name of ["lab-part", "hand-in"]) $(name).hidden = !lab;
  for (const name of ["speed-part", "more"]) $(name).hidden = Boolean(lab);
  for (const name of ["case", "arch", "predict"]) $(name).disabled = Boolean(lab);
  showQuestions(op);
  if (!lab) {
    for (const [way, every] of Object.entries(op.starters)) {
      if (!every.some((each) => each.label === state.labels[way])) state.labels[way] = every[0]?.label ?? "";
    }
    if (!op.starters[state.way].length) state.way = "torch";
    options($("label"), op.starters[state.way].map((each) => [each.label, `${each.label} (${each.level})`]), state.labels[state.way]);
  }
  const tabs = lab ? [...Object.keys(lab.files), "answers.toml"].map((name) => [name, name]) : Object.entries(WAYS);
  const chosen = lab ? state.file : state.way;
  const focused = $("ways").contains(document.activeElement);
  $("ways").replaceChildren(...tabs.map(([name, text]) => tab(name, text, name === chosen)));
  if (focused) $("ways").querySelector("[aria-selected=true]").focus();
  await showText();
  keep();
}

function tab(name, text, chosen) {
  const choose = () => { if (lab) state.file = name; else state.way = name; return show(); };
  const made = el("button", { type: "button", role: "tab", "aria-selected": String(chosen), "aria-controls": "editor", tabindex: chosen ? 0 : -1 }, text);
  made.addEventListener("click", choose);
  return made;
}

// Arrow keys move among the tabs of a list, as screen readers expect.
for (const list of document.querySelectorAll("[role=tablist]")) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = [...list.children];
    const next = (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
    tabs[next].focus();
    tabs[next].click();
  });
}

async function showText() {
  const wanted = key();
  if (originals[wanted] == null) {
    if (lab) originals[wanted] = lab.files[state.file] ?? lab.answers;
    else ({ text: originals[wanted], sweep: sweeps[wanted] } = await ask(`source?${new URLSearchParams({ op: state.op, way: state.way, label: state.labels[state.way] })}`));
  }
  if (wanted !== key()) return;
  showSweep();
  editor.quiet = true;
  editor.session.setMode(isCuda(text()) ? "ace/mode/c_cpp" : "ace/mode/python");
  if (editor.getValue() !== text()) editor.setValue(text(), -1);
  editor.session.getUndoManager().reset();
  editor.quiet = false;
  mark([]);
}

const text = () => edits()[key()] ?? originals[key()] ?? "";
const isCuda = (source) => /^\s*\/\/|^\s*#include/.test(source);

let markers = [];
function mark(errors) {
  for (const each of markers) editor.session.removeMarker(each);
  const { Range } = ace.require("ace/range");
  editor.session.setAnnotations(errors.map(({ line, text }) => ({ row: line - 1, column: 0, text, type: "error" })));
  markers = errors.map(({ line }) => editor.session.addMarker(new Range(line - 1, 0, line - 1, 1), "wrong-line", "fullLine"));
}

// ---------------------------------------------------------------------------- a run

function showQuestions(op) {
  $("predictions").hidden = !state.predict || Boolean(lab);
  $("questions").replaceChildren(...op.predictions.map(({ name, question }) => el("p", {}, el("label", {}, `${question} `,
    el("input", { name, size: 8, value: state.answers[name] ?? "", oninput: (event) => { state.answers[name] = event.target.value; keep(); } })))));
}

async function run(event, tune = false) {
  let order;
  if (lab) {
    order = labOrder();
  } else {
    const predictions = {};
    if (state.predict) {
      for (const input of $("questions").querySelectorAll("input")) {
        if (!input.value) { input.focus(); return say("Predict first: answer each question, or untick 'predict first'.", true); }
        predictions[input.name] = input.value;
      }
    }
    order = { op: state.op, text: text(), suffix: isCuda(text()) ? ".cu" : ".py", case: state.case, arch: state.arch, beside: tune === true ? "" : beside(), tune: tune === true, predictions };
  }
  try {
    const { id } = await ask(lab ? "marks" : "runs", order);
    state.run = id;
    keep();
    watch(id);
  } catch (error) {
    say(error.message, true);
  }
}

// The project's row that was begun with; of an example the first of its way.
function beside() {
  const every = opOf(state.op).starters[state.way].map((each) => each.label).filter((label) => label !== "example");
  return every.includes(state.labels[state.way]) ? state.labels[state.way] : every[0] ?? "";
}

function labOrder() {
  const textOf = (name) => state.files[`lab/${lab.number}/${name}`];
  const files = Object.fromEntries(Object.entries(lab.files).map(([name, original]) => [name, textOf(name) ?? original]));
  return { lab: lab.number, files, answers: textOf("answers.toml") ?? lab.answers };
}

function watch(id) {
  stream?.close();
  const now = stream = new EventSource(`runs/${id}/events`), of = key();
  let seen = 0, at = 0;
  const begun = performance.now();
  busy(true);
  now.onopen = () => { at = 0; };
  now.onmessage = (message) => {
    if (++at <= seen) return;
    seen = at;
    const event = JSON.parse(message.data);
    SHOWN[event.kind]?.(event, id, (performance.now() - begun) / 1000, of);
    if (["done", "cancelled", "lost"].includes(event.kind)) { now.close(); busy(false); document.body.dataset.ran = id; }
  };
  now.onerror = () => {
    if (now.readyState !== EventSource.CLOSED) return say("The connection is lost; trying again.", true);
    busy(false);
    say("This run is no longer kept, or the server was started again: press Run.", true);
  };
}

function busy(on) {
  $("cancel").disabled = !on;
  $("verdict").classList.toggle("working", on);
  $("right").setAttribute("aria-busy", String(on));
}

const SHOWN = {
  queue: ({ before }) => say(before ? `Waiting: ${before} ${before === 1 ? "run" : "runs"} before yours.` : "Starting."),
  began: () => { clear(); say("Running."); },
  step: ({ text }) => say(`Running: ${text.replace(/ \(last.*/, "")}`),
  first: (event, id, s) => { showVerdicts(event); showRows(event); timed("First answer", s); },
  answer: (event, id, s, of) => { showVerdicts(event); showRows(event); showScores(event.predictions ?? []); measured(event, of); timed("Full answer", s); },
  refused: ({ text }) => refuse(text),
  lanes: showLanes,
  marks: showMarks,
  stages: (event, id) => $("stages").replaceChildren(el("iframe", { src: `runs/${id}/stages#first-head`, title: "Stages of the kernel with linked lines", sandbox: "allow-scripts" })),
  "no stages": ({ text }) => $("stages").replaceChildren(el("p", { class: "hint" }, `No stages: ${text}`)),
  done: (event, id, s) => say(took || `Done in ${s.toFixed(1)} s.`),
  cancelled: () => say("Cancelled."),
  lost: ({ text }) => refuse(text),
};

let took = "";
function timed(what, s) {
  took = [took.split(";").filter((each) => each && !each.includes(what)).join(";"), `${what} after ${s.toFixed(1)} s`].filter(Boolean).join("; ");
}

function clear() {
  took = "";
  mark([]);
  for (const name of ["verdict", "speed"]) $(name).replaceChildren();
  for (const name of ["lanes", "stages"]) $(name).replaceChildren(el("p", { class: "hint" }, "Appears when a kernel is correct."));
  $("shown-case").textContent = "";
}

// Another op or lab was chosen: what the page shows is the answer to the one before.
function leave() {
  stream?.close();
  busy(false);
  state.run = "";
  clear();
}

function refuse(reason) {
  const short = reason.replace(/^--load \S*\/(mine\.\w+)/, "$1");
  showVerdicts({ verdicts: [{ label: "", status: "failed", word: "NOT RUN", text: short, lines: [...short.matchAll(/(?:mine\.\w+:| line )(\d+)/g)].map((each) => Number(each[1])) }] });
  took = "Not run.";
}

function showVerdicts({ verdicts, interrupted }) {
  const good = (status) => status === "ok";
  $("verdict").replaceChildren(...verdicts.filter((each) => !each.label.includes(":")).map(({ label, status, word, text, lines }) =>
    el("div", { class: `verdict ${good(status) ? "ok" : "bad"}` }, el("b", {}, `${good(status) ? "✓" : "✗"} ${word}`), label,
      el("pre", {}, text), ...lines.map((line) => el("button", { type: "button", onclick: () => { editor.gotoLine(line, 0, true); editor.focus(); } }, `line ${line}`)))));
  if (interrupted) $("verdict").append(el("p", {}, "Interrupted: results so far."));
  const errors = verdicts.flatMap(({ text, lines }) => lines.map((line) => ({ line, text })));
  mark(errors);
  if (errors.length) editor.scrollToLine(errors[0].line, true, true);
}

function showRows({ rows = [], case: shown, ceiling, facts = [], notes = [], kernels = [], gpu }) {
  if (!rows.length) return;
  $("shown-case").textContent = `${shown}${gpu ? "" : ": no GPU here"}`;
  const head = ["row", "µs", "speedup", `% of ${ceiling.replace(" bandwidth", "")}`, "registers", "shared B", "spills B", "occupancy", "lines"];
  const share = (row) => el("td", {}, ...(row.part == null ? [] : [bar(row.part)]), row.share);
  const name = (row) => `${row.label}${row.yours ? " (yours)" : ""}${row.status === "ok" ? "" : `: ${row.word}`}`;
  const lines = rows.map((row) => ({ class: row.yours ? "yours" : false,
    cells: [name(row), row.us, row.speedup, share(row), row.registers, row.shared, row.spilled, row.occupancy, row.lines] }));
  $("speed").replaceChildren(table(head, lines), ...[...facts, ...notes].map((each) => el("p", { class: "facts" }, each)));
  if (!kernels.length) return;
  const inside = table(["kernel", "row", "arch", "registers", "static B", "dynamic B", "spills B", "occupancy", "limited by", "grid", "block"],
    kernels.map((each) => ({ cells: [each.kernel, each.label, each.arch, each.registers, each.static, each.dynamic, each.spilled, each.occupancy, each.limiter, each.grid, each.block] })));
  $("speed").append(el("details", {}, el("summary", {}, "Each kernel"), inside));
}

function bar(part) {
  const made = el("span", { class: "bar" });
  made.style.width = `${Math.min(1, part) * 5}em`;
  return made;
}

function showScores(scores) {
  if (!scores.length) return;
  $("verdict").append(table(["prediction", "predicted", "measured", "score", "from"], scores.map((each) => ({ cells: [each.name, each.predicted, each.measured, each.score, el("td", { class: "prose" }, each.origin)] }))));
}

function showLanes({ case: shown, pictures }) {
  if (!pictures.length) return $("lanes").replaceChildren(el("p", { class: "hint" }, "This kernel's accesses were not traced: the CPU does not run it."));
  $("lanes").replaceChildren(el("p", { class: "hint" }, `On ${shown}, of program (block) 0 the first warp: each square is a lane; its number is the 32-byte sector or the bank that it accesses.`),
    ...pictures.map(({ label, svg, caption }) => el("figure", { tabindex: 0 }, parsed(svg, "image/svg+xml"), el("figcaption", {}, `${label}: ${caption}`))));
}

// ---------------------------------------------------------------------------- tuning

function measured({ case: shown, trials = [], gpu }, of) {
  if (!trials.length) return;
  sweeps[of] = { origin: `${shown}, measured now${gpu ? "" : ": no GPU here"}`, trials };
  showSweep();
  choose("tuning");
}

function showSweep() {
  const { origin = "", trials = [] } = sweeps[key()] ?? {};
  $("swept").textContent = origin;
  for (const name of ["sliders", "trials"]) $(name).replaceChildren();
  if (!trials.length) return;
  const names = Object.keys(trials[0].values);
  const values = Object.fromEntries(names.map((name) => [name, [...new Set(trials.map((each) => each.values[name]))].sort((a, b) => a - b)]));
  const chosen = { ...trials[0].values };
  const same = (trial) => names.every((name) => trial.values[name] === chosen[name]);
  const figures = (each) => [each.us, each.speedup, each.registers, each.shared, each.spilled, each.occupancy];
  const draw = () => {
    const rows = trials.map((each) => ({ class: same(each) ? "chosen" : false, "aria-current": same(each) ? "true" : false, cells: [names.map((name) => `${name}=${each.values[name]}`).join(" "), each.word, ...figures(each)] }));
    $("trials").replaceChildren(table(["configuration", "verdict", "µs", "speedup", "registers", "shared B", "spills B", "occupancy"], rows));
  };
  $("sliders").replaceChildren(...names.map((name) => {
    const shown = el("output", {}, String(chosen[name]));
    const input = el("input", { type: "range", min: 0, max: values[name].length - 1, value: values[name].indexOf(chosen[name]) });
    input.addEventListener("input", () => { chosen[name] = values[name][input.value]; shown.textContent = chosen[name]; input.setAttribute("aria-valuetext", chosen[name]); draw(); });
    return el("label", {}, `${name} `, input, " ", shown);
  }));
  draw();
}

function choose(view) {
  for (const each of $("views").children) {
    const on = each.getAttribute("aria-controls") === view;
    each.setAttribute("aria-selected", String(on));
    each.tabIndex = on ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !on;
  }
}

// ---------------------------------------------------------------------------- labs

async function openLab(number) {
  lab = number ? await ask(`lab?lab=${number}`) : null;
  state.lab = number;
  if (!lab) return show();
  const files = [...Object.keys(lab.files), "answers.toml"];
  if (!files.includes(state.file)) state.file = files[0];
  $("lab-head").textContent = lab.title;
  $("hand-out").replaceChildren(...parsed(lab.hand_out, "text/html").querySelector("body").childNodes);
  $("parts").replaceChildren(table(["part", "points"], lab.parts.map((each) => ({ cells: [each.name, String(each.points)] }))));
  $("progress").replaceChildren();
  $("hinted").replaceChildren();
  $("hints").replaceChildren(...Array.from({ length: lab.hints }, (_, i) => hintButton(i + 1)));
  if (state.marks[number]) showPoints(state.marks[number]);
  await Promise.all((state.hints[number] ?? []).map(showHint));
  return show();
}

function hintButton(number) {
  return el("button", { type: "button", onclick: () => guarded(() => showHint(number)) }, `Hint ${number}`);
}

async function showHint(number) {
  const { hint } = await ask(`lab?lab=${lab.number}&hint=${number}`);
  if (![...$("hinted").children].some((each) => each.value === number)) $("hinted").append(el("li", { value: number }, hint));
  state.hints[lab.number] = [...$("hinted").children].map((each) => each.value);
  keep();
}

// Of each lab the last marks are kept without their details, which are long.
function showMarks(marks) {
  state.marks[marks.lab] = { ...marks, parts: marks.parts.map((each) => ({ ...each, detail: "" })) };
  keep();
  nameLabs();
  if (lab?.number !== marks.lab) return;
  showPoints(marks);
  const { points, of, parts } = marks;
  const failed = parts.filter((each) => each.result !== "passed" && each.result !== "to be read");
  showVerdicts({ verdicts: [{ label: "", status: failed.length ? "disagrees" : "ok", word: `${points} of ${of} points`, text: failed[0] ? `${failed[0].name}: ${failed[0].detail}` : "Every part passed.", lines: [] }] });
}

function nameLabs() {
  const points = (each) => (state.marks[each.number] ? `: ${state.marks[each.number].points} of ${state.marks[each.number].of} points` : "");
  options($("lab"), [["", "none"], ...catalogue.labs.map((each) => [each.number, `${each.number} ${each.title}${points(each)}`])], state.lab);
}

function showPoints({ points, of, parts }) {
  const made = el("progress", { max: of, value: points, "aria-label": "Points" });
  $("progress").replaceChildren(made, ` ${points} of ${of} points; answers count when an instructor has read them`);
  const rows = parts.map((each) => ({ cells: [each.name, each.points, each.word, el("td", { class: "prose" }, each.detail, ...(each.hint && each.result !== "passed" ? [" ", hintButton(each.hint)] : []))] }));
  $("parts").replaceChildren(table(["part", "points", "result", "detail"], rows));
}

// ---------------------------------------------------------------------------- files and links

function download(name, content, type = "text/plain") {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function save() {
  const cuda = isCuda(text());
  download(`my_${state.op}.${cuda ? "cu" : "py"}`, `${text().replace(/\n*$/, "\n")}\n${cuda ? "//" : "#"} page: ${await packed(state)}\n`);
}

async function openFile(file) {
  const content = await file.text();
  const held = content.match(COMMENT);
  if (held) Object.assign(state, await unpacked(held[1]), { run: "" });
  const source = content.replace(COMMENT, "").replace(/\n*$/, "\n");
  if (!held) state.way = /\.cu$/.test(file.name) || source.includes("__global__") ? "cuda" : /^\s*(import|from) triton/m.test(source) ? "triton" : "torch";
  nameLabs();
  await openLab(state.lab);
  edits()[key()] = source;
  await showText();
  keep();
}

function notebook() {
  const name = `my_${state.op}.${isCuda(text()) ? "cu" : "py"}`;
  const cell = (source) => ({ cell_type: "code", execution_count: null, metadata: {}, outputs: [], source });
  const cells = [cell(`%%writefile ${name}\n${text()}`), cell(`from compare.notebook import run\n\nrun("${state.op}", load=["${name}"])`)];
  download(`my_${state.op}.ipynb`, JSON.stringify({ cells, metadata: { kernelspec: { name: "python3", display_name: "Python 3", language: "python" } }, nbformat: 4, nbformat_minor: 5 }), "application/json");
}

// ---------------------------------------------------------------------------- the start

function listen() {
  const changed = (name, then) => $(name).addEventListener("change", (event) => guarded(() => then(event.target)));
  const clicked = (name, then) => $(name).addEventListener("click", () => guarded(then));
  changed("op", (select) => { state.op = select.value; state.case = ""; leave(); return show(); });
  changed("lab", (select) => { leave(); return openLab(select.value); });
  changed("case", (select) => { state.case = select.value; keep(); });
  changed("arch", (select) => { state.arch = select.value; keep(); });
  changed("label", (select) => { state.labels[state.way] = select.value; return show(); });
  changed("predict", (box) => { state.predict = box.checked; return show(); });
  changed("file", (input) => openFile(input.files[0]).then(() => { input.value = ""; }));
  clicked("run", () => run());
  clicked("sweep", () => run(null, true));
  clicked("cancel", () => ask(`runs/${state.run}`, null, "DELETE"));
  clicked("reset", () => { delete edits()[key()]; return show(); });
  clicked("save", save);
  clicked("notebook", notebook);
  clicked("link", async () => { await navigator.clipboard.writeText(`${location.href.split("#")[0]}#${await packed({ ...state, run: "" })}`); say("The link is copied: it holds the page's state."); });
  clicked("hand-in", async () => download(`lab_${lab.number}.zip`, await (await ask("hand-in", labOrder())).blob(), "application/zip"));
  for (const each of $("views").children) each.addEventListener("click", () => choose(each.getAttribute("aria-controls")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) { event.preventDefault(); guarded(run); }
  });
  $("choice").addEventListener("submit", (event) => event.preventDefault());
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
}

async function start() {
  catalogue = await ask("catalogue");
  options($("op"), catalogue.ops.map((op) => [op.name, op.name]));
  $("arch-of").hidden = Boolean(catalogue.gpu);
  const { op, way, label } = catalogue.first;
  Object.assign(state, { op, way, labels: { [way]: label } });
  const held = location.hash.slice(1);
  let visited = true;
  if (held) await guarded(async () => Object.assign(state, await unpacked(held)));
  else visited = false;
  listen();
  nameLabs();
  await openLab(state.lab);
  say(visited ? "" : "Try: delete the mask of a load or a store, press Ctrl-Enter, and read which elements are wrong.");
  const hint = $("status").textContent;
  if (visited && state.run) watch(state.run);
  if (!visited) { watch("example"); SHOWN.done = ((before) => (...all) => { before(...all); say(hint); SHOWN.done = before; })(SHOWN.done); }
  document.body.dataset.ready = "";
}

guarded(start);
