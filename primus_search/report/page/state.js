// What the reader chose, kept in the address of the page so that a link shows the same.

const DEFAULTS = {filter: "", colour: "", sort: "rank", pins: "0", compare: "", columns: ""};
const MOST_PINS = 6;

export class State {
  #listeners = [];

  /** `count` rows may be pinned; `colours` are knobs that tell rows apart, the first of them unless chosen. */
  constructor(count, colours) {
    Object.assign(this, {count, colours, defaults: {...DEFAULTS, colour: colours[0]}});
    this.#load();
    addEventListener("hashchange", () => { this.#load(); this.#tell(Object.keys(DEFAULTS)); });
  }

  /** Call with the set of what changed, now and later. */
  listen(listener) { this.#listeners.push(listener); }

  set(changes) {
    const changed = Object.keys(changes).filter(name => this[name] !== changes[name]);
    if (!changed.length) return;
    Object.assign(this, changes);
    const kept = Object.keys(DEFAULTS).filter(name => this[name] !== this.defaults[name]);
    const text = new URLSearchParams(kept.map(name => [name, this[name]])).toString();
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
    this.#tell(changed);
  }

  /** Rows that are pinned, in the order of pinning. */
  get pinned() {
    const rows = this.pins.split(",").filter(Boolean).map(Number).filter(row => row >= 0 && row < this.count && row % 1 === 0);
    return [...new Set(rows)].slice(-MOST_PINS);
  }

  /** Pin a row, or unpin it; the oldest goes beyond the most that are shown. */
  pin(row) {
    const others = this.pinned.filter(one => one !== row);
    const pins = others.length < this.pinned.length ? others : [...others, row].slice(-MOST_PINS);
    this.set({pins: pins.join(",")});
  }

  #load() {
    Object.assign(this, this.defaults, Object.fromEntries(this.#given()));
    if (!this.colours.includes(this.colour)) this.colour = this.defaults.colour;
  }

  #given() { return [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => Object.hasOwn(DEFAULTS, name)); }

  #tell(names) { for (const listener of this.#listeners) listener(new Set(names)); }
}
