// The table of the candidates that match: sorted by any column, page by page, saved whole as CSV.
import {button, byId, copyButton, downloadText, el} from "./dom.js";
import {csvCell, FIGURES, whole, words} from "./format.js";

const PAGE_ROWS = 50;
const SHORT = ["rank", "label", "speed", "projected", "low", "high", "tie", "GB", "fits", "bubble", "MFU", "step"];
const FALLING = ["speed", "projected", "low", "high", "fits", "MFU", "spare"];

export class Table {
  #shown = new Uint32Array(0);
  #page = 0;

  constructor(candidates, state) {
    Object.assign(this, {candidates, state});
    this.head = byId("ranking").querySelector("thead");
    this.body = byId("ranking").querySelector("tbody");
    this.place = el("output", {class: "soft", id: "place"});
    this.knobs = button("Knob columns", () => state.set({columns: state.columns ? "" : "knobs"}), {id: "knob-columns"});
    this.turns = [button("\u2039", () => this.#turn(-1), {id: "previous", "aria-label": "Previous page"}), button("\u203a", () => this.#turn(1), {id: "next", "aria-label": "Next page"})];
    byId("table-bar").append(...this.turns, this.place, this.knobs, button("CSV", () => downloadText("candidates.csv", this.csv(), "text/csv"), {"aria-label": "Save what matches as CSV"}),
      ...copyButton(() => location.href, {"aria-label": "Copy the address of this selection", id: "link"}));
  }

  draw(shown) {
    this.#shown = shown;
    this.#page = 0;
    this.redraw();
  }

  redraw() {
    const columns = this.#columns(), rows = this.#sorted(), last = Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1);
    this.#page = Math.max(0, Math.min(last, this.#page));
    const from = this.#page * PAGE_ROWS, page = rows.slice(from, from + PAGE_ROWS);
    this.knobs.setAttribute("aria-pressed", this.state.columns !== "");
    this.turns[0].disabled = this.#page === 0;
    this.turns[1].disabled = this.#page === last;
    this.place.textContent = rows.length ? `${whole(from + 1)} to ${whole(from + page.length)} of ${whole(rows.length)}` : "none";
    this.head.replaceChildren(this.#heading(columns));
    const pinned = new Set(this.state.pinned);
    this.body.replaceChildren(...Array.from(page, i => this.#row(i, columns, pinned.has(i))));
  }

  /** Every row that matches, with all knobs and figures in the units of their names. */
  csv() {
    const names = [...this.candidates.knobs, "dp", "microbatches", "ties_with_best", "verdict", "time_evidence", "memory_evidence"];
    const figures = FIGURES.map(({column}) => column), numbers = figures.map(column => this.candidates.number(column));
    const coded = names.map(name => this.candidates.coded(name));
    const line = i => [...coded.map(({values, codes}) => csvCell(String(values[codes[i]]))), ...numbers.map(column => column[i] ? +column[i].toPrecision(7) : ""), csvCell(this.candidates.label(i))];
    return [[...names, ...figures, "configuration"].join(","), ...Array.from(this.#sorted(), i => line(i).join(","))].join("\n") + "\n";
  }

  #turn(step) {
    this.#page += step;
    this.redraw();
  }

  #columns() {
    const {candidates} = this, pinnable = SHORT.map(name => FIGURES.find(figure => figure.name === name) || name);
    const figures = pinnable.map(one => one === "label" ? {name: "label", title: "configuration", isText: true, cell: i => candidates.label(i)}
      : one === "tie" ? {name: "tie", title: "tie", cell: i => candidates.value("ties_with_best", i) ? "=" : ""}
        : {name: one.name, title: one.title, sort: one.column, cell: i => one.text(candidates.number(one.column)[i]), isNumber: true});
    const coded = name => ({name, title: words(name), sort: name, cell: i => String(candidates.value(name, i)), isNumber: typeof candidates.coded(name).values[0] === "number"});
    const knobs = this.state.columns ? [...candidates.differing, "dp", "microbatches", "time_evidence", "memory_evidence"] : [];
    return [...figures, ...knobs.map(coded)];
  }

  /** Sort key as the state holds it: a name, with `-` before it where values fall. */
  #sorted() {
    const isFalling = this.state.sort.startsWith("-"), name = this.state.sort.replace("-", "");
    const column = this.#columns().find(one => one.name === name)?.sort;
    if (!column || column === "rank") return isFalling ? this.#shown.slice().reverse() : this.#shown;
    const isShown = new Uint8Array(this.candidates.count);
    for (const i of this.#shown) isShown[i] = 1;
    const rows = this.candidates.order(column).filter(i => isShown[i]);
    return isFalling ? rows.reverse() : rows;
  }

  #heading(columns) {
    const [, sign, sorted] = this.state.sort.match(/^(-?)(.*)$/s);
    const cell = ({name, title, sort, isNumber}) => {
      const isMine = name === sorted, mark = isMine ? (sign ? " \u25be" : " \u25b4") : "";
      const turned = isMine ? (sign ? "" : "-") : FALLING.includes(name) ? "-" : "";
      const inside = sort ? button(title + mark, () => { this.#page = 0; this.state.set({sort: turned + name}); this.head.querySelector(`[data-sort="${name}"]`).focus(); }, {"data-sort": name}) : title;
      return el("th", {scope: "col", class: isNumber ? "n" : null, "aria-sort": sort ? (isMine ? (sign ? "descending" : "ascending") : "none") : null}, inside);
    };
    return el("tr", {}, el("th", {scope: "col"}, el("span", {class: "unseen"}, "pin")), columns.map(cell));
  }

  #row(i, columns, isPinned) {
    const rank = this.candidates.number("rank")[i], name = rank ? "rank " + rank : this.candidates.label(i);
    const pin = button(isPinned ? "\u2605" : "\u2606", () => { this.state.pin(i); this.body.querySelector(`[data-row="${i}"]`)?.focus(); },
      {"aria-pressed": String(isPinned), "aria-label": "Pin " + name, "data-row": i});
    return el("tr", {class: isPinned ? "pinned" : null}, el("td", {}, pin), columns.map(({cell, isNumber, isText}) => el("td", {class: isNumber ? "n" : isText ? "w" : null}, cell(i))));
  }
}
