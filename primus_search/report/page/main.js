// The page of one run: every part draws the candidates that match the filter; state.js says what the reader chose.
import {hinted, partLegend, stackedBar, total} from "./bars.js";
import {Candidates, unpacked} from "./candidates.js";
import {colourOf} from "./chart.js";
import {button, byId, copied, el} from "./dom.js";
import {Filter, valueTerms} from "./filter.js";
import {FIGURES, seconds, shellWord, whole, words} from "./format.js";
import {Gantt} from "./gantt.js";
import {Parallel} from "./parallel.js";
import {Pins} from "./pins.js";
import {Roofline} from "./roofline.js";
import {Scaling} from "./scaling.js";
import {Scatter} from "./scatter.js";
import {State} from "./state.js";
import {Table} from "./table.js";
import {WhatIf} from "./whatif.js";

/** `primus-search export FOLDER 3` of `export 3`; the folder is this page's where it was opened from a disk. */
function commandOf(text) {
  const [command, ...rest] = text.split(" ");
  return ["primus-search", command, shellWord(folderOf(location)), ...rest].join(" ");
}

function folderOf({protocol, pathname}) {
  try {
    return protocol === "file:" ? decodeURIComponent(pathname).replace(/\/[^/]*$/, "") : "RUN";
  } catch {
    return "RUN";
  }
}

/** Copy buttons, commands with the folder of this page, and words on hover. */
function fillCommands() {
  for (const node of document.querySelectorAll("[data-words]")) hinted(node, node.dataset.words);
  for (const code of document.querySelectorAll("[data-command]")) code.textContent = commandOf(code.dataset.command);
  for (const node of document.querySelectorAll("[data-copy]")) {
    node.hidden = false;
    node.addEventListener("click", async () => { node.textContent = await copied(node.previousElementSibling.textContent) ? "Copied" : "Copy by hand"; });
  }
}

class Page {
  #shown = new Uint32Array(0);

  constructor(run, candidates) {
    this.candidates = candidates;
    const differing = candidates.differing.length ? candidates.differing : candidates.knobs.slice(0, 1);
    const colours = differing.sort((a, b) => (b === "fp8") - (a === "fp8"));
    this.state = new State(candidates.count, colours);
    this.filter = new Filter(candidates);
    this.scatter = new Scatter(candidates, this.state, this.filter, run.limit?.usable_bytes, run.letters, run.own_runs);
    this.parallel = new Parallel(candidates, this.state, this.filter);
    this.table = new Table(candidates, this.state);
    this.pins = new Pins(candidates, this.state, run, commandOf);
    this.#controls(colours);
    this.#step(run);
    this.#pinButtons();
    this.state.listen(changed => this.#changed(changed));
    this.#changed(new Set(["filter", "pins", "colour", "sort"]));
  }

  #controls(colours) {
    const input = byId("filter"), colour = byId("colour");
    input.addEventListener("input", () => this.state.set({filter: input.value.trim()}));
    byId("clear").addEventListener("click", () => { this.state.set({filter: ""}); input.focus(); });
    colour.append(...colours.map(name => el("option", {value: name}, words(name))));
    colour.addEventListener("change", () => this.state.set({colour: colour.value}));
    byId("figure-names").textContent = FIGURES.map(({name}) => name).join(", ");
  }

  /** The bar of the step of the row that the page is about. */
  #step({rank, terms}) {
    const {candidates} = this, parts = candidates.parts("step", candidates.number("rank").indexOf(rank));
    byId("step").hidden = !parts;
    if (parts) byId("step-bar").append(stackedBar("step", parts, candidates.step, total(parts), seconds, terms), partLegend("", candidates.step, [parts]));
  }

  #pinButtons() {
    const ranks = this.candidates.number("rank");
    this.starred = [...document.querySelectorAll("[data-pin-rank]")].map(node => ({node, row: ranks.indexOf(Number(node.dataset.pinRank))})).filter(({row}) => row >= 0);
    for (const {node, row} of this.starred) {
      node.hidden = false;
      node.addEventListener("click", () => this.state.pin(row));
    }
  }

  #changed(changed) {
    const {filter, colour} = this.state, hasNewRows = changed.has("filter"), hasNewLook = hasNewRows || changed.has("colour") || changed.has("pins");
    if (hasNewRows) this.#match(filter);
    if (hasNewRows || changed.has("colour")) this.#legend();
    if (hasNewLook) {
      this.scatter.draw(this.#shown);
      this.parallel.draw(this.#shown);
    }
    if (hasNewRows) this.table.draw(this.#shown); else if (changed.has("sort") || changed.has("columns") || changed.has("pins")) this.table.redraw();
    if (changed.has("pins") || changed.has("compare")) this.pins.draw();
    byId("colour").value = colour;
    const pinned = new Set(this.state.pinned);
    for (const {node, row} of this.starred) {
      node.setAttribute("aria-pressed", pinned.has(row));
      node.textContent = pinned.has(row) ? "\u2605" : "\u2606";
    }
  }

  #match(text) {
    const {rows, problems} = this.filter.matching(text), input = byId("filter");
    this.#shown = rows;
    if (input.value.trim() !== text) input.value = text;
    byId("count").textContent = `${whole(rows.length)} of ${whole(this.candidates.count)}`;
    byId("problem").textContent = problems.join("; ");
    input.setAttribute("aria-invalid", String(problems.length > 0));
  }

  /** The values of the colour; each switches its candidates off and on. */
  #legend() {
    const {filter, colour} = this.state, {values} = this.candidates.coded(colour), left = this.filter.left(filter, colour);
    const focused = document.activeElement?.dataset?.code;
    const toggle = code => {
      left[code] ^= 1;
      this.state.set({filter: this.filter.replaced(filter, colour, ...valueTerms(colour, values, value => left[values.indexOf(value)]))});
    };
    byId("legend").replaceChildren(...values.map((value, code) => {
      const one = button("", () => toggle(code), {"aria-pressed": String(left[code] === 1), "data-code": code, class: "value"});
      one.append(el("i", {style: "background:" + colourOf(code)}), String(value));
      return one;
    }));
    if (focused !== undefined) byId("legend").querySelector(`[data-code="${focused}"]`)?.focus();
  }
}

async function start() {
  fillCommands();
  if (typeof DecompressionStream === "undefined") {
    byId("unsupported").hidden = false;
    return;
  }
  const run = JSON.parse(byId("data").textContent);
  const candidates = new Candidates(run.rows, await unpacked(byId("columns").textContent));
  for (const node of document.querySelectorAll(".live")) node.hidden = false;
  const page = new Page(run, candidates);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  for (const [id, data, make] of [["pipeline", run.gantt, Gantt], ["roofline", run.roofline, Roofline], ["scaling", run.scaling?.curve, Scaling], ["what-if", run.what_if, WhatIf]]) if (data) inSight(byId(id), () => { page[id] = new make(data); });
}

/** Call once when an element comes near the window. */
function inSight(node, call) {
  new IntersectionObserver((entries, observer) => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    observer.disconnect();
    call();
  }, {rootMargin: "300px"}).observe(node);
}

start();
