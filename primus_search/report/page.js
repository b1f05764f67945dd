"use strict";
// The page of one run. Everything shown goes through textContent; nothing is ever requested.
const run = JSON.parse(document.getElementById("data").textContent);
const GB = 1e9, PASS = ["F", "B", "W", "BW"];
const PALETTE = ["#3b82c4", "#e0852b", "#3aa57a", "#c94f6d", "#8a6bd1", "#a8842c", "#2aa6b8", "#d46aa8", "#7c8a2f",
  "#6b7a8f", "#b5563a", "#4c62d6", "#5aa02c", "#9c4dcc", "#008080", "#cc7a7a", "#888888"];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const main = document.getElementById("main");

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null) node.append(child instanceof Node ? child : String(child));
  return node;
}
function section(id, title, ...children) {
  const node = el("section", {id, "aria-label": title}, el("h2", {}, title), ...children);
  main.append(node);
  return node;
}
const whole = value => Math.round(value).toLocaleString("en");
const percent = (value, digits = 1) => (100 * value).toFixed(digits).replace(/^-(0[.]?0*)$/, "$1") + " %";
const signed = value => (value >= 0 ? "+" : "\u2212") + percent(Math.abs(value));
const gigabytes = value => (value / GB).toFixed(1);
const words = name => name.replaceAll("_", " ");
// A probability is never shown as 0 or 100 %: nobody knows the tail of an error.
const chance = value => value >= 0.995 ? ">99 %" : value < 0.005 ? "<1 %" : percent(value, 0);
const fits = row => row.memory_verdict + ", probability " + chance(row.fit_probability);
const evidence = row => "time " + row.time_evidence + ", memory " + row.memory_evidence;
const interval = row => whole(row.tokens_per_s_per_gpu_low) + " to " + whole(row.tokens_per_s_per_gpu_high);

function column(packed) {
  const text = atob(packed.base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (packed.type === "f4") return new Float32Array(bytes.buffer);
  return packed.type === "u2" ? new Uint16Array(bytes.buffer) : bytes;
}

// --- canvas that redraws on resize and on a change of colour scheme ---------------------------------------------------
const redraws = [];
function canvas(height, draw, attributes = {}) {
  const node = el("canvas", {tabindex: 0, ...attributes});
  let queued = false;
  const paint = () => {
    queued = false;
    const width = node.clientWidth, scale = window.devicePixelRatio || 1;
    if (!width) return;
    node.style.height = height + "px";
    node.width = Math.round(width * scale);
    node.height = Math.round(height * scale);
    const pen = node.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui,sans-serif";
    draw(pen, width, height);
  };
  node.redraw = () => { if (!queued) { queued = true; requestAnimationFrame(paint); } };
  redraws.push(node.redraw);
  return node;
}
addEventListener("resize", () => redraws.forEach(redraw => redraw()));
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => redraws.forEach(redraw => redraw()));

const tip = document.body.appendChild(el("div", {id: "tip", role: "status"}));
function showTip(text, x, y) {
  tip.textContent = text;
  tip.style.display = "block";
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
const hideTip = () => { tip.style.display = "none"; };

function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= raw) || raw;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(t);
  return found;
}

// --- candidates: points of the scatter, rows of the table, rows of the frontier ---------------------------------------
const points = run.points, memory = column(points.memory), speed = column(points.speed);
for (const axis of points.axes) axis.column = column(axis.codes);
const keyOf = row => run.table.axes.map(name => row[name]).join("|");
const detailed = new Map();
run.frontier.rows.forEach(row => detailed.set(keyOf(row), row));
run.table.rows.forEach((row, i) => detailed.set(keyOf(row), Object.assign(row, {rank: i + 1})));
function pointRow(i) {
  const row = {...points.fixed};
  for (const axis of points.axes) row[axis.name] = axis.values[axis.column[i]];
  return detailed.get(keyOf(row)) ||
    {...row, memory_bytes: memory[i], tokens_per_s_per_gpu: speed[i], short: describe(row)};
}
function describe(row) {
  const usual = {etp: 1, cp: 1, ep: 1, offload_layers: 0, recompute: "none", fp8: "none", shard_group: 0,
    recompute_num_layers: 0, recompute_method: "uniform"};
  return run.table.axes.filter(name => row[name] !== false && row[name] !== usual[name])
    .map(name => row[name] === true ? name : name + "=" + row[name]).join(" ");
}

const pinned = new Map();
const MOST_PINNED = 6;
function pin(row) {
  const key = keyOf(row);
  if (pinned.has(key)) pinned.delete(key);
  else {
    if (pinned.size >= MOST_PINNED) pinned.delete(pinned.keys().next().value);
    pinned.set(key, row);
  }
  changed();
}

// --- scatter ----------------------------------------------------------------------------------------------------------
const scatter = (() => {
  const pad = {left: 62, right: 14, top: 12, bottom: 40};
  const finite = a => { let low = Infinity, high = -Infinity; for (const v of a) { if (v < low) low = v; if (v > high) high = v; } return [low, high]; };
  const frontier = run.frontier.rows;
  // One Pareto front per kind of evidence: measured and projected figures are not compared.
  const kindOf = row => row.time_evidence + "/" + row.memory_evidence, isLookedAt = row => kindOf(row) !== "projected/projected";
  const lines = [...new Set(frontier.map(kindOf))].map(kind => frontier.filter(row => kindOf(row) === kind));
  const xs = finite([...finite(memory), ...frontier.map(r => r.memory_bytes)].filter(Number.isFinite));
  const ys = finite([...finite(speed), ...frontier.map(r => r.tokens_per_s_per_gpu)].filter(Number.isFinite));
  const limit = run.hbm ? run.hbm.bytes * (1 - run.hbm.margin) : null;
  const edge = (low, high) => { const room = (high - low || Math.abs(high) || 1) * 0.05; return [low - room, high + room]; };
  const home = () => ({x: edge(xs[0], limit && limit < xs[1] * 1.6 ? Math.max(limit, xs[1]) : xs[1]), y: edge(...ys)});
  let view = home(), axis = points.axes.find(a => a.name === "fp8") || points.axes[0] || null, at = -1, size = [1, 1];
  const px = v => pad.left + (v - view.x[0]) / (view.x[1] - view.x[0]) * (size[0] - pad.left - pad.right);
  const py = v => size[1] - pad.bottom - (v - view.y[0]) / (view.y[1] - view.y[0]) * (size[1] - pad.top - pad.bottom);
  function draw(pen, width, height) {
    size = [width, height];
    const ink = css("--ink"), soft = css("--soft"), line = css("--line");
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = line; pen.fillStyle = soft; pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const t of ticks(view.x[0] / GB, view.x[1] / GB, width / 90)) {
      const x = px(t * GB);
      pen.beginPath(); pen.moveTo(x, pad.top); pen.lineTo(x, height - pad.bottom); pen.stroke();
      pen.fillText(+t.toPrecision(6), x, height - pad.bottom + 15);
    }
    pen.fillText("memory per GPU, GB", (width + pad.left) / 2, height - 6);
    pen.textAlign = "right";
    for (const t of ticks(view.y[0], view.y[1], height / 50)) {
      const y = py(t);
      pen.beginPath(); pen.moveTo(pad.left, y); pen.lineTo(width - pad.right, y); pen.stroke();
      pen.fillText(whole(t), pad.left - 6, y + 4);
    }
    pen.save(); pen.translate(12, height / 2); pen.rotate(-Math.PI / 2); pen.textAlign = "center";
    pen.fillText("tokens/s/GPU", 0, 0); pen.restore();
    pen.save();
    pen.beginPath(); pen.rect(pad.left, pad.top, width - pad.left - pad.right, height - pad.top - pad.bottom); pen.clip();
    const dot = memory.length > 20000 ? 2 : memory.length > 2000 ? 3 : 5;
    const groups = axis ? axis.values.length : 1;
    for (let g = 0; g < groups; g++) {
      pen.fillStyle = PALETTE[g % PALETTE.length];
      for (let i = memory.length - 1; i >= 0; i--) {
        if (axis && axis.column[i] !== g) continue;
        pen.fillRect(px(memory[i]) - dot / 2, py(speed[i]) - dot / 2, dot, dot);
      }
    }
    if (limit) {
      pen.strokeStyle = css("--hot"); pen.setLineDash([6, 4]); pen.beginPath();
      pen.moveTo(px(limit), 0); pen.lineTo(px(limit), height); pen.stroke(); pen.setLineDash([]);
      pen.fillStyle = css("--hot"); pen.textAlign = "right";
      pen.fillText("memory limit " + gigabytes(limit) + " GB", px(limit) - 5, pad.top + 12);
    }
    pen.strokeStyle = ink; pen.lineWidth = 1.5;
    for (const rows of lines) {
      pen.setLineDash(lines.length > 1 && !isLookedAt(rows[0]) ? [3, 3] : []);
      pen.beginPath();
      rows.forEach((row, i) => {
        const x = px(row.memory_bytes), y = py(row.tokens_per_s_per_gpu);
        if (i) { pen.lineTo(x, py(rows[i - 1].tokens_per_s_per_gpu)); pen.lineTo(x, y); } else pen.moveTo(x, y);
      });
      pen.stroke();
    }
    pen.setLineDash([]); pen.fillStyle = ink;
    for (const row of frontier) { ring(pen, row, ink, 3.5); if (isLookedAt(row)) pen.fill(); }
    for (const row of pinned.values()) ring(pen, row, css("--hot"), 7);
    if (at >= 0) ring(pen, frontier[at], css("--accent"), 8);
    pen.restore();
  }
  function ring(pen, row, colour, radius) {
    pen.strokeStyle = colour; pen.lineWidth = 2; pen.beginPath();
    pen.arc(px(row.memory_bytes), py(row.tokens_per_s_per_gpu), radius, 0, 7); pen.stroke();
  }
  const node = canvas(Math.min(460, Math.max(300, innerHeight * 0.55)), draw, {
    role: "application", id: "scatter",
    "aria-label": "Scatter of memory per GPU against tokens per second per GPU. Left and right walk along the frontier, Enter pins, plus and minus zoom.",
  });
  function nearest(x, y) {
    let best = null, least = 14 * 14;
    for (let i = 0; i < memory.length; i++) {
      const dx = px(memory[i]) - x;
      if (dx > 14 || dx < -14) continue;
      const dy = py(speed[i]) - y, d = dx * dx + dy * dy;
      if (d < least) { least = d; best = i; }
    }
    let row = best === null ? null : pointRow(best);
    for (const one of frontier) {
      const d = (px(one.memory_bytes) - x) ** 2 + (py(one.tokens_per_s_per_gpu) - y) ** 2;
      if (d <= least) { least = d; row = one; }
    }
    return row;
  }
  const label = row => row.short + "\n" + whole(row.tokens_per_s_per_gpu) + " tokens/s/GPU, " + gigabytes(row.memory_bytes) + " GB" +
    (row.fit_probability === undefined ? "" : "\n90 %: " + interval(row) + "; " + fits(row) + "\n" + evidence(row));
  function zoom(factor, fx = 0.5, fy = 0.5) {
    const [x0, x1] = view.x, [y0, y1] = view.y, cx = x0 + fx * (x1 - x0), cy = y0 + fy * (y1 - y0);
    view = {x: [cx - (cx - x0) * factor, cx + (x1 - cx) * factor], y: [cy - (cy - y0) * factor, cy + (y1 - cy) * factor]};
    node.redraw();
  }
  let from = null, moved = false;
  node.addEventListener("pointerdown", e => { from = {x: e.offsetX, y: e.offsetY, view}; moved = false; node.setPointerCapture(e.pointerId); });
  node.addEventListener("pointermove", e => {
    if (from) {
      const dx = e.offsetX - from.x, dy = e.offsetY - from.y;
      if (Math.abs(dx) + Math.abs(dy) > 4) moved = true;
      if (!moved) return;
      const sx = dx / (size[0] - pad.left - pad.right) * (from.view.x[1] - from.view.x[0]);
      const sy = dy / (size[1] - pad.top - pad.bottom) * (from.view.y[1] - from.view.y[0]);
      view = {x: from.view.x.map(v => v - sx), y: from.view.y.map(v => v + sy)};
      node.redraw();
      return;
    }
    const row = nearest(e.offsetX, e.offsetY);
    if (row) showTip(label(row), e.clientX, e.clientY); else hideTip();
  });
  node.addEventListener("pointerup", e => {
    from = null;
    if (moved) return;
    const row = nearest(e.offsetX, e.offsetY);
    if (row) pin(row);
  });
  node.addEventListener("pointercancel", () => { from = null; });
  node.addEventListener("pointerleave", () => { if (!from) hideTip(); });
  node.addEventListener("wheel", e => {
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.2 : 1 / 1.2, (e.offsetX - pad.left) / (size[0] - pad.left - pad.right),
      1 - (e.offsetY - pad.top) / (size[1] - pad.top - pad.bottom));
  }, {passive: false});
  node.addEventListener("keydown", e => {
    const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1}[e.key];
    if (step && frontier.length) at = Math.max(0, Math.min(frontier.length - 1, (at < 0 ? (step > 0 ? -1 : frontier.length) : at) + step));
    else if ((e.key === "Enter" || e.key === " ") && at >= 0) pin(frontier[at]);
    else if (e.key === "+" || e.key === "=") zoom(1 / 1.4);
    else if (e.key === "-") zoom(1.4);
    else if (e.key === "0") { view = home(); }
    else return;
    e.preventDefault();
    status.textContent = at >= 0 ? label(frontier[at]).replace("\n", ": ").replaceAll("\n", "; ") : "";
    node.redraw();
  });
  const status = el("p", {class: "soft", role: "status"});
  const legend = el("div", {class: "legend"});
  const choose = el("select", {id: "colour", onchange: () => { axis = points.axes.find(a => a.name === choose.value) || null; paintLegend(); node.redraw(); }},
    points.axes.map(a => el("option", {value: a.name, selected: a === axis}, words(a.name))));
  function paintLegend() {
    legend.replaceChildren(...(axis ? axis.values.map((value, i) => el("span", {}, el("i", {style: "background:" + PALETTE[i % PALETTE.length]}), String(value))) : []));
  }
  paintLegend();
  const many = points.of > points.count ? points.count.toLocaleString("en") + " of " + points.of.toLocaleString("en") + " kept candidates" : points.of.toLocaleString("en") + " kept candidates";
  section("pareto", "Memory against throughput",
    el("div", {class: "bar"}, el("label", {}, "Colour ", choose),
      el("button", {type: "button", onclick: () => zoom(1 / 1.4), "aria-label": "zoom in"}, "+"),
      el("button", {type: "button", onclick: () => zoom(1.4), "aria-label": "zoom out"}, "\u2212"),
      el("button", {type: "button", onclick: () => { view = home(); node.redraw(); }}, "Reset")),
    node, legend, status,
    el("p", {class: "soft"}, many + ". Line: Pareto front." + (lines.length > 1 ? " One front per kind of evidence, for measured and projected figures are not compared; filled and unbroken: memory traced or time measured." : "") + " Click a point to pin it; drag and wheel move the view; arrow keys walk along the frontier, Enter pins."));
  return node;
})();

// --- pinned candidates: stacked bars ----------------------------------------------------------------------------------
const pins = section("pinned", "Pinned candidates");
const partColours = names => new Map(names.map((name, i) => [name, PALETTE[i % PALETTE.length]]));
const STEP = partColours(Object.keys((run.table.rows.find(r => r.step) || {step: {}}).step));
const MEMORY = partColours(Object.keys((run.table.rows.find(r => r.memory) || {memory: {}}).memory));
function bar(parts, colours, total, unit) {
  const node = el("div", {class: "stack", role: "img", "aria-label": Object.entries(parts).filter(p => p[1] > 0).map(([n, v]) => words(n) + " " + unit(v)).join(", ")});
  for (const [name, value] of Object.entries(parts)) {
    if (!(value > 0)) continue;
    const text = words(name) + ": " + unit(value) + " (" + percent(value / Object.values(parts).reduce((a, b) => a + b, 0)) + ")";
    node.append(el("i", {style: `width:${100 * value / total}%;background:${colours.get(name)}`,
      onpointermove: e => showTip(text, e.clientX, e.clientY), onpointerleave: hideTip}));
  }
  return node;
}
const legendOf = (colours, rows) => el("div", {class: "legend"}, [...colours].filter(([name]) => rows.some(r => r[name] > 0))
  .map(([name, colour]) => el("span", {}, el("i", {style: "background:" + colour}), words(name))));
const sum = parts => Object.values(parts).reduce((a, b) => a + b, 0);
function drawPins() {
  const rows = [...pinned.values()], milliseconds = v => (1e3 * v).toFixed(1) + " ms", gb = v => gigabytes(v) + " GB";
  pins.replaceChildren(el("h2", {}, "Pinned candidates"));
  if (!rows.length) { pins.append(el("p", {class: "soft"}, "None. Click a point above or a row below.")); return; }
  const steps = rows.filter(r => r.step), longest = Math.max(...steps.map(r => sum(r.step)));
  const held = rows.filter(r => r.memory), largest = Math.max(run.hbm ? run.hbm.bytes : 0, ...held.map(r => sum(r.memory)));
  const facts = row => el("h3", {}, (row.rank ? "#" + row.rank + " " : "") + row.short + " ",
    el("button", {type: "button", onclick: () => pin(row), "aria-label": "unpin " + row.short}, "unpin"));
  for (const row of rows) {
    pins.append(facts(row), el("p", {class: "soft"}, whole(row.tokens_per_s_per_gpu) + " tokens/s/GPU, " + gigabytes(row.memory_bytes) + " GB per GPU" +
      (row.fit_probability === undefined ? "" : "; 90 % interval " + interval(row) + "; " + fits(row) + "; " + evidence(row)) +
      (row.mfu ? ", MFU " + percent(row.mfu) + ", bubble " + percent(row.bubble_ratio) + ", " + row.microbatches + " micro-batches, dp " + row.dp : "")));
    if (!row.step) { pins.append(el("p", {class: "soft"}, "Break-downs are kept for the best " + run.table.rows.length + " and for the frontier.")); continue; }
    pins.append(el("div", {class: "rankline"}, el("span", {}, "step"), bar(row.step, STEP, longest, milliseconds), el("span", {}, sum(row.step).toFixed(3) + " s")));
    if (row.memory_by_rank) {
      const ranks = Object.values(row.memory_by_rank)[0].length;
      for (let r = 0; r < ranks; r++) {
        const parts = Object.fromEntries(Object.entries(row.memory_by_rank).map(([name, values]) => [name, values[r]]));
        pins.append(el("div", {class: "rankline"}, el("span", {}, "pp rank " + r), bar(parts, MEMORY, largest, gb), el("span", {}, gb(sum(parts)))));
      }
    } else pins.append(el("div", {class: "rankline"}, el("span", {}, "worst rank"), bar(row.memory, MEMORY, largest, gb), el("span", {}, gb(sum(row.memory)))));
  }
  if (steps.length) pins.append(el("h3", {}, "Step"), legendOf(STEP, steps.map(r => r.step)), el("h3", {}, "Memory by pipeline rank"), legendOf(MEMORY, held.map(r => r.memory)));
}

// --- table ------------------------------------------------------------------------------------------------------------
const table = (() => {
  const rows = run.table.rows, differing = run.table.axes.filter(name => new Set(rows.map(r => r[name])).size > 1);
  const columns = [["rank", "#"], ["tokens_per_s_per_gpu", "tokens/s/GPU"], ["tokens_per_s_per_gpu_low", "90 % from"], ["tokens_per_s_per_gpu_high", "to"],
    ["ties_with_best", "tie"], ["memory_bytes", "GB"], ["headroom_bytes", "spare GB"], ["fit_probability", "fits"], ["memory_verdict", "verdict"],
    ["bubble_ratio", "bubble"], ["mfu", "MFU"], ["step_s", "step s"], ...differing.map(n => [n, words(n)]), ["dp", "dp"], ["microbatches", "micro-batches"],
    ["time_evidence", "time"], ["memory_evidence", "memory"]];
  let by = "rank", down = false, filter = "";
  const shown = {tokens_per_s_per_gpu: whole, tokens_per_s_per_gpu_low: whole, tokens_per_s_per_gpu_high: whole, ties_with_best: v => v ? "=" : "",
    fit_probability: chance, memory_bytes: gigabytes, headroom_bytes: gigabytes, bubble_ratio: v => percent(v), mfu: v => percent(v), step_s: v => v.toFixed(3)};
  const body = el("tbody"), count = el("span", {class: "soft", role: "status"});
  const head = el("tr", {}, el("th", {}, ""), columns.map(([name, title]) => el("th", {class: typeof rows[0][name] === "number" ? "n" : ""},
    el("button", {type: "button", "data-sort": name, onclick: () => { down = by === name ? !down : ["tokens_per_s_per_gpu", "mfu"].includes(name); by = name; draw(); }}, title))));
  const matches = row => filter.toLowerCase().split(/\s+/).filter(Boolean).every(word => {
    const found = word.match(/^([a-z0-9_]+)(<=|>=|=|<|>)(.+)$/);
    if (!found || !(found[1] in row)) return row.short.toLowerCase().includes(word);
    const [, name, sign, wanted] = found, value = row[name];
    if (sign === "=") return String(value).toLowerCase() === wanted;
    const number = parseFloat(wanted);
    return sign === "<" ? value < number : sign === ">" ? value > number : sign === "<=" ? value <= number : value >= number;
  });
  function draw() {
    const kept = rows.filter(matches).sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : a.rank - b.rank) * (down ? -1 : 1));
    for (const button of head.querySelectorAll("button")) {
      const mine = button.dataset.sort === by;
      button.parentNode.setAttribute("aria-sort", mine ? (down ? "descending" : "ascending") : "none");
      button.textContent = columns.find(c => c[0] === button.dataset.sort)[1] + (mine ? (down ? " \u25be" : " \u25b4") : "");
    }
    body.replaceChildren(...kept.map(row => {
      const on = pinned.has(keyOf(row));
      return el("tr", {class: on ? "pinned" : null}, el("td", {}, el("button", {type: "button", "aria-pressed": on, "data-rank": row.rank, "aria-label": "pin rank " + row.rank, onclick: () => pin(row)}, on ? "\u2605" : "\u2606")),
        columns.map(([name]) => el("td", {class: typeof row[name] === "number" ? "n" : ""}, shown[name] ? shown[name](row[name]) : String(row[name]))));
    }));
    count.textContent = kept.length + " of " + rows.length;
  }
  section("ranking", "The best " + rows.length,
    el("div", {class: "bar"}, el("label", {}, "Filter ", el("input", {id: "filter", type: "search", placeholder: "pp=8 deepep fp8=hybrid bubble_ratio<0.05", size: 34, oninput: e => { filter = e.target.value; draw(); }})), count),
    el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": "ranking"}, el("table", {}, el("thead", {}, head), body)));
  return {draw};
})();

// --- the rest ---------------------------------------------------------------------------------------------------------
function meters(rows) {
  const most = Math.max(...rows.map(r => r.value), 1e-12);
  return rows.map(r => el("div", {class: "meter", title: r.title || null}, el("b", {}, r.name), el("div", {}, el("i", {style: `width:${100 * Math.max(0, r.value) / most}%`})), el("span", {}, r.text)));
}
if (run.knobs) section("knobs", "What each knob of the winner gives",
  meters(run.knobs.filter(k => k.gain !== null && k.gain < 1).map(k => ({name: words(k.knob) + ": " + k.used + " instead of " + k.off, value: k.gain, text: signed(k.gain) + (k.tuned_gain === null ? "" : " / " + signed(k.tuned_gain)),
    title: Object.entries(k.followed).map(([n, v]) => n + "=" + v).join(", ") + (k.fits ? "" : " (does not fit without it)")}))),
  el("p", {class: "soft"}, "Tokens/s over the same candidate with the knob off; after the slash, over the best of the run with it off. "),
  run.knobs.filter(k => k.gain === null || k.gain >= 1).map(k => el("p", {class: "soft"}, words(k.knob) + ": " + k.used + (k.gain === null ? " cannot be switched off alone: " + k.rule : " instead of " + k.off + ": " + signed(k.gain)))));
if (run.advice && run.advice.length) section("advice", "What would make it faster", el("ul", {}, run.advice.map(a => el("li", {}, a.finding + ". ",
  a.best ? el("strong", {}, a.best + ": " + signed(a.gain) + (a.is_in_space ? "" : ", not in the space")) : "Nothing that was tried helps."))));

if (run.gantt) (() => {
  const g = run.gantt, colours = ["#3b82c4", "#3aa57a", "#d0a02b", "#3aa57a"], left = 48, row = Math.max(12, Math.min(30, 300 / g.ranks));
  let from = 0, span = Math.max(...g.end) || 1;
  const end = span, seconds = v => (v * g.makespan_s / 1e5).toFixed(3) + " s";
  const node = canvas(g.ranks * row + 34, (pen, width, height) => {
    pen.clearRect(0, 0, width, height);
    const x = v => left + (v - from) / span * (width - left - 6);
    pen.fillStyle = css("--row"); pen.fillRect(left, 4, width - left - 6, g.ranks * row);
    pen.fillStyle = css("--soft"); pen.textAlign = "right";
    for (let r = 0; r < g.ranks; r++) pen.fillText("rank " + r, left - 5, 4 + row * r + row / 2 + 4);
    pen.save(); pen.beginPath(); pen.rect(left, 0, width - left - 6, height); pen.clip();
    const chunk = Math.max(...g.stage) + 1;
    for (let i = 0; i < g.start.length; i++) {
      const a = x(g.start[i]), b = x(g.end[i]);
      if (b < left || a > width) continue;
      pen.globalAlpha = 1 - 0.5 * Math.floor(g.stage[i] / g.ranks) * g.ranks / chunk;
      pen.fillStyle = colours[g.kind[i]];
      pen.fillRect(a, 5 + row * g.rank[i], Math.max(0.4, b - a - 0.4), row - 2);
      if (b - a > 18) { pen.globalAlpha = 1; pen.fillStyle = "#fff"; pen.textAlign = "center"; pen.fillText(g.micro_batch[i], (a + b) / 2, 4 + row * g.rank[i] + row / 2 + 4); }
    }
    pen.restore();
    pen.fillStyle = css("--soft"); pen.textAlign = "center";
    for (const t of ticks(from, from + span, width / 130)) pen.fillText(seconds(t), x(t), height - 8);
  }, {id: "gantt", role: "application", "aria-label": "Pipeline of the winner: when every pass runs. Left and right move, plus and minus zoom."});
  const clamp = () => { span = Math.min(end, Math.max(end / 4000, span)); from = Math.max(0, Math.min(end - span, from)); node.redraw(); };
  const zoom = (factor, at = 0.5) => { from += span * at * (1 - factor); span *= factor; clamp(); };
  node.addEventListener("wheel", e => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, (e.offsetX - left) / (node.clientWidth - left)); }, {passive: false});
  let drag = null;
  node.addEventListener("pointerdown", e => { drag = {x: e.offsetX, from}; node.setPointerCapture(e.pointerId); });
  node.addEventListener("pointerup", () => { drag = null; });
  node.addEventListener("pointermove", e => {
    if (drag) { from = drag.from - (e.offsetX - drag.x) / (node.clientWidth - left) * span; clamp(); return; }
    const t = from + (e.offsetX - left) / (node.clientWidth - left - 6) * span, r = Math.floor((e.offsetY - 4) / row);
    const i = g.start.findIndex((s, k) => g.rank[k] === r && s <= t && g.end[k] >= t);
    if (i >= 0) showTip(PASS[g.kind[i]] + ", stage " + g.stage[i] + ", micro-batch " + g.micro_batch[i] + "\n" + seconds(g.start[i]) + " to " + seconds(g.end[i]), e.clientX, e.clientY); else hideTip();
  });
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("keydown", e => {
    if (e.key === "ArrowRight") from += span / 8; else if (e.key === "ArrowLeft") from -= span / 8;
    else if (e.key === "+" || e.key === "=") { zoom(0.7); } else if (e.key === "-") { zoom(1.4); } else return;
    e.preventDefault(); clamp();
  });
  section("pipeline", "Pipeline of the winner",
    el("div", {class: "bar"}, el("button", {type: "button", onclick: () => zoom(0.6, 0), "aria-label": "zoom in"}, "+"), el("button", {type: "button", onclick: () => zoom(1.6, 0), "aria-label": "zoom out"}, "\u2212"),
      el("button", {type: "button", onclick: () => { from = 0; span = end; clamp(); }}, "Whole step"), el("button", {type: "button", onclick: () => { from = 0; span = end / 8; clamp(); }}, "Warm-up"), el("button", {type: "button", onclick: () => { span = end / 8; from = end - span; clamp(); }}, "Cool-down")),
    node, el("div", {class: "legend"}, ["forward", "backward", "weight gradient"].map((n, i) => el("span", {}, el("i", {style: "background:" + colours[i]}), n)), el("span", {}, "paler: later chunks of a rank")),
    el("p", {class: "soft"}, g.schedule + ", " + g.ranks + " ranks, makespan " + g.makespan_s.toFixed(3) + " s, " + percent(g.bubble_ratio) + " of all ranks' time idle" + (g.shown < g.of ? "; the first " + whole(g.shown) + " of " + whole(g.of) + " passes are drawn" : "") + "."));
})();

(() => {
  const rows = run.table.rows, names = run.table.axes.filter(name => new Set(rows.map(r => r[name])).size > 1).concat(["tokens_per_s_per_gpu", "memory_bytes"]);
  if (names.length < 3) return;
  const scales = names.map(name => {
    const values = [...new Set(rows.map(r => r[name]))];
    if (name.includes("_per_") || name.endsWith("_bytes")) { const low = Math.min(...values), high = Math.max(...values); return {at: v => high > low ? (v - low) / (high - low) : 0.5, ends: name.endsWith("_bytes") ? [gigabytes(low) + " GB", gigabytes(high) + " GB"] : [whole(low), whole(high)]}; }
    values.sort((a, b) => a < b ? -1 : 1);
    return {at: v => values.length > 1 ? values.indexOf(v) / (values.length - 1) : 0.5, values};
  });
  const node = canvas(330, (pen, width, height) => {
    pen.clearRect(0, 0, width, height);
    const x = i => 40 + i * (width - 90) / (names.length - 1), y = t => height - 40 - t * (height - 86);
    const path = row => { pen.beginPath(); names.forEach((name, i) => pen[i ? "lineTo" : "moveTo"](x(i), y(scales[i].at(row[name])))); pen.stroke(); };
    pen.lineWidth = 1; pen.globalAlpha = 0.35;
    [...rows].reverse().forEach(row => { const t = scales[names.length - 2].at(row.tokens_per_s_per_gpu); pen.strokeStyle = `hsl(${210 - 190 * t} 70% 50%)`; path(row); });
    pen.globalAlpha = 1; pen.lineWidth = 2.5; pen.strokeStyle = css("--hot");
    for (const row of pinned.values()) if (row.rank) path(row);
    pen.font = "11px system-ui,sans-serif"; pen.lineWidth = 1;
    names.forEach((name, i) => {
      pen.strokeStyle = css("--line"); pen.beginPath(); pen.moveTo(x(i), y(0)); pen.lineTo(x(i), y(1)); pen.stroke();
      pen.fillStyle = css("--soft"); pen.textAlign = "left";
      const s = scales[i];
      if (s.values) s.values.slice(0, 12).forEach(v => pen.fillText(String(v).slice(0, 12), x(i) + 4, y(s.at(v)) + 4));
      else { pen.fillText(s.ends[0], x(i) - 30, y(0) + 14); pen.fillText(s.ends[1], x(i) - 30, y(1) - 6); }
      pen.save(); pen.fillStyle = css("--ink"); pen.textAlign = "center"; pen.fillText(words(name).replace("tokens per s per gpu", "tokens/s").replace("memory bytes", "memory").slice(0, 16), x(i), i % 2 ? height - 6 : 16); pen.restore();
    });
  }, {role: "img", "aria-label": "Parallel coordinates of the best candidates"});
  node.style.minWidth = Math.max(320, names.length * 76) + "px";
  section("parallel", "How the best " + rows.length + " are made", el("div", {class: "wide"}, node), el("p", {class: "soft"}, "One line per candidate; pinned ones stand out."));
})();

section("funnel", "How many were looked at",
  meters([["grid", run.funnel.raw], ["legal", run.funnel.legal], ["fit in memory", run.funnel.feasible], ...run.funnel.stages.filter(s => s.name === "project").map(s => ["projected in full (the bound excludes the others)", s.rows])]
    .map(([name, rows]) => ({name, value: Math.log10(1 + rows), text: whole(rows)}))),
  el("p", {class: "soft"}, "Bars are on a logarithmic scale."),
  el("details", {}, el("summary", {}, "Removed by rule"), el("div", {class: "wide"}, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "rule"), el("th", {class: "n"}, "rows"), el("th", {}, "why"))),
    el("tbody", {}, run.funnel.removed.sort((a, b) => b.rows - a.rows).map(r => el("tr", {}, el("td", {}, r.rule), el("td", {class: "n"}, whole(r.rows)), el("td", {class: "w"}, r.reason))))))),
  el("details", {}, el("summary", {}, "Processor time by stage"), el("table", {}, el("tbody", {}, run.funnel.stages.map(s => el("tr", {}, el("td", {}, s.name), el("td", {class: "n"}, whole(s.rows)), el("td", {class: "n"}, s.seconds.toFixed(2) + " s"), el("td", {class: "n"}, whole(s.rows_per_s) + " rows/s/core")))))));

(() => {
  const counts = {};
  for (const row of run.table.rows) for (const what of ["time", "memory"]) { const k = what + ": " + row[what + "_evidence"]; counts[k] = (counts[k] || 0) + 1; }
  const best = run.table.rows.slice(0, 10);
  section("evidence", "What the figures stand on",
    el("p", {}, "Projected: cost model and exact pipeline simulation. Traced: torch modules at true shapes. Measured: on a device. Of the best " + run.table.rows.length + ": " + Object.entries(counts).map(([k, n]) => k + " " + n).join(", ") + "."),
    el("div", {class: "wide"}, el("table", {}, el("thead", {}, el("tr", {}, ["#", "candidate", "tokens/s/GPU", "time is", "GB", "memory is"].map(t => el("th", {}, t)))),
      el("tbody", {}, best.map(r => el("tr", {}, el("td", {class: "n"}, r.rank), el("td", {class: "w"}, r.short), el("td", {class: "n"}, whole(r.tokens_per_s_per_gpu)), el("td", {}, r.time_evidence), el("td", {class: "n"}, gigabytes(r.memory_bytes)), el("td", {}, r.memory_evidence)))))),
    el("p", {class: "soft"}, run.winner.ties + (run.winner.ties === 1 ? " candidate is" : " candidates are") + " within " + percent(run.winner.tie, 0) + " of the winner, itself included (\"=\" in the table): two runs of one job differ by as much."),
    run.coverage ? el("div", {class: "wide"}, el("table", {}, el("thead", {}, el("tr", {}, ["part of the winner's projection", "rests on", ""].map(t => el("th", {}, t)))),
      el("tbody", {}, run.coverage.map(c => el("tr", {}, el("td", {}, c.part), el("td", {}, c.is_calibrated ? "measurements" : "extrapolation"), el("td", {class: "w"}, c.why)))))) : null);
})();

if (run.exports && run.exports.length) (() => {
  let rank = 0, format = Object.keys(run.exports[0].files)[0];
  const text = el("pre", {id: "launch", tabindex: 0}), name = el("span", {class: "soft"}), said = el("span", {role: "status", id: "copied"});
  const buttons = Object.keys(run.exports[0].files).map(f => el("button", {type: "button", "data-format": f, onclick: () => { format = f; draw(); }}, f));
  const choose = el("select", {id: "export-rank", onchange: () => { rank = choose.selectedIndex; draw(); }}, run.exports.map(e => el("option", {}, "#" + e.rank)));
  function draw() {
    const file = run.exports[rank].files[format];
    text.textContent = file.text; name.textContent = file.name; said.textContent = "";
    for (const b of buttons) b.setAttribute("aria-pressed", b.dataset.format === format);
  }
  async function copy() {
    const content = text.textContent;
    try { await navigator.clipboard.writeText(content); }
    catch {
      const area = document.body.appendChild(el("textarea", {style: "position:fixed;opacity:0"}));
      area.value = content; area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) { said.textContent = "Select the text and copy it by hand."; return; }
    }
    said.textContent = "Copied.";
  }
  section("export", "Launch files", el("div", {class: "bar"}, el("label", {}, "Rank ", choose), buttons, el("button", {type: "button", id: "copy", onclick: copy}, "Copy"), said), name, text);
  draw();
})();

section("about", "About this run", el("div", {class: "wide"}, el("table", {}, el("tbody", {}, Object.entries({...run.facts, ...Object.fromEntries(Object.entries(run.versions).map(([k, v]) => [k + " version", v])), ...run.points.fixed})
  .map(([k, v]) => el("tr", {}, el("td", {}, words(k)), el("td", {class: "w"}, String(v))))))), run.notes.map(n => el("p", {class: "soft"}, n)));

function changed() { table.draw(); drawPins(); redraws.forEach(redraw => redraw()); }
if (run.table.rows.length) pinned.set(keyOf(run.table.rows[0]), run.table.rows[0]);
changed();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
