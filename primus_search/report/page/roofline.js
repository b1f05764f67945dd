// FLOP per byte against the projected rate of the row's matrix products, below the roofs of the device.
import {axisStyle, Chart, PALETTE} from "./chart.js";
import {byId, css, el, hideTip, showTip} from "./dom.js";
import {seconds as duration} from "./format.js";

const TERA = 1e12;

export class Roofline {
  /** `found`: products with family, what, intensity, rate and s; peaks of number formats as `roofs`; bytes_per_s. */
  constructor(found) {
    const node = byId("roofline-chart");
    Object.assign(this, {found, families: [...new Set(found.products.map(one => one.family))]});
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", "Roofline of the matrix products; explain --json and trace hold their seconds.");
    this.view = new Chart(node, () => this.#frame(), () => this.#series());
    this.view.chart.on("mouseover", ({data: {one}, event}) => showTip(`${one.family}: ${one.what}\n${Math.round(one.intensity)} FLOP/byte, ${Math.round(one.rate / TERA)} TFLOP/s, ${duration(one.s)} a micro-batch in all layers`, event.event.clientX, event.event.clientY));
    this.view.chart.on("mouseout", hideTip);
    byId("roofline-bar").append(el("div", {class: "legend"}, this.families.map((family, k) => el("span", {}, el("i", {style: "background:" + PALETTE[k % PALETTE.length]}), family))), ...this.view.pictures("roofline"));
    this.view.draw();
  }

  #reach() {
    const at = this.found.products.map(one => one.intensity), ridges = Object.values(this.found.roofs).map(peak => peak / this.found.bytes_per_s);
    return [Math.min(...at, ...ridges) / 2, Math.max(...at, ...ridges) * 2];
  }

  #frame() {
    const axis = (name, nameGap) => ({type: "log", name, nameLocation: "middle", nameGap, ...axisStyle()}), [min, max] = this.#reach();
    return {grid: {left: 66, right: 18, top: 16, bottom: 44}, xAxis: {...axis("FLOP per byte", 28), min, max}, yAxis: axis("TFLOP/s", 44)};
  }

  #series() {
    const {products, roofs, bytes_per_s: bandwidth} = this.found, [min, max] = this.#reach(), tera = value => value / TERA;
    const roof = ([name, peak]) => ({id: "roof-" + name, type: "line", silent: true, symbol: "none", lineStyle: {color: css("--hot"), type: "dashed", width: 1.5}, data: [[min, tera(min * bandwidth)], [peak / bandwidth, tera(peak)], [max, tera(peak)]],
      endLabel: {show: true, formatter: () => name + " peak", color: css("--hot"), align: "right", offset: [-8, -9]}});
    const longest = Math.max(...products.map(one => one.s));
    return [...Object.entries(roofs).map(roof), ...this.families.map((family, k) => ({id: "family-" + k, type: "scatter", symbolSize: (_, {data}) => 7 + 13 * Math.sqrt(data.one.s / longest), itemStyle: {color: PALETTE[k % PALETTE.length], opacity: 0.8},
      data: products.filter(one => one.family === family).map(one => ({one, value: [one.intensity, tera(one.rate)]}))}))];
  }
}
