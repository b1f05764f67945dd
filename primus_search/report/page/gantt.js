// When every pass of a step runs, one line for each pipeline rank, and one for the projected exchanges of the busiest.
import {axisStyle, Chart, PALETTE} from "./chart.js";
import {button, byId, hideTip, showTip} from "./dom.js";
import {percent, words} from "./format.js";

const PASSES = [["forward", "#2f7cc0"], ["backward", "#2a8f68"], ["weight gradient", "#a8801d"], ["backward", "#2a8f68"]];
const ROW = 24, PALEST = 0.5, LABELLED = 20;

export class Gantt {
  constructor(gantt) {
    this.gantt = gantt;
    this.node = byId("gantt");
    this.node.style.height = Math.max(120, Math.min(ROW * (gantt.ranks + 1), 480) + 50) + "px";
    this.view = new Chart(this.node, () => this.#frame(), () => this.#series());
    this.view.draw();
    const {chart} = this.view;
    chart.on("mouseover", ({data, event}) => showTip(data.told ?? this.#told(data), event.event.clientX, event.event.clientY));
    chart.on("mouseout", hideTip);
    const show = (start, end) => () => chart.dispatchAction({type: "dataZoom", start, end});
    byId("gantt-bar").append(button("Whole step", show(0, 100)), button("Warm-up", show(0, 12.5)), button("Cool-down", show(87.5, 100)), ...this.view.pictures("pipeline"));
    this.node.setAttribute("tabindex", "0");
    this.node.setAttribute("role", "application");
    this.node.setAttribute("aria-label", "Pipeline of the winner: when every pass runs. Left and right move, plus and minus zoom.");
    this.node.addEventListener("keydown", e => this.#key(e));
  }

  #seconds(at) { return (at * this.gantt.makespan_s / 1e5).toFixed(3) + " s"; }

  #told([, start, end, kind, stage, batch]) {
    return `${PASSES[kind][0]}, stage ${stage}, micro-batch ${batch}\n${this.#seconds(start)} to ${this.#seconds(end)}`;
  }

  #frame() {
    const {ranks, exchanges} = this.gantt, style = axisStyle(), axisLabel = {color: style.axisLabel.color};
    return {
      grid: {left: 62, right: 12, top: 6, bottom: 26},
      xAxis: {type: "value", min: 0, max: this.#end(), ...style, axisLabel: {...style.axisLabel, formatter: at => this.#seconds(at)}, splitLine: {show: false}},
      yAxis: {type: "category", inverse: true, data: [...Array.from({length: ranks}, (_, rank) => "rank " + rank), `exch. ${exchanges.of}`], ...style, axisLabel},
      dataZoom: [{type: "inside", xAxisIndex: 0, filterMode: "weakFilter"}],
    };
  }

  #series() {
    const g = this.gantt, chunks = Math.max(...g.stage) + 1;
    const draw = (params, api) => {
      const [left, top] = api.coord([api.value(1), api.value(0)]), [right] = api.coord([api.value(2), api.value(0)]), height = api.size([0, 1])[1] - 2;
      const width = Math.max(0.5, right - left - 0.4), paleness = PALEST * Math.floor(api.value(4) / g.ranks) * g.ranks / chunks;
      const bar = {type: "rect", shape: {x: left, y: top - height / 2, width, height}, style: {fill: PASSES[api.value(3)][1], opacity: 1 - paleness}};
      return width < LABELLED ? bar : {...bar, textContent: {style: {text: String(api.value(5)), fill: "#fff", fontSize: 11}}, textConfig: {position: "inside"}};
    };
    const data = g.start.map((start, i) => [g.rank[i], start, g.end[i], g.kind[i], g.stage[i], g.micro_batch[i]]);
    return [{id: "passes", type: "custom", renderItem: draw, clip: true, encode: {x: [1, 2], y: 0}, data},
      {id: "exchanges", type: "custom", clip: true, encode: {x: [1, 2], y: 0}, data: this.exchanges ??= this.#exchanges(), renderItem: (params, api) => {
        const [left, top] = api.coord([api.value(1), api.value(0)]), [right] = api.coord([api.value(2), api.value(0)]), height = api.size([0, 1])[1] - 4;
        return {type: "rect", shape: {x: left, y: top - height / 2, width: Math.max(0.5, right - left), height}, style: {fill: PALETTE[api.value(3)]}};
      }}];
  }

  /** Start, end and words of the projected exchanges, in the line below the ranks; its end is that of the step. */
  #exchanges() {
    const {exchanges: {of, inside, after}, ranks, rank, start, end, makespan_s} = this.gantt, found = [], names = [...Object.keys(inside), ...Object.keys(after)];
    const add = (from, to, name, told) => { if (to > from) found.push({value: [ranks, from, to, names.indexOf(name)], told}); };
    rank.forEach((one, i) => {
      let at = end[i];
      for (const [name, share] of one === of ? Object.entries(inside) : []) {
        const length = share * (end[i] - start[i]);
        add(at - length, at, name, `${words(name)}, projected: ${percent(share)} of the passes of rank ${of}; ${this.#seconds(length)} of this one`);
        at -= length;
      }
    });
    let at = 1e5;
    for (const [name, seconds] of Object.entries(after)) {
      const length = 1e5 * seconds / makespan_s;
      add(at, at + length, name, `${words(name)}, projected: ${seconds.toFixed(3)} s behind the last pass`);
      at += length;
    }
    return found;
  }

  #end() { return Math.max(1e5, ...(this.exchanges ??= this.#exchanges()).map(({value}) => value[2])); }

  #key(e) {
    const {chart} = this.view, [{start, end}] = chart.getOption().dataZoom, span = end - start;
    const show = (from, width) => chart.dispatchAction({type: "dataZoom", start: Math.max(0, Math.min(100 - width, from)), end: Math.max(0, Math.min(100 - width, from)) + width});
    if (e.key === "ArrowRight") show(start + span / 8, span);
    else if (e.key === "ArrowLeft") show(start - span / 8, span);
    else if (e.key === "+" || e.key === "=") show(start + span * 0.15, span * 0.7);
    else if (e.key === "-") show(start - span * 0.2, Math.min(100, span * 1.4));
    else return;
    e.preventDefault();
  }
}
