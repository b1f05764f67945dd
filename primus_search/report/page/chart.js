// A chart of the page: the library's canvas in the page's colours, redrawn when they or its width change.
import {button, css, download, downloadText} from "./dom.js";

/** Colours of values; all differ from white and from black by a contrast of 3 or more. */
export const PALETTE = ["#2f7cc0", "#c2701d", "#2a8f68", "#c0456a", "#7f5fc7", "#8f7020", "#1d8b99", "#b8578f",
  "#6d7a24", "#67758a", "#a94f36", "#5468d4", "#4f8f2c", "#9552bd", "#0f8080", "#a86161"];
export const colourOf = code => PALETTE[code % PALETTE.length];

export class Chart {
  #isDrawn = false;
  #isSeen = false;
  #isOld = false;

  /** `frame` returns axes and what else stays while data change, `series` the data, each with an id; `after`: called when drawn. */
  constructor(node, frame, series, after = () => {}) {
    Object.assign(this, {node, frame, series, after});
    this.chart = echarts.init(node, null, {renderer: "canvas"});
    new ResizeObserver(() => this.chart.resize()).observe(node);
    new IntersectionObserver(([entry]) => { this.#isSeen = entry.isIntersecting; if (this.#isSeen) this.#update(); }, {rootMargin: "200px"}).observe(node);
    matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => this.chart.setOption({...base(), ...frame(), series: series()}));
  }

  /** Draw anew, once it is in sight. */
  draw() {
    this.#isOld = true;
    if (this.#isSeen) this.#update();
  }

  #update() {
    if (!this.#isOld) return;
    this.chart.setOption({...(this.#isDrawn ? {} : {...base(), ...this.frame()}), series: this.series()}, {replaceMerge: ["series"], lazyUpdate: this.#isDrawn});
    this.#isDrawn = true;
    this.#isOld = false;
    this.after();
  }

  /** PNG of what is shown. */
  png(name) {
    this.#update();
    download(name + ".png", this.chart.getDataURL({pixelRatio: 2, backgroundColor: css("--card")}));
  }

  /** SVG of what is shown: the same options drawn by the library's other renderer. */
  svg(name) {
    this.#update();
    const size = {width: this.chart.getWidth(), height: this.chart.getHeight()};
    const drawing = echarts.init(null, null, {renderer: "svg", ssr: true, ...size});
    const {dataZoom} = this.chart.getOption();
    drawing.setOption({...base(), ...this.frame(), ...(dataZoom ? {dataZoom} : {}), backgroundColor: css("--card"), series: this.series()});
    downloadText(name + ".svg", drawing.renderToSVGString(), "image/svg+xml");
    drawing.dispose();
  }

  /** The buttons of both. */
  pictures(name) {
    return [button("PNG", () => this.png(name), {"aria-label": `Save ${name} as PNG`}),
      button("SVG", () => this.svg(name), {"aria-label": `Save ${name} as SVG`})];
  }
}

const base = () => ({animation: false, textStyle: {color: css("--soft"), fontFamily: "system-ui,sans-serif"}});

/** Lines and words of an axis. */
export const axisStyle = () => ({
  axisLine: {lineStyle: {color: css("--line")}},
  axisLabel: {color: css("--soft"), showMinLabel: false, showMaxLabel: false},
  splitLine: {lineStyle: {color: css("--line")}},
  nameTextStyle: {color: css("--soft")},
});
