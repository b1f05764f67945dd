// Elements, the tooltip, downloads and the clipboard. Text is only ever set as text.

/** An element; attributes that start with `on` are listeners, null and false ones are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(child => child !== null));
  return node;
}

export const byId = id => document.getElementById(id);
export const button = (text, onclick, attributes = {}) => el("button", {type: "button", onclick, ...attributes}, text);

const colours = new Map();
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => colours.clear());

/** A colour of the style sheet. */
export function css(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

const tip = byId("tip");

/** Show text beside a point of the window. */
export function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}

export const hideTip = () => { tip.hidden = true; };

export function download(name, address) {
  const link = el("a", {download: name, href: address});
  document.body.append(link);
  link.click();
  link.remove();
}

export function downloadText(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], {type}));
  download(name, address);
  setTimeout(() => URL.revokeObjectURL(address), 1e4);
}

/** Whether the text is on the clipboard. */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", {class: "unseen", "aria-hidden": "true"});
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

/** A button that copies what `text` returns and says so. */
export function copyButton(text, attributes = {}) {
  const said = el("span", {role: "status", class: "soft"});
  const copy = async () => { said.textContent = await copied(text()) ? "Copied." : "Select the text and copy it by hand."; };
  return [button("Copy", copy, attributes), said];
}
