// What the choices would reach with other NICs, batches, nodes or documents: projections that the page holds, one change each.
import {byId, el} from "./dom.js";
import {signed, percent, whole} from "./format.js";

const SECONDS_PER_DAY = 86400, GPU_HOURS = 24;

export class WhatIf {
  /** `found`: letters, gpus, price, tokens, and sliders with title, values, `at` (the run's) and rates[value][letter], null where it cannot run. */
  constructor(found) {
    this.found = found;
    this.at = found.sliders.map(({at}) => at);
    this.inputs = [this.#number("Tokens, 10^12", "what-tokens", found.tokens / 1e12), this.#number("USD per GPU hour", "what-price", found.price)];
    this.body = el("tbody");
    this.note = el("p", {class: "soft", role: "status"});
    const heads = ["", "tokens/s/GPU", "change", "days", "M USD"].map((text, k) => el("th", {scope: "col", class: k ? "n" : null}, text || el("span", {class: "unseen"}, "letter")));
    byId("what-if-body").append(el("div", {class: "sliders"}, found.sliders.map((one, k) => this.#slider(one, k)), this.inputs.map(input => el("label", {}, input.title + " ", input.node))),
      el("table", {id: "what-if-table"}, el("thead", {}, el("tr", {}, heads)), this.body), this.note);
    this.#draw();
  }

  #slider({title, values, at}, k) {
    const shown = el("output"), node = el("input", {type: "range", id: "what-" + k, min: 0, max: values.length - 1, step: 1, value: at, oninput: () => { this.at[k] = Number(node.value); tell(); this.#draw(); }});
    const tell = () => { shown.textContent = whole(values[this.at[k]]) + (this.at[k] === at ? " (this run)" : ""); node.setAttribute("aria-valuetext", shown.textContent); };
    tell();
    return el("label", {}, title + " ", node, shown);
  }

  #number(title, id, value) {
    const node = el("input", {type: "number", id, min: 0, step: "any", value: value || "", oninput: () => this.#draw()});
    return {title, node};
  }

  /** Rate of a choice: as projected with one change; of several the product of what each alone does. */
  #rate(letter) {
    const base = this.found.base[letter], moved = this.#moved();
    return moved.reduce((rate, k) => { const alone = this.found.sliders[k].rates[this.at[k]][letter]; return alone === null ? NaN : rate * alone / base; }, base);
  }

  #moved() { return this.at.map((at, k) => k).filter(k => this.at[k] !== this.found.sliders[k].at); }

  #draw() {
    const [tokens, price] = this.inputs.map(({node}) => Number(node.value)), nodes = this.found.sliders.findIndex(({key}) => key === "nodes");
    const share = nodes < 0 ? 1 : this.found.sliders[nodes].values[this.at[nodes]] / this.found.sliders[nodes].values[this.found.sliders[nodes].at], gpus = this.found.gpus * share;
    this.body.replaceChildren(...this.found.letters.map((name, letter) => {
      const rate = this.#rate(letter), days = tokens * 1e12 / (rate * gpus * SECONDS_PER_DAY), money = days * GPU_HOURS * gpus * price / 1e6;
      const cells = Number.isNaN(rate) ? ["cannot run", "", "", ""] : [whole(rate), signed(rate / this.found.base[letter] - 1, percent), tokens ? days.toFixed(1) : "", tokens && price ? money.toPrecision(3) : ""];
      return el("tr", {}, el("th", {scope: "row"}, el("b", {}, name)), cells.map(text => el("td", {class: "n"}, text)));
    }));
    this.note.textContent = (this.#moved().length > 1 ? "About: what each change alone does, multiplied; " : "Projected; ") + `${whole(gpus)} GPUs; days and money at the expected rate, without checkpoints and failures.`;
  }
}
