// Memory against throughput of every candidate that matches, the Pareto fronts and what is pinned.
import {axisStyle, Chart, colourOf} from "./chart.js";
import {button, byId, css, hideTip, showTip} from "./dom.js";
import {chance, GB, gigabytes, whole} from "./format.js";

const REACH = 14, ROOM = 0.04, VIEWED = 0.55;  // VIEWED: share of the fastest, the slowest in the first view
const X = "memory_bytes", Y = "expected_tokens_per_s_per_gpu", PROJECTED = "tokens_per_s_per_gpu";

/** Places of 32-bit numbers above 0, the smallest first: sorted as their bits, which rise with them, and the place in one number. */
function risen(values) {
  const keys = Float64Array.from(new Uint32Array(values.buffer), (bits, i) => bits * values.length + i).sort();
  return Uint32Array.from(keys, key => key % values.length);
}

export class Scatter {
  #at = -1;
  #shown = new Uint32Array(0);
  #isSelecting = false;

  /** `limit`: bytes that a candidate may use, or undefined; `letters`: ranks of the choices by letter; `own`: GB, rate and
      name of measured runs. */
  constructor(candidates, state, filter, limit, letters = {}, own = []) {
    const ranks = candidates.number("rank"), chosen = Object.entries(letters).map(([letter, rank]) => [letter, ranks.indexOf(rank)]).filter(([, row]) => row >= 0);
    Object.assign(this, {candidates, state, filter, limit, chosen, own});
    this.node = byId("scatter");
    this.x = candidates.number(X).map(value => value / GB);
    this.y = candidates.number(Y);
    this.view = new Chart(this.node, () => this.#frame(), () => this.#series());
    this.fronts = this.#fronts();
    this.#listen();
    requestIdleCallback(() => this.#order());  // before the first filter needs it
    const select = button("Select a range", () => this.#select(!this.#isSelecting), {"aria-pressed": "false", id: "select"});
    this.selecting = select;
    byId("scatter-bar").append(select, button("+", () => this.#zoom(0.7), {"aria-label": "Zoom in"}),
      button("\u2212", () => this.#zoom(1.4), {"aria-label": "Zoom out"}),
      button("Whole plot", () => this.#zoom(Infinity)), ...this.view.pictures("memory-throughput"));
  }

  /** Draw the rows that match. */
  draw(shown) {
    this.#shown = shown;
    this.fronts = this.#fronts();
    this.view.draw();
  }

  /** What a candidate is and reaches, for tooltips and screen readers. */
  told(i) {
    const of = name => this.candidates.number(name)[i], word = name => this.candidates.value(name, i);
    return `${this.candidates.label(i)}\n${whole(of(Y))} tokens/s/GPU (projected ${whole(of(PROJECTED))}), ${gigabytes(of(X))} GB\n` +
      `90 %: ${whole(of(PROJECTED + "_low"))} to ${whole(of(PROJECTED + "_high"))}; ${word("verdict")}, probability ${chance(of("fit_probability"))}\n` +
      `time ${word("time_evidence")}, memory ${word("memory_evidence")}`;
  }

  /** The front of what matches by kind of evidence (measured and projected figures are not compared); of all, the run's. */
  #fronts() {
    const [time, memory] = ["time_evidence", "memory_evidence"].map(name => this.candidates.coded(name));
    const kind = i => time.codes[i] * memory.values.length + memory.codes[i];
    const isWhole = !this.#shown.length || this.#shown.length === this.candidates.count;
    const left = isWhole ? [...this.candidates.frontier].sort((a, b) => this.#byMemory(a, b)) : this.#undominated(kind);
    return [...new Set(left.map(kind))].map(one => {
      const rows = left.filter(i => kind(i) === one), word = name => this.candidates.value(name, rows[0]);
      return {isLookedAt: word("time_evidence") !== "projected" || word("memory_evidence") !== "projected", rows};
    });
  }

  #byMemory(a, b) { return this.x[a] - this.x[b] || this.y[b] - this.y[a]; }

  #order() { return this.order ??= risen(this.x); }

  #undominated(kind) {
    const isShown = new Uint8Array(this.x.length), last = [], found = [];
    for (const i of this.#shown) isShown[i] = 1;
    for (const i of this.#order()) {
      if (!isShown[i]) continue;
      const one = kind(i), before = last[one];
      if (this.y[i] <= (this.y[before] ?? -1)) continue;
      if (this.x[i] === this.x[before]) found.splice(found.lastIndexOf(before), 1);
      last[one] = i;
      found.push(i);
    }
    return found;
  }

  #frame() {
    return {
      grid: {left: 66, right: 18, top: 16, bottom: 44},
      xAxis: {type: "value", name: "memory per GPU, GB", nameLocation: "middle", nameGap: 28, ...this.#range(this.x, this.limit && this.limit / GB), ...axisStyle()},
      yAxis: {type: "value", name: "expected tokens/s/GPU", nameLocation: "middle", nameGap: 52, ...this.#range(this.y), ...axisStyle()},
      dataZoom: [["xAxisIndex", this.x], ["yAxisIndex", this.y]].map(([axis, values]) => ({type: "inside", [axis]: 0, filterMode: "none", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false,
        ...this.#first(values)})),
      brush: {xAxisIndex: 0, yAxisIndex: 0, seriesIndex: 0, brushStyle: {color: "#8884", borderColor: css("--accent")}},
    };
  }

  #series() {
    const point = i => [this.x[i], this.y[i]], ink = css("--ink");
    const ring = (id, rows, colour, size) => ({id, type: "scatter", silent: true, z: 5, symbol: "circle", symbolSize: size, data: rows.map(point),
      itemStyle: {color: "transparent", borderColor: colour, borderWidth: 2}});
    const front = ({rows, isLookedAt}, k) => ({id: "front-" + k, type: "line", step: "end", silent: true, z: 4, symbol: "circle", symbolSize: 7, showAllSymbol: true,
      data: rows.map(point), lineStyle: {color: ink, width: 1.5, type: isLookedAt || this.fronts.length === 1 ? "solid" : "dashed"},
      itemStyle: {color: isLookedAt ? ink : css("--card"), borderColor: ink}});
    const letters = {id: "letters", type: "scatter", silent: true, z: 6, symbolSize: 9, itemStyle: {color: css("--hot")}, data: this.chosen.map(([name, i]) => ({name, value: point(i)})),
      label: {show: true, formatter: "{b}", position: "top", distance: 6, color: ink, fontWeight: "bold", fontSize: 14, textBorderColor: css("--card"), textBorderWidth: 3}};
    const own = {id: "own", type: "scatter", z: 6, symbol: "diamond", symbolSize: 15, itemStyle: {color: css("--card"), borderColor: css("--hot"), borderWidth: 2}, data: this.own.map(run => ({run, value: [run.GB, run.rate]}))};
    return [this.#limit(), ...this.#points(), ...this.fronts.map(front), letters, own, ring("pinned", this.state.pinned, css("--hot"), 14),
      ring("at", this.#at >= 0 ? [this.#walk()[this.#at]] : [], css("--accent"), 18)];
  }

  #walk() { return this.fronts.flatMap(front => front.rows); }

  /** One series for each value of the colour; of candidates on the same pixels the fastest is drawn. */
  #points() {
    const {codes, values} = this.candidates.coded(this.state.colour), data = values.map(() => []);
    const size = this.#shown.length > 2e4 ? 2 : this.#shown.length > 2e3 ? 3 : 6;
    for (const i of this.#apart(size)) data[codes[i]].push(this.x[i], this.y[i]);
    return data.map((points, code) => ({id: "points-" + code, type: "scatter", large: true, largeThreshold: 0, progressive: 0, silent: true, symbol: "rect",
      symbolSize: size, itemStyle: {color: colourOf(code)}, data: Float64Array.from(points)})).filter(series => series.data.length);
  }

  /** Candidates in the view that do not share a square of so many pixels with a faster one. */
  #apart(size) {
    const [left, right] = this.#window(0, this.#range(this.x, this.limit && this.limit / GB)), [low, high] = this.#window(1, this.#range(this.y));
    const [columns, lines] = [this.view.chart.getWidth(), this.view.chart.getHeight()].map(length => Math.ceil(length / size)), isTaken = new Uint8Array(columns * lines);
    const across = (columns - 1) / (right - left), up = (lines - 1) / (high - low), found = [];
    for (let k = 0; k < this.#shown.length; k++) {
      const i = this.#shown[k], x = this.x[i], y = this.y[i];
      if (!(x >= left && x <= right && y >= low && y <= high)) continue;
      const at = Math.round((y - low) * up) * columns + Math.round((x - left) * across);
      if (!isTaken[at]) { isTaken[at] = 1; found.push(i); }
    }
    return found;
  }

  /** The part of an axis that the zoom shows. */
  #window(which, {min, max}) {
    const {start, end} = this.#zoomed()?.[which] ?? this.#first(which ? this.y : this.x);
    return [min + (max - min) * start / 100, min + (max - min) * end / 100];
  }

  /** Where the view begins: with the candidates near the fastest. */
  #first(values) {
    const {min, max} = this.#range(values, values === this.x && this.limit && this.limit / GB), slowest = VIEWED * this.#range(this.y).max;
    this.least ??= this.y.reduce((least, y, i) => y >= slowest && this.x[i] < least ? this.x[i] : least, Infinity);
    const low = values === this.y ? slowest : this.least - ROOM * (max - min);
    return {start: Math.max(0, 100 * (low - min) / (max - min)), end: 100};
  }

  #zoomed() { return this.view.chart.getOption()?.dataZoom; }

  #limit() {
    const [low, high] = Object.values(this.#range(this.y)), at = this.limit / GB;
    return {id: "limit", type: "line", silent: true, symbol: "none", data: this.limit ? [[at, low], [at, high]] : [], lineStyle: {color: css("--hot"), type: "dashed", width: 1.5},
      endLabel: {show: true, formatter: () => `usable ${Math.round(at)} GB`, color: css("--hot"), align: "right", offset: [-8, 12]}};
  }

  #range(values, further) {
    this.ranges ??= new Map();
    if (!this.ranges.has(values)) {
      let low = Infinity, high = -Infinity;
      for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
      if (further && further < 1.6 * high) high = Math.max(high, further);
      const room = ROOM * (high - low || Math.abs(high) || 1);
      this.ranges.set(values, {min: +(low - room).toPrecision(4), max: +(high + room).toPrecision(4)});
    }
    return this.ranges.get(values);
  }

  #zoom(factor) {
    const {chart} = this.view;
    chart.getOption().dataZoom.forEach(({start, end}, dataZoomIndex) => {
      const middle = (start + end) / 2, half = Math.min(50, (end - start) / 2 * factor), from = Math.min(100 - 2 * half, Math.max(0, middle - half));
      chart.dispatchAction({type: "dataZoom", dataZoomIndex, start: from, end: from + 2 * half});
    });
  }

  /** Switch between moving the view and selecting a range, which becomes terms of the filter. */
  #select(isOn) {
    this.#isSelecting = isOn;
    this.selecting.setAttribute("aria-pressed", isOn);
    this.view.chart.dispatchAction({type: "takeGlobalCursor", key: "brush", brushOption: {brushType: isOn ? "rect" : false, brushMode: "single"}});
  }

  #selected([xs, ys]) {
    const number = value => String(+value.toPrecision(5)), sorted = values => [...values].sort((a, b) => a - b);
    const [left, right] = sorted(xs), [low, high] = sorted(ys);
    const memory = this.filter.replaced(this.state.filter, "GB", `GB>=${number(left)}`, `GB<=${number(right)}`);
    this.#select(false);
    this.state.set({filter: this.filter.replaced(memory, "speed", `speed>=${number(low)}`, `speed<=${number(high)}`)});
  }

  /** The candidate nearest to a place of the canvas; undefined where none is near. */
  #nearest(x, y) {
    const pixel = point => this.view.chart.convertToPixel({gridIndex: 0}, point);
    const [x0, y0] = pixel([0, 0]), [x1, y1] = pixel([1, 1]);
    let best, least = REACH * REACH;
    const look = i => {
      const distance = (x0 + this.x[i] * (x1 - x0) - x) ** 2 + (y0 + this.y[i] * (y1 - y0) - y) ** 2;
      if (distance <= least) { least = distance; best = i; }
    };
    for (const i of this.#shown) look(i);
    this.candidates.frontier.forEach(look);
    return best;
  }

  #listen() {
    const {chart} = this.view, {node} = this;
    const surface = chart.getZr();
    surface.on("mousemove", e => {
      const i = this.#isSelecting ? undefined : this.#nearest(e.offsetX, e.offsetY);
      if (i === undefined) { if (!this.own.length) hideTip(); } else showTip(this.told(i), e.event.clientX, e.event.clientY);
    });
    surface.on("globalout", hideTip);
    chart.on("mouseover", {seriesId: "own"}, ({data: {run}, event}) => showTip(`own run: ${run.what}\n${whole(run.rate)} tokens/s/GPU measured, ${run.GB.toFixed(1)} GB projected`, event.event.clientX, event.event.clientY));
    surface.on("click", e => {
      const i = this.#isSelecting ? undefined : this.#nearest(e.offsetX, e.offsetY);
      if (i !== undefined) this.state.pin(i);
    });
    chart.on("datazoom", () => { this.redraw ??= requestAnimationFrame(() => { this.redraw = null; this.draw(this.#shown); }); });
    chart.on("brushEnd", ({areas}) => { if (areas.length) this.#selected(areas[0].coordRange); });
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "application");
    node.setAttribute("aria-label", "Memory per GPU against tokens per second per GPU. Arrow keys walk along the Pareto front, Enter pins, plus and minus zoom, 0 shows the whole plot.");
    node.addEventListener("keydown", e => this.#key(e));
  }

  #key(e) {
    const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1}[e.key], walk = this.#walk();
    if (step && walk.length) this.#at = Math.max(0, Math.min(walk.length - 1, this.#at < 0 ? (step > 0 ? 0 : walk.length - 1) : this.#at + step));
    else if ((e.key === "Enter" || e.key === " ") && this.#at >= 0) this.state.pin(walk[this.#at]);
    else if (e.key === "+" || e.key === "=") this.#zoom(0.7);
    else if (e.key === "-") this.#zoom(1.4);
    else if (e.key === "0") this.#zoom(Infinity);
    else return;
    e.preventDefault();
    byId("scatter-status").textContent = this.#at >= 0 ? this.told(walk[this.#at]).replace("\n", ": ").replaceAll("\n", "; ") : "";
    if (step) this.draw(this.#shown);
  }
}
