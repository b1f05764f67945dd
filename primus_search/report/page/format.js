// Numbers as text, and the figures of a candidate.
export const GB = 1e9;
const MINUS = "\u2212";

const WHOLE = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

export const whole = value => WHOLE.format(Math.round(value));
export const percent = (value, digits = 1) => (100 * value).toFixed(digits).replace(/^-(0[.]?0*)$/, "$1") + " %";
export const gigabytes = (value, digits = 1) => (value / GB).toFixed(digits);
/** A word of a shell's command line. */
export const shellWord = text => /^[\w./=,:+-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
/** The text of a CSV cell that no spreadsheet evaluates (csv_cells.py says which are). */
const unevaluated = text => /^[=+@\t\r'-]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
/** A cell of a CSV file. */
export const csvCell = text => /[",\r\n]/.test(unevaluated(text)) ? '"' + unevaluated(text).replaceAll('"', '""') + '"' : unevaluated(text);
export const words = name => name.replaceAll("_", " ");
export const signed = (value, text) => (value < 0 ? MINUS : "+") + text(Math.abs(value));
export const seconds = value => value >= 1 ? value.toFixed(3) + " s" : (1e3 * value).toFixed(1) + " ms";

/** A probability as a percentage; never 0 or 100 %, for the tail of an error is not known. */
export const chance = value => value >= 0.995 ? ">99 %" : value < 0.005 ? "<1 %" : percent(value, 0);

/** Figures by the name that the filter takes, in the unit that the table shows: column, unit of the name, text. */
export const FIGURES = [
  {name: "rank", column: "rank", title: "#", unit: 1, text: value => value ? String(value) : ""},
  {name: "speed", column: "expected_tokens_per_s_per_gpu", title: "tokens/s/GPU", unit: 1, text: whole},
  {name: "projected", column: "tokens_per_s_per_gpu", title: "projected", unit: 1, text: whole},
  {name: "low", column: "tokens_per_s_per_gpu_low", title: "90 % from", unit: 1, text: whole},
  {name: "high", column: "tokens_per_s_per_gpu_high", title: "to", unit: 1, text: whole},
  {name: "GB", column: "memory_bytes", title: "GB", unit: GB, text: value => gigabytes(value)},
  {name: "spare", column: "headroom_bytes", title: "spare GB", unit: GB, text: value => gigabytes(value)},
  {name: "fits", column: "fit_probability", title: "fits", unit: 0.01, text: chance},
  {name: "bubble", column: "bubble_ratio", title: "bubble", unit: 0.01, text: value => percent(value)},
  {name: "MFU", column: "mfu", title: "MFU", unit: 0.01, text: value => percent(value)},
  {name: "step", column: "step_s", title: "step s", unit: 1, text: value => value.toFixed(3)},
];
