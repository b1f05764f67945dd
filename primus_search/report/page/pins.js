// What is pinned: break-downs as bars of one scale, two rows compared knob by knob, and how to start a row.
import {partLegend, stackedBar, total} from "./bars.js";
import {button, byId, copyButton, el} from "./dom.js";
import {chance, FIGURES, gigabytes, percent, seconds, shellWord, signed, whole, words} from "./format.js";

const NEGLIGIBLE = 1e-9;
const gb = value => gigabytes(value) + " GB";

export class Pins {
  /** `run`: what the page embeds; `commandOf(text)` completes a command with the folder of the run. */
  constructor(candidates, state, run, commandOf) {
    Object.assign(this, {candidates, state, run, commandOf});
    this.node = byId("pins");
  }

  draw() {
    const rows = this.state.pinned;
    if (!rows.length) {
      this.node.replaceChildren(el("p", {class: "soft"}, "None. Click a point of the plot or the star of a row."));
      return;
    }
    this.node.replaceChildren(...(rows.length > 1 ? this.#comparison(rows) : []), ...this.#breakdowns(rows), ...this.#launch(rows));
  }

  #name(i) {
    const rank = this.candidates.number("rank")[i];
    return (rank ? "#" + rank + " " : "") + this.candidates.label(i);
  }

  // --- two rows ------------------------------------------------------------------------------------------------------

  #comparison(rows) {
    const [a, b] = this.#compared(rows);
    const choice = (id, at, title) => el("label", {}, title + " ", el("select", {id, onchange: e => this.#compare(rows, at, Number(e.target.value))},
      rows.map(i => el("option", {value: i, selected: i === [a, b][at]}, this.#name(i)))));
    return [el("h3", {}, "Two of them compared"), el("div", {class: "bar"}, choice("compare-a", 0, "A"), choice("compare-b", 1, "B")), ...(a === b ? [] : this.#tables(a, b))];
  }

  #compared(rows) {
    const chosen = this.state.compare.split(",").filter(Boolean).map(Number).filter(i => rows.includes(i));
    const [a = rows[0], b = rows.find(i => i !== a)] = chosen;
    return [a, b];
  }

  #compare(rows, at, i) {
    const pair = this.#compared(rows);
    pair[at] = i;
    this.state.set({compare: pair.join(",")});
    byId(at ? "compare-b" : "compare-a").focus();
  }

  #tables(a, b) {
    const {candidates} = this, differing = candidates.knobs.filter(name => candidates.value(name, a) !== candidates.value(name, b));
    const knobs = differing.map(name => [words(name), String(candidates.value(name, a)), String(candidates.value(name, b))]);
    const figures = FIGURES.filter(({name}) => name !== "rank").map(({title, column, text}) => [title, ...[a, b].map(i => text(candidates.number(column)[i]))]);
    const parts = (which, text) => {
      const [of, than] = [a, b].map(i => candidates.parts(which, i));
      if (!of || !than) return [];
      const lines = Object.keys(of).map(name => [words(name), of[name], than[name], than[name] - of[name]]).filter(line => Math.abs(line[3]) > NEGLIGIBLE * total(of));
      lines.sort((one, other) => Math.abs(other[3]) - Math.abs(one[3]));
      const sum = ["total", total(of), total(than), total(than) - total(of)];
      return [...lines, sum].map(([name, mine, others, change]) => [name, text(mine), text(others), signed(change, text)]);
    };
    return [this.#table("compare-knobs", "Knobs that differ", ["knob", "A", "B"], knobs), this.#table("compare-figures", "Figures", ["figure", "A", "B"], figures),
      this.#table("compare-step", "Where the seconds differ", ["part of the step", "A", "B", "B less A"], parts("step", seconds)),
      this.#table("compare-memory", "Where the bytes differ", ["part of the memory, worst rank", "A", "B", "B less A"], parts("memory", gb))];
  }

  #table(id, title, heads, lines) {
    if (!lines.length) return el("p", {class: "soft"}, title + ": the run kept none of both.");
    const row = line => el("tr", {}, el("th", {scope: "row"}, line[0]), line.slice(1).map(text => el("td", {class: "n"}, text)));
    return el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": title}, el("table", {id}, el("caption", {}, title),
      el("thead", {}, el("tr", {}, heads.map((text, k) => el("th", {scope: "col", class: k ? "n" : null}, text)))), el("tbody", {}, lines.map(row))));
  }

  // --- bars ----------------------------------------------------------------------------------------------------------

  #breakdowns(rows) {
    const steps = rows.map(i => this.candidates.parts("step", i)), held = rows.map(i => this.candidates.parts("memory", i));
    const longest = Math.max(...steps.filter(Boolean).map(total)), largest = Math.max(this.run.limit?.device_bytes ?? 0, ...held.filter(Boolean).map(total));
    return [...rows.flatMap((i, k) => this.#card(i, steps[k], held[k], longest, largest)), partLegend("Step", this.candidates.step, steps), partLegend("Memory", this.candidates.memory, held)];
  }

  #card(i, step, memory, longest, largest) {
    const of = name => this.candidates.number(name)[i], word = name => this.candidates.value(name, i), rank = of("rank");
    const head = el("h3", {}, this.#name(i) + " ", button("Unpin", () => this.state.pin(i), {"aria-label": "Unpin " + this.#name(i)}));
    const facts = el("p", {class: "soft"}, `${whole(of("expected_tokens_per_s_per_gpu"))} tokens/s/GPU; 90 % interval ${whole(of("tokens_per_s_per_gpu_low"))} to ${whole(of("tokens_per_s_per_gpu_high"))}; ` +
      `${gb(of("memory_bytes"))} per GPU, ${word("verdict")}, probability ${chance(of("fit_probability"))}; MFU ${percent(of("mfu"))}, bubble ${percent(of("bubble_ratio"))}, ` +
      `${word("microbatches")} micro-batches, dp ${word("dp")}; time ${word("time_evidence")}, memory ${word("memory_evidence")}`);
    if (!step) return [head, facts, el("p", {class: "soft"}, "The run kept no break-down of it.")];
    const byRank = rank && this.run.memory_by_rank?.[rank];
    const ranks = byRank ? Object.values(byRank)[0].map((_, r) => ["pp rank " + r, Object.fromEntries(Object.entries(byRank).map(([name, values]) => [name, values[r]]))]) : [["worst rank", memory]];
    return [head, facts, stackedBar("step", step, this.candidates.step, longest, seconds, this.run.terms), ...ranks.map(([name, parts]) => stackedBar(name, parts, this.candidates.memory, largest, gb))];
  }

  // --- launch --------------------------------------------------------------------------------------------------------

  #launch(rows) {
    const text = el("pre", {id: "launch", tabindex: 0, role: "region", "aria-label": "Launch file"}), files = el("span", {class: "bar", id: "files"});
    const choose = el("select", {id: "launch-row", onchange: () => draw(Number(choose.value))}, rows.map(i => el("option", {value: i}, this.#name(i))));
    const show = (name, content) => {
      text.textContent = content;
      for (const one of files.children) one.setAttribute("aria-pressed", one.textContent === name);
    };
    const draw = i => {
      const rank = this.candidates.number("rank")[i], found = Object.entries(this.run.exports?.[rank] ?? {});
      files.replaceChildren(...found.map(([name, content]) => button(name, () => show(name, content), {"data-format": name})));
      if (found.length) show(...found[0]); else show("", this.#command(i, rank));
    };
    draw(rows.at(-1));
    choose.value = String(rows.at(-1));
    return [el("h3", {}, "Launch files"), el("div", {class: "bar"}, el("label", {}, "Of ", choose), files, ...copyButton(() => text.textContent, {id: "copy"})), text];
  }

  /** The command that writes the launch files of a row that the page has none of. */
  #command(i, rank) {
    if (rank) return this.commandOf("export " + rank);
    const knobs = this.candidates.differing.map(name => name + "=" + this.candidates.value(name, i)).join(",");
    return "# Not in ranking.csv: its distance from the first row, part by part\n" + this.commandOf("explain") + " --why-not " + shellWord(knobs);
  }
}
