// Parallel coordinates of the candidates that match: which values of knobs go together.
//
// Lines of thousands of candidates hide each other where knobs have few values. Drawn are rows near the fastest that
// matches; between them they show every pair of values of neighbouring axes that any of these has, the fastest first.
import {Chart, colourOf} from "./chart.js";
import {byId, css} from "./dom.js";
import {valueTerms} from "./filter.js";
import {FIGURES, whole, words} from "./format.js";

const LEVELS = 48;
const AXIS_WIDTH = 84;
const SHOWN = ["speed", "GB"];
const NEAR = 0.8;  // of the fastest

export class Parallel {
  #rows = [];
  #isSyncing = false;
  #brushed = new Map();

  constructor(candidates, state, filter) {
    Object.assign(this, {candidates, state, filter});
    this.speed = candidates.number(FIGURES.find(({name}) => name === SHOWN[0]).column);
    const near = this.#near(Uint32Array.from(this.speed, (_, i) => i));
    this.axes = [...SHOWN.map(name => this.#figureAxis(name)), ...this.#differing(near).map(name => this.#codedAxis(name))];
    this.node = byId("parallel");
    this.node.style.minWidth = AXIS_WIDTH * this.axes.length + "px";
    this.node.setAttribute("role", "img");
    this.node.setAttribute("aria-label", "Parallel coordinates of the knobs of the candidates; the filter takes the same ranges as text.");
    this.view = new Chart(this.node, () => this.#frame(), () => this.#series(), () => this.#sync());
    this.view.chart.on("axisareaselected", event => { if (!this.#isSyncing) this.#selected(event); });
    byId("parallel-bar").append(...this.view.pictures("knobs"));
  }

  draw(shown) {
    const near = this.#near(shown);
    this.#rows = this.#covering(near);
    this.view.draw();
    byId("parallel-status").textContent = `${whole(this.#rows.length)} lines show every pair of neighbouring values of the ` +
      `${whole(near.length)} candidates within ${Math.round(100 * (1 - NEAR))} % of the fastest. Drag along an axis to select a range; it becomes a term of the filter.`;
  }

  #near(shown) {
    let fastest = 0;
    for (const i of shown) if (this.speed[i] > fastest) fastest = this.speed[i];
    return shown.filter(i => this.speed[i] >= NEAR * fastest);
  }

  /** Knobs that differ between these candidates; those of all where none does. */
  #differing(rows) {
    const {candidates} = this, found = candidates.differing.filter(name => {
      const {codes} = candidates.coded(name);
      return rows.some(i => codes[i] !== codes[rows[0]]);
    });
    return found.length ? found : candidates.differing;
  }

  #codedAxis(name) {
    const {values, codes} = this.candidates.coded(name);
    return {name, title: words(name), values, codes, size: values.length, value: i => codes[i],
      terms: ([low, high]) => valueTerms(name, values, value => values.indexOf(value) >= low && values.indexOf(value) <= high)};
  }

  #figureAxis(name) {
    const figure = FIGURES.find(one => one.name === name), column = this.candidates.number(figure.column);
    let low = Infinity, high = -Infinity;
    for (const value of column) { if (value < low) low = value; if (value > high) high = value; }
    const scale = (LEVELS - 1) / (high - low || 1), text = (value, digits) => String(+(value / figure.unit).toPrecision(digits));
    const levels = new Uint8Array(column.length);
    for (let i = 0; i < levels.length; i++) levels[i] = Math.round((column[i] - low) * scale);
    return {name, title: figure.title, figure, size: LEVELS, codes: levels,
      value: i => column[i] / figure.unit, range: [low / figure.unit, high / figure.unit],
      terms: ([from, to]) => [`${name}>=${text(from * figure.unit, 5)}`, `${name}<=${text(to * figure.unit, 5)}`]};
  }

  #covering(shown) {
    const isDrawn = new Uint8Array(this.candidates.count);
    for (const {codes, size} of this.pairs ??= this.#pairs()) {
      const isSeen = new Uint8Array(size);
      for (let k = 0; k < shown.length; k++) {
        const code = codes[shown[k]];
        if (!isSeen[code]) isSeen[code] = isDrawn[shown[k]] = 1;
      }
    }
    return shown.filter(i => isDrawn[i]);
  }

  /** For each two neighbouring axes the pair of values of every candidate, as one code. */
  #pairs() {
    return this.axes.slice(1).map((right, k) => {
      const left = this.axes[k], codes = new Uint16Array(this.candidates.count);
      for (let i = 0; i < codes.length; i++) codes[i] = left.codes[i] * right.size + right.codes[i];
      return {codes, size: left.size * right.size};
    });
  }

  #frame() {
    const label = {color: css("--soft"), textBorderColor: css("--card"), textBorderWidth: 3, width: AXIS_WIDTH - 12, overflow: "truncate"};
    const scale = ({figure, range, values}) => figure
      ? {type: "value", min: range[0], max: range[1], axisLabel: {...label, formatter: value => String(+value.toPrecision(4))}}
      : {type: "category", data: values.map(String), axisLabel: label};
    const line = {lineStyle: {color: css("--soft")}};
    return {
      parallel: {left: 50, right: 60, top: 44, bottom: 24},
      parallelAxis: this.axes.map((axis, dim) => ({dim, id: axis.name, name: axis.title, realtime: false, axisLine: line, axisTick: line,
        nameTextStyle: {color: css("--ink"), width: AXIS_WIDTH - 6, overflow: "break", lineHeight: 13},
        areaSelectStyle: {width: 18, color: css("--accent"), opacity: 0.25, borderColor: css("--accent")}, ...scale(axis)})),
    };
  }

  #series() {
    const {codes, values} = this.candidates.coded(this.state.colour);
    const lines = (id, rows, color, opacity, width) => ({id, type: "parallel", silent: true, progressive: 0, inactiveOpacity: 0.05, activeOpacity: opacity,
      lineStyle: {color, opacity, width}, data: Array.from(rows, i => this.axes.map(axis => axis.value(i)))});
    return [...values.map((_, code) => lines("lines-" + code, this.#rows.filter(i => codes[i] === code), colourOf(code), 0.35, 1)),
      lines("pinned", this.state.pinned, css("--hot"), 1, 2.5)];
  }

  /** Show the ranges of the filter on the axes. */
  #sync() {
    const batch = this.axes.map(axis => ({parallelAxisId: axis.name, intervals: axis.figure ? this.#figureIntervals(axis) : this.#codedIntervals(axis)}))
      .filter(({parallelAxisId, intervals}) => JSON.stringify(intervals) !== (this.#brushed.get(parallelAxisId) ?? "[]"));
    for (const {parallelAxisId, intervals} of batch) this.#brushed.set(parallelAxisId, JSON.stringify(intervals));
    this.#isSyncing = true;
    if (batch.length) this.view.chart.dispatchAction({type: "axisAreaSelect", batch});
    this.#isSyncing = false;
  }

  #figureIntervals(axis) {
    const [low, high] = this.filter.interval(this.state.filter, axis.figure).map(value => value / axis.figure.unit);
    return low === -Infinity && high === Infinity ? [] : [[Math.max(low, axis.range[0]), Math.min(high, axis.range[1])]];
  }

  /** Runs of neighbouring values that the filter leaves; none where it leaves all. */
  #codedIntervals(axis) {
    const left = this.filter.left(this.state.filter, axis.name), found = [];
    if (left.every(Boolean)) return [];
    left.forEach((isLeft, code) => {
      if (!isLeft) return;
      if (code && left[code - 1]) found[found.length - 1][1] = code; else found.push([code, code]);
    });
    return found;
  }

  #selected({parallelAxisId, intervals}) {
    const axis = this.axes.find(({name}) => name === parallelAxisId);
    const terms = intervals.length ? axis.terms([...intervals[0]].sort((a, b) => a - b)) : [];
    this.state.set({filter: this.filter.replaced(this.state.filter, axis.name, ...terms)});
  }
}
