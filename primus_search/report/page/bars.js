// Stacked bars of a step or a memory, with words on hover and focus.
import {PALETTE} from "./chart.js";
import {el, hideTip, showTip} from "./dom.js";
import {percent, words} from "./format.js";

export const total = parts => Object.values(parts).reduce((sum, part) => sum + part, 0);
export const partColour = (names, part) => PALETTE[names.indexOf(part) % PALETTE.length];

/** An element whose text shows on hover and focus. */
export function hinted(node, text) {
  node.addEventListener("pointermove", e => showTip(text, e.clientX, e.clientY));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("blur", hideTip);
  node.addEventListener("focus", () => { const box = node.getBoundingClientRect(); showTip(text, box.left, box.bottom); });
  return node;
}

/** One stacked bar of `parts` beside its name and sum; the first part takes the focus, arrow keys move it.
    `names`: all parts in the order of colours; `most`: what fills the width; `terms`: what parts mean. */
export function stackedBar(name, parts, names, most, text, terms = {}) {
  const sum = total(parts), shown = Object.entries(parts).filter(part => part[1] > 0);
  const segments = shown.map(([part, value], k) => {
    const label = `${words(part)}: ${text(value)} (${percent(value / sum)})`;
    const node = el("i", {style: `width:${100 * value / most}%;background:${partColour(names, part)}`, tabindex: k ? "-1" : "0", role: "img", "aria-label": label,
      onkeydown: e => {
        const next = {ArrowRight: node.nextElementSibling, ArrowLeft: node.previousElementSibling}[e.key];
        if (next) { node.tabIndex = -1; next.tabIndex = 0; next.focus(); e.preventDefault(); }
      }});
    return hinted(node, terms[part] ? `${label}\n${terms[part]}` : label);
  });
  return el("div", {class: "rankline"}, el("span", {}, name), el("div", {class: "stack", role: "group", "aria-label": name + ", arrow keys walk along its parts"}, segments), el("span", {}, text(sum)));
}

/** The colours of the parts that any of `rows` has; of one row those that make 1 % of it, with their shares. */
export function partLegend(title, names, rows) {
  const [alone] = rows.length === 1 ? rows : [], share = part => alone ? alone[part] / total(alone) : 1;
  const used = names.filter(part => rows.some(row => row && row[part] > 0) && share(part) >= 0.01);
  return el("div", {class: "legend"}, title ? el("b", {}, title) : null, used.map(part => el("span", {}, el("i", {style: "background:" + partColour(names, part)}), words(part) + (alone ? " " + percent(share(part), 0) : ""))));
}
