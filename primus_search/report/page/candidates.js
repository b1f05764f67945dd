// The candidates of the run as columns, unpacked when they are first read (html_columns.py describes the format).

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const binary = atob(base64), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** The bytes of all columns; needs DecompressionStream. */
export async function unpacked(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class Candidates {
  #columns = new Map();
  #bytes;
  #read = new Map();

  /** `rows`: count, columns, labels, knobs, step, memory, frontier; `bytes` as `unpacked` returns them. */
  constructor(rows, bytes) {
    Object.assign(this, {count: rows.count, labels: rows.labels, frontier: rows.frontier, step: rows.step,
      memory: rows.memory, knobs: rows.knobs, nicknames: rows.nicknames, plain: rows.plain, aliases: rows.aliases});
    this.#bytes = bytes;
    let at = 0;
    for (const column of rows.columns) {
      this.#columns.set(column.name, {...column, at});
      if (column.kind !== "same") at += 4 * (column.distinct || 0) + column.width * rows.count;
    }
  }

  /** The column that a name or nickname stands for; undefined where none does. */
  named(text) {
    const name = text.toLowerCase(), full = this.nicknames[name] ?? name;
    return [...this.#columns.keys()].find(one => one.toLowerCase() === full);
  }

  /** Whether a column holds few values, which the filter takes one by one. */
  isCoded(name) {
    const {kind, value} = this.#columns.get(name);
    return kind === "codes" || this.knobs.includes(name) || typeof value === "string";
  }

  /** A column of few values: `values`, and for each candidate the place of its own in them. */
  coded(name) {
    return this.#cached("coded", name, column => column.kind === "same"
      ? {values: [column.value], codes: new Uint8Array(this.count)}
      : {values: column.values, codes: this.#integers(column.at, this.count, column.width)});
  }

  /** A column of numbers. */
  number(name) {
    return this.#cached("number", name, column => {
      if (column.kind === "same") return new Float32Array(this.count).fill(column.value);
      if (!column.distinct) return new Float32Array(this.#integers(column.at, this.count, 4).buffer);
      const distinct = new Float32Array(this.#integers(column.at, column.distinct, 4).buffer);
      const codes = this.#integers(column.at + 4 * column.distinct, this.count, column.width);
      const found = new Float32Array(this.count);
      for (let i = 0; i < found.length; i++) found[i] = distinct[codes[i]];
      return found;
    });
  }

  /** Knobs that differ between candidates. */
  get differing() { return this.knobs.filter(name => this.coded(name).values.length > 1); }

  value(name, i) {
    const {values, codes} = this.coded(name);
    return values[codes[i]];
  }

  /** The short name, as the terminal prints it. */
  label(i) { return this.labels.map(part => this.#word(part, i)).filter(Boolean).join(" "); }

  /** Candidates with a word in their short name that `isMatch` accepts, as bytes of 0 and 1. */
  labelled(isMatch) {
    const found = new Uint8Array(this.count);
    for (const {reads, words} of this.labels) {
      const matching = Object.keys(words).filter(key => words[key].split(" ").some(isMatch));
      if (!matching.length) continue;
      const columns = reads.map(name => this.coded(name));
      const matches = new Uint8Array(columns.reduce((size, {values}) => size * values.length, 1));
      const place = codes => codes.reduce((sum, code, k) => sum * columns[k].values.length + code, 0);
      for (const key of matching) matches[place(key ? key.split(",").map(Number) : [])] = 1;
      for (let i = 0; i < this.count; i++) {
        let at = 0;
        for (const {values, codes} of columns) at = at * values.length + codes[i];
        found[i] |= matches[at];
      }
    }
    return found;
  }

  /** Break-down of a candidate, `step` in seconds or `memory` in bytes; null where the run has none. */
  parts(which, i) {
    const found = Object.fromEntries(this[which].map(name => [name, this.number(which + "." + name)[i]]));
    return Object.values(found).every(Number.isFinite) ? found : null;
  }

  /** All candidates by a column, rising. */
  order(name) {
    return this.#cached("order", name, ({kind}) => {
      const keys = kind === "codes" ? this.coded(name).codes : this.number(name);
      return Uint32Array.from({length: this.count}, (_, i) => i).sort((a, b) => keys[a] - keys[b] || a - b);
    });
  }

  #word({reads, words}, i) { return words[reads.map(name => this.coded(name).codes[i]).join(",")]; }

  #cached(kind, name, make) {
    const key = kind + " " + name;
    if (!this.#read.has(key)) this.#read.set(key, make(this.#columns.get(name)));
    return this.#read.get(key);
  }

  /** Unsigned integers of 1, 2 or 4 bytes from their planes. */
  #integers(at, count, width) {
    const bytes = this.#bytes.subarray(at, at + width * count);
    if (width === 1) return bytes;
    const found = width === 2 ? new Uint16Array(count) : new Uint32Array(count);
    for (let from = 0, shift = 0; from < bytes.length; from += count, shift += 8) {
      for (let i = 0; i < count; i++) found[i] |= bytes[from + i] << shift;
    }
    return found;
  }
}
