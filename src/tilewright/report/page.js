"use strict";
// Draws the page from the JSON beside it. Text from the data becomes text nodes and nothing else.

const report = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const NEAR = [1, 2, 5, 10]; // per cent of the best kernel's time
const MOST_ROWS = 1000; // of a table, shown at once
const EDGE = 4; // pixels around the heat map, for the cursor's frame
const SPEEDS = [0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0]; // least relative speed of each colour
const SPEED_WORDS = ["99 % and more", "95 to 99 %", "90 to 95 %", "75 to 90 %", "50 to 75 %",
  "25 to 50 %", "under 25 %"];
const GLYPHS = { mismatch: "≠", nan: "N", unsupported: "·", launch_failed: "L", illegal_access: "!",
  timeout: "T", out_of_memory: "M", build_failed: "B", crashed: "×",
  executed: "✓", finding: "F" };
const FLAG_MEANINGS = {
  throttled: "the device lowered its clocks for heat or a power brake meanwhile",
  contended: "another process used the device meanwhile",
  unsettled: "time ran out before the median's interval was as narrow as asked",
  late: "the GPU waited for the host within samples: times are too long",
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A kernel's name, with line breaks allowed after underscores.
function broken(name) {
  const part = document.createDocumentFragment();
  name.split(/(?<=_)/).forEach((piece, i) => part.append(...(i ? [make("wbr"), piece] : [piece])));
  return part;
}

const words = (name) => name.replaceAll("_", " ");
const count = (n) => n.toLocaleString("en-US");
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const several = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

function number(x) {
  if (x >= 1000) return Math.round(x).toLocaleString("en-US");
  return x >= 100 ? x.toFixed(1) : x >= 10 ? x.toFixed(2) : Number(x.toPrecision(3)).toString();
}

function seconds(s) {
  if (s < 120) return `${number(s)} s`;
  return s < 7200 ? `${number(s / 60)} min` : `${number(s / 3600)} h`;
}

// --- one setup's numbers ------------------------------------------------------------------------

function unpack(setup) {
  const K = setup.kernels.length, P = setup.problems.length, size = K * P;
  const [median, low, high] = [0, 1, 2].map(() => new Float64Array(size).fill(NaN));
  const status = new Array(size), flags = new Uint8Array(size), why = new Array(size);
  let timed = 0;
  for (let cell = 0; cell < size; cell++) {
    const letter = setup.cells[cell];
    status[cell] = letter === "." ? null : report.statuses[LETTERS.indexOf(letter)];
    if (status[cell] !== "ok") continue;
    [median[cell], low[cell], high[cell]] = setup.times.map((column) => column[timed]);
    timed++;
  }
  setup.why[0].forEach((cell, i) => { why[cell] = setup.reasons[setup.why[1][i]]; });
  setup.flagged[0].forEach((cell, i) => { flags[cell] = setup.flagged[1][i]; });
  const vendors = new Set(setup.vendors);
  const cell = (p, k) => p * K + k;
  const flagsOf = (c) => report.flags.filter((_, i) => flags[c] & (1 << i));

  const problems = setup.problems.map((said, p) => {
    const ties = setup.ties[p], best = ties.length ? cell(p, ties[0]) : -1;
    let vendor = -1;
    for (const k of setup.vendors) {
      const c = cell(p, k);
      if (status[c] === "ok" && (vendor < 0 || median[c] < median[vendor])) vendor = c;
    }
    const row = { ...said, p, ties, best, vendor, intensity: said.flops / said.bytes,
      near: NEAR.map(() => 0), statuses: new Map() };
    for (let k = 0; k < K; k++) {
      const c = cell(p, k);
      if (vendors.has(k) || status[c] === null) continue;
      row.statuses.set(status[c], (row.statuses.get(status[c]) ?? 0) + 1);
      if (status[c] === "ok") {
        NEAR.forEach((share, i) => {
          if (median[c] <= median[best] * (1 + share / 100)) row.near[i]++;
        });
      }
    }
    if (best >= 0) {
      row.us = median[best];
      row.tflops = said.flops / row.us / 1e6;
      row.roof = said.floor_us === null ? NaN : said.flops / said.floor_us / 1e6;
      row.share = row.tflops / row.roof;
      if (vendor >= 0) {
        row.ratio = median[vendor] / median[best];
        row.verdict = low[vendor] > high[best] ? "faster"
          : high[vendor] < low[best] ? "slower" : "alike";
      }
      row.flags = flagsOf(best);
    } else row.flags = [];
    row.text = `${said.name} ${best < 0 ? "" : setup.kernels[ties[0]]}`.toLowerCase();
    return row;
  });
  const relative = (c) => {
    const { best } = problems[Math.floor(c / K)];
    return best < 0 ? NaN : median[best] / median[c];
  };
  const kernels = setup.kernels.map((name, k) => {
    const row = { k, name, vendor: vendors.has(k), best: 0, alike: 0, near: 0, ok: 0, unsupported: 0,
      failed: 0 };
    let logs = 0, compared = 0;
    for (let p = 0; p < P; p++) {
      const c = cell(p, k);
      if (status[c] === null) continue;
      if (status[c] === "unsupported") row.unsupported++;
      else if (status[c] !== "ok") row.failed++;
      else {
        row.ok++;
        const speed = relative(c);
        if (!Number.isNaN(speed)) { logs += Math.log(speed); compared++; }
        if (speed >= 1 / 1.05) row.near++;
        if (c === problems[p].best) row.best++;
        if (!row.vendor && problems[p].ties.includes(k)) row.alike++;
      }
    }
    row.speed = compared ? Math.exp(logs / compared) : NaN;
    return row;
  });
  return { ...setup, K, P, median, low, high, status, flags, why, problems, kernels, cell, flagsOf,
    relative };
}

// --- tables -------------------------------------------------------------------------------------

// columns: {title, value(row): the sort key, show(row): text or node, class, down: whether
// sorting starts from the largest, head: whether it names the row}
function table(host, caption, columns, rows, by, onOrder = () => {}) {
  const order = { by, down: columns[by].down ?? false };
  const said = make("caption");
  const body = make("tbody");
  const heads = columns.map((column, i) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      order.down = order.by === i ? !order.down : (column.down ?? false);
      order.by = i;
      draw();
    });
    return make("th", { scope: "col", class: column.class ?? "" }, button);
  });
  let kept = rows;

  function draw() {
    const { value } = columns[order.by];
    const missing = (x) => x === undefined || x === "" || Number.isNaN(x);
    const sorted = kept.map((row, i) => [value(row), i, row]).sort(([a, i], [b, j]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b) || i - j;
      const less = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return (order.down ? -less : less) || i - j;
    }).map(([, , row]) => row);
    const shown = sorted.slice(0, MOST_ROWS);
    said.textContent = shown.length < sorted.length
      ? `${caption} The first ${count(MOST_ROWS)} of ${count(sorted.length)}: search, or sort otherwise, for the rest.`
      : sorted.length || rows.length === 0 ? caption : `${caption} Nothing is found.`;
    heads.forEach((head, i) => {
      if (i === order.by) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...shown.map((row) => make("tr", {}, ...columns.map((column) => {
      const attributes = { class: column.class ?? "" };
      if (column.head) attributes.scope = "row";
      const cell = make(column.head ? "th" : "td", attributes, column.show(row));
      const share = column.bar?.(row);
      if (share) {
        cell.classList.add("bar");
        cell.style.setProperty("--share", `${100 * share}%`);
      }
      return cell;
    }))));
    onOrder(sorted);
  }

  host.replaceChildren(make("table", {}, said, make("thead", {}, make("tr", {}, ...heads)), body));
  draw();
  return { keep(test) { kept = rows.filter(test); draw(); return kept.length; } };
}

function folded(summary, items, text = String) {
  const list = make("ul");
  const details = make("details", {}, make("summary", {}, summary), list);
  details.addEventListener("toggle", () => {
    if (!details.open || list.childElementCount) return;
    list.append(...items.slice(0, MOST_ROWS).map((item) => make("li", {}, broken(text(item)))));
    if (items.length > MOST_ROWS) list.append(make("li", {}, `and ${count(items.length - MOST_ROWS)} more`));
  });
  return details;
}

function bestTable(view, onOrder) {
  const failed = (row) => [...row.statuses].map(([status, n]) => `${n} ${words(status)}`).join(", ");
  const named = (row) => {
    const part = broken(view.kernels[row.ties[0]].name);
    if (row.ties.length > 1) {
      part.append(folded(`and ${row.ties.length - 1} alike`, row.ties.slice(1), (k) =>
        `${view.kernels[k].name}: ${number(view.median[view.cell(row.p, k)])} µs`));
    }
    return part;
  };
  const columns = [
    { title: "Problem", class: "problem", head: true, value: (r) => r.name, show: (r) => r.name },
    { title: "Best kernel", class: "kernel", value: (r) => r.best < 0 ? "" : view.kernels[r.ties[0]].name,
      show: (r) => r.best < 0 ? `none: ${failed(r) || "not measured"}` : named(r) },
    { title: "Alike", class: "n", down: true, value: (r) => r.ties.length || NaN,
      show: (r) => String(r.ties.length || "") },
    { title: "µs", class: "n", value: (r) => r.us, show: (r) => r.us ? number(r.us) : "" },
    { title: "Interval", class: "n", value: (r) => r.best < 0 ? NaN : view.low[r.best],
      show: (r) => r.best < 0 ? "" : `${number(view.low[r.best])} to ${number(view.high[r.best])}` },
    { title: "TFLOP/s", class: "n", down: true, value: (r) => r.tflops,
      show: (r) => r.tflops ? number(r.tflops) : "" },
    { title: "FLOP/byte", class: "n", down: true, value: (r) => r.intensity,
      show: (r) => Number.isFinite(r.intensity) ? number(r.intensity) : "" },
    { title: "Of roof", class: "n", down: true, value: (r) => r.share,
      show: (r) => r.share ? percent(r.share) : r.best < 0 ? "" : "no roof known", bar: (r) => Math.min(r.share, 1) },
    { title: "Vs vendor", class: "n", down: true, value: (r) => r.ratio,
      show: (r) => r.ratio ? `${r.ratio.toFixed(3)} ${r.verdict}` : r.vendor >= 0 ? "only the vendor ran"
        : "vendor not timed" },
    ...NEAR.map((share, i) => ({ title: `In ${share} %`, class: "n", down: true,
      value: (r) => r.best < 0 ? NaN : r.near[i], show: (r) => r.best < 0 ? "" : String(r.near[i]) })),
    { title: "Flags", class: "", value: (r) => r.flags.join(" "), show: (r) => r.flags.join(", ") },
  ];
  return table($("best"), `${several(view.P, "problem")}.`, columns, view.problems, 0, onOrder);
}

function kernelTable(view, onOrder) {
  const columns = [
    { title: "Kernel", class: "kernel", head: true, value: (r) => r.name, show: (r) => broken(r.name) },
    { title: "Mean speed", class: "n", down: true, value: (r) => r.speed,
      show: (r) => Number.isNaN(r.speed) ? "" : percent(r.speed), bar: (r) => Math.min(r.speed, 1) },
    { title: "Best", class: "n", down: true, value: (r) => r.best, show: (r) => r.vendor ? "vendor" : count(r.best) },
    { title: "Alike the best", class: "n", down: true, value: (r) => r.alike,
      show: (r) => r.vendor ? "" : count(r.alike) },
    { title: "Within 5 %", class: "n", down: true, value: (r) => r.near, show: (r) => count(r.near) },
    { title: "Timed", class: "n", down: true, value: (r) => r.ok, show: (r) => count(r.ok) },
    { title: "Unsupported", class: "n", down: true, value: (r) => r.unsupported, show: (r) => count(r.unsupported) },
    { title: "Failed", class: "n", down: true, value: (r) => r.failed, show: (r) => count(r.failed) },
  ];
  return table($("kernels"), `${several(view.K, "kernel")}; counts are of problems.`, columns, view.kernels, 1,
    onOrder);
}

function nearTable(view) {
  const buckets = [[1, 1], [2, 2], [3, 4], [5, 8], [9, 16], [17, 32], [33, 64], [65, Infinity]];
  const of = view.problems.filter((r) => r.best >= 0);
  const rows = NEAR.map((share, i) => {
    const counts = of.map((r) => r.near[i]).sort((a, b) => a - b);
    return { share, counts, in: buckets.map(([a, b]) => counts.filter((n) => n >= a && n <= b).length) };
  });
  const name = ([a, b]) => a === b ? several(a, "kernel") : b === Infinity ? `${a} and more` : `${a} to ${b}`;
  const columns = [
    { title: "Within", head: true, class: "n", value: (r) => r.share, show: (r) => `${r.share} %` },
    ...buckets.map((bucket, i) => ({ title: name(bucket), class: "n", down: true, value: (r) => r.in[i],
      show: (r) => count(r.in[i]), bar: (r) => r.in[i] / of.length })),
    { title: "Median", class: "n", down: true, value: (r) => r.counts[Math.floor(r.counts.length / 2)],
      show: (r) => r.counts.length ? count(r.counts[Math.floor(r.counts.length / 2)]) : "" },
    { title: "Most", class: "n", down: true, value: (r) => r.counts.at(-1),
      show: (r) => r.counts.length ? count(r.counts.at(-1)) : "" },
  ];
  table($("near"), `Of ${several(of.length, "problem")} with a timed kernel.`, columns, rows, 0);
}

function failuresTable(view) {
  const found = new Map();
  view.status.forEach((status, c) => {
    if (status === null || status === "ok") return;
    const key = JSON.stringify([status, view.why[c]]);
    if (!found.has(key)) found.set(key, { status, reason: view.why[c] || "no reason given", cells: [] });
    found.get(key).cells.push(c);
  });
  const rows = [...found.values()];
  for (const row of rows) {
    row.kernels = new Set(row.cells.map((c) => c % view.K)).size;
    row.problems = new Set(row.cells.map((c) => Math.floor(c / view.K))).size;
  }
  const which = (c) => `${view.kernels[c % view.K].name} on ${view.problems[Math.floor(c / view.K)].name}`;
  const columns = [
    { title: "Status", head: true, value: (r) => `${r.status === "unsupported" ? 1 : 0}${r.status}`,
      show: (r) => words(r.status) },
    { title: "Reason", class: "reason", value: (r) => r.reason, show: (r) => r.reason },
    { title: "Measurements", class: "n", down: true, value: (r) => r.cells.length, show: (r) => count(r.cells.length) },
    { title: "Kernels", class: "n", down: true, value: (r) => r.kernels, show: (r) => count(r.kernels) },
    { title: "Problems", class: "n", down: true, value: (r) => r.problems, show: (r) => count(r.problems) },
    { title: "Which", class: "kernel", value: (r) => which(r.cells[0]),
      show: (r) => r.cells.length === 1 ? broken(which(r.cells[0]))
        : folded(several(r.cells.length, "measurement"), r.cells, which) },
  ];
  const failures = rows.filter((r) => r.status !== "unsupported").reduce((n, r) => n + r.cells.length, 0);
  const caption = failures ? `${several(failures, "failure")} among what was measured.` : "Nothing failed.";
  table($("failures"), caption, columns, rows, 0);
}

function flagsTable(view) {
  const rows = report.flags.map((flag, i) => ({
    flag,
    meaning: FLAG_MEANINGS[flag] ?? "",
    all: view.status.filter((s, c) => s === "ok" && view.flags[c] & (1 << i)).length,
    best: view.problems.filter((r) => r.flags.includes(flag)).map((r) => r.name),
  }));
  const columns = [
    { title: "Flag", head: true, value: (r) => r.flag, show: (r) => r.flag },
    { title: "Meaning", class: "reason", value: (r) => r.meaning, show: (r) => r.meaning },
    { title: "Timed measurements", class: "n", down: true, value: (r) => r.all, show: (r) => count(r.all) },
    { title: "Best kernels", class: "n", down: true, value: (r) => r.best.length,
      show: (r) => r.best.length ? folded(count(r.best.length), r.best) : "0" },
  ];
  const timed = view.times[0].length;
  table($("flags"), `Of ${several(timed, "timed measurement")}; a flagged time may be too long.`, columns, rows, 0);
}

// --- canvases -----------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas of this size in CSS pixels, sharp on any screen.
function prepare(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return pen;
}

const heat = { view: null, rows: [], columns: [], row: 0, column: 0, only: null, picture: null, w: 0, h: 0 };

// The kind of a cell's drawing: "speed-0"…, a status, "missing" for not measured.
function kind(view, c) {
  if (view.status[c] === null) return "missing";
  if (view.status[c] !== "ok") return view.status[c];
  const speed = view.relative(c);
  return Number.isNaN(speed) ? "speed-0" : `speed-${SPEEDS.findIndex((least) => speed >= least)}`;
}

function kindWords(name) {
  if (name === "missing") return "not measured";
  return name.startsWith("speed-") ? SPEED_WORDS[Number(name.slice(6))] : words(name);
}

function drawHeat() {
  const { view, rows, columns } = heat;
  const room = $("heat-scroll").clientWidth - 2 * EDGE;
  heat.w = Math.max(4, Math.min(28, Math.floor(room / Math.max(1, columns.length))));
  heat.h = rows.length > 60 ? 8 : 16;
  const width = Math.max(1, columns.length * heat.w), height = Math.max(1, rows.length * heat.h);
  prepare($("heat"), width + 2 * EDGE, height + 2 * EDGE);
  heat.picture = document.createElement("canvas");
  const pen = prepare(heat.picture, width + 2 * EDGE, height + 2 * EDGE);
  pen.translate(EDGE, EDGE);
  const colours = new Map();
  const fill = (name) => {
    if (!colours.has(name)) colours.set(name, colour(name));
    return colours.get(name);
  };
  const gap = heat.w > 8 && heat.h > 8 ? 1 : 0;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  rows.forEach((kernel, y) => columns.forEach((problem, x) => {
    const name = kind(view, view.cell(problem.p, kernel.k));
    pen.globalAlpha = heat.only === null || heat.only === name ? 1 : 0.12;
    pen.fillStyle = fill(name);
    pen.fillRect(x * heat.w, y * heat.h, heat.w - gap, heat.h - gap);
    const glyph = GLYPHS[name];
    if (glyph && gap && heat.w >= 10) {
      const dark = ["build_failed", "crashed", "illegal_access", "out_of_memory", "mismatch"].includes(name)
        && !matchMedia("(prefers-color-scheme: dark)").matches;
      pen.fillStyle = dark ? "#fff" : fill("glyph");
      pen.fillText(glyph, (x + 0.5) * heat.w, (y + 0.5) * heat.h);
    }
  }));
  heat.row = Math.min(heat.row, Math.max(0, rows.length - 1));
  heat.column = Math.min(heat.column, Math.max(0, columns.length - 1));
  drawCursor();
}

function drawCursor() {
  const { view, w, h } = heat;
  const canvas = $("heat"), pen = canvas.getContext("2d");
  pen.save();
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(heat.picture, 0, 0);
  pen.restore();
  const kernel = heat.rows[heat.row], problem = heat.columns[heat.column];
  if (!kernel || !problem) {
    $("heat-cell").replaceChildren("No problem is found: change the search above.");
    return;
  }
  const x = EDGE + heat.column * w, y = EDGE + heat.row * h;
  pen.strokeStyle = colour("page");
  pen.lineWidth = 5;
  pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  pen.strokeStyle = colour("focus");
  pen.lineWidth = 2;
  pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  const c = view.cell(problem.p, kernel.k);
  $("heat-cell").replaceChildren(make("b", {}, broken(kernel.name)), " on ", make("b", {}, problem.name), ": ",
    cellWords(view, c));
}

function cellWords(view, c) {
  const status = view.status[c];
  const flags = view.flagsOf(c).map((flag) => `, ${flag}`).join("");
  if (status === null) return "not measured";
  if (status !== "ok") return `${words(status)}${flags}: ${view.why[c] || "no reason given"}`;
  const speed = view.relative(c);
  const times = `${number(view.median[c])} µs (${number(view.low[c])} to ${number(view.high[c])})`;
  return `${Number.isNaN(speed) ? "the only kernel timed" : `${percent(speed)} of the best kernel's speed`}, ${times}${flags}`;
}

function moveHeat(row, column) {
  heat.row = Math.max(0, Math.min(heat.rows.length - 1, row));
  heat.column = Math.max(0, Math.min(heat.columns.length - 1, column));
  drawCursor();
}

function showCursor() {
  const box = $("heat-scroll"), { w, h } = heat, edge = 24;
  const x = heat.column * w, y = heat.row * h;
  if (x < box.scrollLeft + edge) box.scrollLeft = x - edge;
  else if (x + w > box.scrollLeft + box.clientWidth - edge) box.scrollLeft = x + w + edge - box.clientWidth;
  if (y < box.scrollTop + edge) box.scrollTop = y - edge;
  else if (y + h > box.scrollTop + box.clientHeight - edge) box.scrollTop = y + h + edge - box.clientHeight;
}

function drawLegend() {
  const { view } = heat;
  const present = new Set(view.status.map((_, c) => kind(view, c)));
  const names = [...SPEEDS.map((_, i) => `speed-${i}`), ...report.statuses, "missing"];
  $("legend").replaceChildren(...names.filter((name) => present.has(name)).map((name) => {
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = `var(--${name})`;
    const button = make("button", { type: "button", "aria-pressed": String(heat.only === name) }, swatch,
      name.startsWith("speed-") ? `${kindWords(name)}${name === "speed-0" ? " of the best kernel's speed" : ""}`
        : `${GLYPHS[name] ?? ""} ${kindWords(name)}`.trim());
    button.addEventListener("click", () => {
      heat.only = heat.only === name ? null : name;
      for (const other of $("legend").children) other.setAttribute("aria-pressed", String(other === button && heat.only !== null));
      drawHeat();
    });
    return button;
  }));
}

function listenHeat() {
  const canvas = $("heat");
  canvas.addEventListener("keydown", (event) => {
    const { row, column } = heat;
    const to = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column], PageUp: [row - 10, column], PageDown: [row + 10, column],
      Home: [row, 0], End: [row, heat.columns.length - 1],
    }[event.key];
    if (!to || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    moveHeat(...to);
    showCursor();
  });
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    moveHeat(Math.floor((event.clientY - box.top - EDGE) / heat.h),
      Math.floor((event.clientX - box.left - EDGE) / heat.w));
  };
  canvas.addEventListener("mousemove", point);
  canvas.addEventListener("click", point);
}

const MARKS = [
  ["disc", (pen, x, y, r) => pen.arc(x, y, r, 0, 7)],
  ["square", (pen, x, y, r) => pen.rect(x - r, y - r, 2 * r, 2 * r)],
  ["triangle", (pen, x, y, r) => { pen.moveTo(x, y - 1.3 * r); pen.lineTo(x + 1.2 * r, y + r); pen.lineTo(x - 1.2 * r, y + r); pen.closePath(); }],
  ["diamond", (pen, x, y, r) => { pen.moveTo(x, y - 1.4 * r); pen.lineTo(x + 1.4 * r, y); pen.lineTo(x, y + 1.4 * r); pen.lineTo(x - 1.4 * r, y); pen.closePath(); }],
];
const roof = { view: null, points: [], at: 0 };

function drawRoof() {
  const { view, points } = roof;
  if ($("roof-figure").hidden) return;
  const canvas = $("roof"), box = canvas.parentElement.getBoundingClientRect();
  canvas.style.height = "";
  const width = box.width, height = window.innerWidth < 640 ? 320 : 416;
  const pen = prepare(canvas, width, height);
  const left = 52, right = 24, top = 14, bottom = 40;
  const peaks = Object.entries(view.roof.tflops), slope = view.roof.gbs / 1e3;
  const xs = points.map((r) => r.intensity), ys = points.map((r) => r.tflops);
  if (slope) xs.push(...peaks.map(([, peak]) => 2 * peak / slope));
  ys.push(...peaks.map(([, peak]) => 1.5 * peak));
  const span = (values) => [Math.floor(Math.log10(Math.min(...values)) * 2) / 2, Math.ceil(Math.log10(Math.max(...values)) * 2) / 2];
  const [x0, x1] = span(xs), [y0, y1] = span(ys);
  const X = (v) => left + (Math.log10(v) - x0) / (x1 - x0 || 1) * (width - left - right);
  const Y = (v) => height - bottom - (Math.log10(v) - y0) / (y1 - y0 || 1) * (height - top - bottom);
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  pen.lineWidth = 1;
  const line = (a, b, c, d) => { pen.beginPath(); pen.moveTo(a, b); pen.lineTo(c, d); pen.stroke(); };
  const power = (e) => (10 ** e).toLocaleString("en-US", { maximumSignificantDigits: 1 });
  for (let e = Math.ceil(x0); e <= x1; e++) {
    line(X(10 ** e), top, X(10 ** e), height - bottom);
    pen.textAlign = "center";
    pen.fillText(power(e), X(10 ** e), height - bottom + 15);
  }
  for (let e = Math.ceil(y0); e <= y1; e++) {
    line(left, Y(10 ** e), width - right, Y(10 ** e));
    pen.textAlign = "right";
    pen.fillText(power(e), left - 6, Y(10 ** e) + 4);
  }
  pen.textAlign = "center";
  pen.fillText("FLOP per byte that must move", (left + width) / 2, height - 6);
  pen.save();
  pen.translate(11, (height - bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText("TFLOP/s", 0, 0);
  pen.restore();

  pen.save();
  pen.beginPath();
  pen.rect(left, top - 4, width - left - right, height - bottom - top + 4);
  pen.clip();
  pen.strokeStyle = pen.fillStyle = colour("text");
  pen.lineWidth = 2;
  const label = (text, x, y) => {
    pen.save();
    pen.strokeStyle = colour("page");
    pen.lineWidth = 4;
    pen.strokeText(text, x, y);
    pen.fillText(text, x, y);
    pen.restore();
  };
  const highest = Math.max(0, ...peaks.map(([, peak]) => peak)) || 10 ** y1;
  if (slope) {
    line(X(10 ** x0), Y(10 ** x0 * slope), X(highest / slope), Y(highest));
    pen.textAlign = "left";
    const at = Math.max(10 ** x0, 10 ** y0 / slope);
    const steep = Math.atan2(Y(at * slope) - Y(at * slope * 10), X(at * 10) - X(at));
    pen.save();
    pen.translate(X(at), Y(at * slope));
    pen.rotate(-steep);
    label(`memory: ${count(view.roof.gbs)} GB/s`, 14, -7);
    pen.restore();
  }
  const levels = new Map();
  for (const [dtype, peak] of peaks) levels.set(peak, [...(levels.get(peak) ?? []), dtype]);
  for (const [peak, dtypes] of levels) {
    line(slope ? X(peak / slope) : left, Y(peak), width - right, Y(peak));
  }
  pen.textAlign = "right";
  for (const [peak, dtypes] of levels) {
    label(`${dtypes.join(", ")}: ${number(peak)} TFLOP/s`, width - right - 4, Y(peak) - 6);
  }
  pen.restore();

  const dtypes = [...new Set(view.problems.map((r) => r.dtype))];
  roof.places = points.map((row) => [X(row.intensity), Y(row.tflops)]);
  const mark = (i, r) => {
    pen.beginPath();
    MARKS[dtypes.indexOf(points[i].dtype) % MARKS.length][1](pen, ...roof.places[i], r);
  };
  pen.lineWidth = 1;
  pen.strokeStyle = colour("page");
  pen.fillStyle = colour("accent");
  points.forEach((_, i) => { mark(i, 4); pen.fill(); pen.stroke(); });
  const row = points[roof.at];
  pen.fillStyle = pen.strokeStyle = colour("focus");
  mark(roof.at, 6);
  pen.fill();
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(...roof.places[roof.at], 11, 0, 7);
  pen.stroke();
  $("roof-point").replaceChildren(make("b", {}, row.name), `: ${number(row.tflops)} TFLOP/s at `
    + `${number(row.intensity)} FLOP for each byte${row.share ? `, ${percent(row.share)} of the roof of ${number(row.roof)}` : ""}; `,
    make("b", {}, broken(view.kernels[row.ties[0]].name)));
  $("roof-legend").replaceChildren(...dtypes.map((dtype, i) =>
    make("li", {}, `${MARKS[i % MARKS.length][0]}: ${dtype} operands`)));
}

function listenRoof() {
  const canvas = $("roof");
  const go = (at) => {
    roof.at = Math.max(0, Math.min(roof.points.length - 1, at));
    drawRoof();
  };
  canvas.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: roof.at - 1, ArrowRight: roof.at + 1, PageUp: roof.at + 10, PageDown: roof.at - 10,
      Home: 0, End: roof.points.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(to);
  });
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    const far = ([x, y]) => (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
    go(roof.places.reduce((best, place, i) => far(place) < far(roof.places[best]) ? i : best, 0));
  };
  canvas.addEventListener("click", point);
}

// --- words --------------------------------------------------------------------------------------

function showSummary(view) {
  const measured = view.status.filter((s) => s !== null);
  const of = (test) => count(measured.filter(test).length);
  const ratios = view.problems.filter((r) => r.ratio).map((r) => Math.log(r.ratio));
  const pairs = {
    Kernels: count(view.K - view.vendors.length), Problems: count(view.P), Measurements: count(measured.length),
    Timed: of((s) => s === "ok"), Unsupported: of((s) => s === "unsupported"),
    Failed: of((s) => s !== "ok" && s !== "unsupported"),
    "Problems without a kernel": count(view.problems.filter((r) => r.best < 0).length),
    "Vs vendor, geometric mean": ratios.length
      ? Math.exp(ratios.reduce((a, b) => a + b) / ratios.length).toFixed(3) : "not measured",
  };
  $("summary").replaceChildren(...Object.entries(pairs).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  $("vendor-note").textContent = view.vendors.length
    ? "Vs vendor: the vendor library's time divided by the best kernel's; over 1, the best kernel is faster; alike if their intervals overlap."
    : "The vendor's library was not measured here (no kernel is named vendor.…), so there is no ratio to it.";
}

function showEnvironment(view) {
  const list = (title, pairs) => make("div", {}, make("h3", {}, title), make("dl", { class: "pairs" },
    ...pairs.flatMap(([name, value]) => [make("dt", {}, words(name)), make("dd", {}, value)])));
  const said = (value) => value === "" || value === null || (Array.isArray(value) && !value.length) ? "none"
    : Array.isArray(value) ? value.map((v) => Array.isArray(v) ? v.join(" ") : v).join(", ")
    : typeof value === "number" ? value.toLocaleString("en-US", { maximumFractionDigits: 4 }) : String(value);
  const date = (text) => text ? `${text.slice(0, 19).replace("T", " ")} UTC` : "unknown";
  const seen = view.seen, unknown = "unknown: not read";
  $("environment").replaceChildren(
    list("Device", Object.entries(view.device).map(([name, value]) => [name, said(value)])),
    list("Environment", [...view.environment.versions, ["driver", view.environment.driver || "none"]]),
    list("Settings", Object.entries(view.settings).map(([name, value]) => [name, said(value)])),
    list("While measuring", [
      ["from", date(seen.first)], ["until", date(seen.last)], ["time taken", seconds(seen.seconds)],
      ["clock", seen.clock_mhz ? `${seen.clock_mhz[0]} MHz at least, median up to ${seen.clock_mhz[1]} MHz` : unknown],
      ["temperature", seen.temperature_c === null ? unknown : `up to ${seen.temperature_c} °C`],
      ["power", seen.power_w === null ? unknown : `up to ${number(seen.power_w)} W`],
      ["throttled for", seen.throttle.join(", ") || "no reason seen"],
    ]),
  );
}

// --- the whole page ------------------------------------------------------------------------------

let found = null;

function search() {
  const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const n = found.keep((row) => wanted.every((word) => row.text.includes(word)));
  $("search-count").textContent = wanted.length ? `${count(n)} of ${several(heat.view.P, "problem")}` : "";
}

function show(index) {
  const view = unpack(report.setups[index]);
  Object.assign(heat, { view, rows: view.kernels, columns: view.problems, row: 0, column: 0, only: null });
  let ready = false;
  const redraw = () => { if (ready) drawHeat(); };
  $("chosen").textContent = report.setups.length > 1 ? `Everything below was measured on ${view.label}.` : "";
  showSummary(view);
  kernelTable(view, (rows) => { heat.rows = rows; redraw(); });
  found = bestTable(view, (rows) => { heat.columns = rows; redraw(); });
  search();
  drawLegend();
  ready = true;
  drawHeat();
  // A logarithmic axis has no place for an empty product.
  const points = view.problems.filter((r) => r.tflops > 0 && Number.isFinite(r.intensity)).sort((a, b) => a.intensity - b.intensity);
  Object.assign(roof, { view, points, at: 0 });
  const hidden = !points.length || view.settings.timer === "wall";
  $("roof-figure").hidden = $("roof-help").hidden = hidden;
  $("roof-note").textContent = view.roof.note || (points.length ? "" : "No kernel was timed.");
  drawRoof();
  nearTable(view);
  failuresTable(view);
  flagsTable(view);
  showEnvironment(view);
}

function start() {
  $("made").textContent = `Made ${report.made.slice(0, 16).replace("T", " ")} UTC by Tilewright ${report.version} from `
    + `${several(report.setups.length, "setup")} of one device, environment and settings each.`;
  $("setup").append(...report.setups.map((setup, i) => make("option", { value: i }, setup.label)));
  if (report.setups.length === 1) $("chooser").replaceChildren(`Measured on ${report.setups[0].label}.`);
  else $("setup").addEventListener("change", (event) => show(Number(event.target.value)));
  listenHeat();
  listenRoof();
  $("search").addEventListener("input", search);
  show(0);
  const again = () => { drawHeat(); drawRoof(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(again, 100); });
}

start();
