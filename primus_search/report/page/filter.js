// The filter: one text that every part of the page reads and edits. Terms are parted by blanks, and all must hold.
//
//   deepep  no deepep   words of tables                     pp=8|16  pp!=8     values of a knob
//   GB<200  speed>=9e3  a figure in the unit of the table   memory_bytes<2e11  a column in its own unit
import {FIGURES} from "./format.js";

const SIGNS = {
  "<": (value, bound) => value < bound,
  ">": (value, bound) => value > bound,
  "<=": (value, bound) => value <= bound,
  ">=": (value, bound) => value >= bound,
};
const same = (a, b) => a.toLowerCase() === b.toLowerCase();
const bare = text => text.replaceAll('"', "");

export const termsOf = text => text.match(/(?:[^\s"]|"[^"]*"?)+/g) || [];

/** Name, sign and the rest of a term; null for a word. */
export function partsOf(term) {
  const found = term.match(/^([\w.]+)(<=|>=|!=|=|<|>)(.*)$/s);
  return found && {name: found[1], sign: found[2], rest: found[3]};
}

const listed = rest => (rest.match(/(?:[^|"]|"[^"]*"?)+/g) || []).map(bare);
const quoted = value => /[\s|"]/.test(String(value)) ? '"' + bare(String(value)) + '"' : String(value);

/** The terms that leave these values of a column, in as few words as it takes. */
export function valueTerms(name, values, isLeft) {
  const left = values.filter(isLeft), gone = values.filter(value => !isLeft(value));
  if (!gone.length) return [];
  const sign = left.length && left.length <= gone.length ? "=" : "!=";
  return [name + sign + (sign === "=" ? left : gone).map(quoted).join("|")];
}

export class Filter {
  #masks = new Map();
  #words;

  constructor(candidates) {
    this.candidates = candidates;
    const words = candidates.labels.flatMap(part => Object.values(part.words)).flatMap(text => text.split(" "));
    this.#words = new Set(words.map(word => word.toLowerCase()));
  }

  /** The candidates that match, by rising number, and what is wrong with the text. */
  matching(text) {
    const problems = [], {count} = this.candidates;
    text = this.#phrases(text);
    const holds = new Uint8Array(count).fill(1);
    for (const term of termsOf(text)) {
      const mask = this.#mask(term, problems);
      if (mask) for (let i = 0; i < count; i++) holds[i] &= mask[i];
    }
    const found = new Uint32Array(count);
    let size = 0;
    for (let i = 0; i < count; i++) if (holds[i]) found[size++] = i;
    return {rows: found.subarray(0, size), problems};
  }

  /** A filter text without the terms on a name, and with others in their place. */
  replaced(text, name, ...terms) {
    const column = this.#column(name), others = termsOf(text).filter(term => !partsOf(term) || this.#column(partsOf(term).name) !== column);
    return [...others, ...terms].join(" ");
  }

  /** The values of a coded column that the text leaves: a byte of 0 or 1 for each. */
  left(text, name) {
    const values = this.candidates.coded(name).values;
    const left = new Uint8Array(values.length).fill(1);
    for (const term of termsOf(text)) {
      const parts = partsOf(term);
      if (parts && this.#column(parts.name) === name) values.forEach((value, code) => { left[code] &= this.#holds(parts, value); });
    }
    return left;
  }

  /** The interval of a figure, in the unit of its column, that the text leaves. */
  interval(text, figure) {
    let low = -Infinity, high = Infinity;
    for (const term of termsOf(text)) {
      const parts = partsOf(term);
      if (!parts || !same(parts.name, figure.name)) continue;
      const bound = parseFloat(parts.rest) * figure.unit;
      if (parts.sign.startsWith(">")) low = Math.max(low, bound);
      if (parts.sign.startsWith("<")) high = Math.min(high, bound);
    }
    return [low, high];
  }

  /** A text with words of several parts (`no deepep`) as terms on their knob. */
  #phrases(text) {
    for (const [phrase, [name, value]] of Object.entries(this.candidates.plain))
      if (phrase.includes(" ")) text = text.replace(new RegExp("(^|\\s)" + phrase.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "(?=\\s|$)", "gi"), `$1${name}=${quoted(value)}`);
    return text;
  }

  #mask(term, problems) {
    if (!this.#masks.has(term)) this.#masks.set(term, this.#made(term));
    const made = this.#masks.get(term);
    if (typeof made !== "string") return made;
    problems.push(made);
    return null;
  }

  /** Bytes of 0 and 1, or what is wrong with the term. */
  #made(term) {
    const parts = partsOf(term);
    if (!parts) return this.#word(bare(term).toLowerCase());
    const figure = FIGURES.find(({name}) => same(name, parts.name));
    const column = this.#column(parts.name);
    if (!column) return `${parts.name}: no knob or figure of that name`;
    if (!figure && this.candidates.isCoded(column)) return this.#coded(column, parts);
    return this.#bounded(this.candidates.number(column), parts, figure ? figure.unit : 1, column === "rank");
  }

  /** The column of a figure, knob or nickname; undefined where there is none. */
  #column(name) { return FIGURES.find(figure => same(figure.name, name))?.column ?? this.candidates.named(name); }

  /** A word of tables, whole or a part of one; a text where no candidate has it. */
  #word(word) {
    const plain = this.candidates.plain[word], replicas = word.match(/^dp(\d+)$/);
    if (plain && this.candidates.named(plain[0])) return this.#coded(plain[0], {sign: "=", rest: plain[1]});
    if (replicas) return this.#coded("dp", {sign: "=", rest: replicas[1]});
    if (this.#words.has(word)) return this.candidates.labelled(one => one.toLowerCase() === word);
    if ([...this.#words].some(one => one.includes(word))) return this.candidates.labelled(one => one.toLowerCase().includes(word));
    return `${word}: no word of these candidates`;
  }

  #coded(column, parts) {
    const {values, codes} = this.candidates.coded(column);
    const aliases = this.candidates.aliases[column] ?? {};
    const known = listed(parts.rest).map(one => aliases[one.toLowerCase()] ?? one);
    const unknown = parts.sign in SIGNS ? [] : known.filter(one => !values.some(value => same(one, String(value))));
    if (unknown.length === known.length && known.length) return `${parts.name}=${unknown.join("|")}: no candidate has that; there are ${values.join(", ")}`;
    const holds = Uint8Array.from(values, value => this.#holds({...parts, known}, value));
    const found = new Uint8Array(codes.length);
    for (let i = 0; i < found.length; i++) found[i] = holds[codes[i]];
    return found;
  }

  #holds({sign, rest, known = listed(rest)}, value) {
    if (sign in SIGNS) return SIGNS[sign](Number(value), parseFloat(rest));
    return known.some(one => same(one, String(value))) === (sign === "=");
  }

  #bounded(column, {name, sign, rest}, unit, isRank) {
    const bound = parseFloat(rest) * unit;
    if (Number.isNaN(bound)) return `${name}${sign}${rest}: not a number`;
    const holds = SIGNS[sign] || ((value, other) => (Math.abs(value - other) <= 1e-6 * Math.abs(other)) === (sign === "="));
    const found = new Uint8Array(column.length);
    for (let i = 0; i < found.length; i++) found[i] = (!isRank || column[i] > 0) && holds(column[i], bound);  // rank 0: not ranked
    return found;
  }
}
