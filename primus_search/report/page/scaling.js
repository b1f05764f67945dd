// Rate, days, money and energy of the best candidate of every size and machine, one line for each machine.
import {axisStyle, Chart, PALETTE} from "./chart.js";
import {byId, css, el, hideTip, showTip} from "./dom.js";
import {whole} from "./format.js";

const CURVES = {tokens_per_s_per_gpu: ["tokens/s/GPU", whole], days: ["days", value => value.toFixed(1)],
  cost_USD: ["M USD", value => (value / 1e6).toPrecision(3)], energy_MWh: ["MWh", value => value.toPrecision(4)]};

export class Scaling {
  /** `rungs`: of each cluster machine, world, expected rate with its interval, days, cost_USD and energy_MWh, 0 where unknown. */
  constructor(rungs) {
    const known = Object.keys(CURVES).filter(name => rungs.some(rung => rung[name]));
    Object.assign(this, {rungs, name: known.includes("days") ? "days" : known[0], machines: [...new Set(rungs.map(rung => rung.machine))]});
    const node = byId("scaling-chart"), choose = el("select", {id: "scaling-figure", onchange: () => this.#show(choose.value)}, known.map(name => el("option", {value: name, selected: name === this.name}, CURVES[name][0])));
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", "Scaling curve; the table below holds its figures.");
    this.view = new Chart(node, () => this.#frame(), () => this.#series());
    this.view.chart.on("mouseover", ({data, event}) => showTip(this.#told(data.rung), event.event.clientX, event.event.clientY));
    this.view.chart.on("mouseout", hideTip);
    byId("scaling-bar").append(el("label", {for: choose.id}, "Show"), choose, ...this.view.pictures("scaling"));
    this.view.draw();
  }

  #show(name) {
    this.name = name;
    this.view.chart.setOption(this.#frame());
    this.view.draw();
  }

  #told(rung) {
    const known = Object.entries(CURVES).filter(([name]) => rung[name]).map(([name, [title, text]]) => `${text(rung[name])} ${title}`);
    return `${whole(rung.world)} ${rung.machine}\n${known.join(", ")}\n90 %: ${whole(rung.low)} to ${whole(rung.high)} tokens/s/GPU`;
  }

  #frame() {
    const [title, text] = CURVES[this.name], style = axisStyle(), axisLabel = {...style.axisLabel, showMinLabel: true, showMaxLabel: true};
    return {
      grid: {left: 70, right: 96, top: 14, bottom: 42},
      xAxis: {type: "category", name: "GPUs", nameLocation: "middle", nameGap: 26, ...style, axisLabel, data: this.#sizes().map(whole)},
      yAxis: {type: "value", name: title, nameLocation: "middle", nameGap: 54, ...style, axisLabel: {...axisLabel, formatter: text}},
    };
  }

  #sizes() { return [...new Set(this.rungs.map(rung => rung.world))].sort((a, b) => a - b); }

  #series() {
    const line = (id, k, value, style) => ({id: id + k, type: "line", symbolSize: 8, data: this.rungs.filter(rung => rung.machine === this.machines[k]).map(rung => ({rung, value: [whole(rung.world), value(rung)]})), ...style});
    const ends = this.name === "tokens_per_s_per_gpu" ? ["low", "high"] : [];
    return this.machines.flatMap((machine, k) => [
      line("rate-", k, rung => rung[this.name] || "-", {color: PALETTE[k % PALETTE.length], endLabel: {show: true, formatter: () => machine, color: css("--ink")}}),
      ...ends.map(end => line(end + "-", k, rung => rung[end], {symbol: "none", color: PALETTE[k % PALETTE.length], lineStyle: {type: "dashed", width: 1, opacity: 0.6}}))]);
  }
}
