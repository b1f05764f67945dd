"""Switches off their defaults in recommended rows, before and after: `recommended_rows.py BEFORE_DIR AFTER_DIR`.

Both hold a run folder per space (`primus-search run spaces/X.yaml --bench off --out DIR/X`), the first of another
checkout. Prints rows for docs/dev/first_screens_log.md: switches before and after, those of today's row, what they gain
over the same row without them (layout and schedule stay), and today's rate of the row of before against that of
today's. An asterisk: the space offers nothing else.
"""

import csv
import sys
from pathlib import Path

from primus_search.exploration.neighbours import Trial, values_of
from primus_search.exploration.ranking_table import switch_names
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Candidates, spoken
from primus_search.values.knobs import KNOB, WORDED

LAID_OUT = ("schedule", "pipeline_layout")
"""Switches that the split of the layers may need: they stay."""


def line(before: Path, after: Path) -> str:
    run = SavedRun.open(after)
    row, evaluator, base = run.row(1), run.evaluator(run.cluster(1)), values_of(run.candidate(1))
    with (before / "ranking.csv").open(newline="") as file:
        texts = next(csv.DictReader(file))
    newer = {name: KNOB[name].word(KNOB[name].default) for name in COLUMN_NAMES}
    old = newer | {name: _typed(name, texts[name]) for name in COLUMN_NAMES if name in texts}
    names = switch_names(row)
    changes = {name: KNOB[name].column_default for name in names if name not in LAID_OUT}
    plain, earlier = evaluator.try_out(base, [changes, values_of(Candidates.from_words(old))])
    words = ", ".join(
        (KNOB[name].in_words(row) or f"{name} {spoken(row[name])}") + "*" * (len(run.space.axis(name).values) == 1)
        for name in names
    )
    rate = row["expected_tokens_per_s_per_gpu"]
    gain, then = (_rate(plain), _rate(earlier))
    told = f"{rate / gain - 1.0:+z.1%}" + ", and it fits" * (not plain.fits) if gain and names else ""
    counts = f"{len(switch_names(old))} | {len(switch_names(row))}"
    return f"| {after.name} | {counts} | {words} | {told} | {then / rate - 1.0:+z.1%} |"


def _typed(name: str, text: str) -> object:
    if name in WORDED:
        return text
    return text == "true" if isinstance(DEFAULTS[name], bool) else int(text)


def _rate(trial: Trial) -> float:
    return trial.figures.expected_tokens_per_s_per_gpu if trial.figures else 0.0


if __name__ == "__main__":
    before, after = map(Path, sys.argv[1:3])
    for folder in sorted(after.iterdir()):
        if (folder / "run.json").is_file():
            print(line(before / folder.name, folder))
