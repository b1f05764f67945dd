"""Where the errors of first contact are written: the file of sites, README's sentence, the fidelity page."""

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

from primus_search.values.machine.stack import SiteErrors
from tools.fit.first_contact import FITTED, TRAINER, WITH_DOUBTED, WORDLESS, LeftOut, Seen, by_publisher


def write_errors(errors: SiteErrors, rows: Sequence[Seen], path: Path) -> None:
    """Put the fitted numbers into the file of sites, each with what it rests on."""
    used = by_publisher([row for row in rows if not row.publisher.startswith(WORDLESS)])
    stacks = sum(name.startswith(TRAINER) for name in used)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    groups = f"{len(used) - stacks} publishers and {stacks} stack files left out whole"
    source = f"fitted {date} to {sum(map(len, used.values()))} errors, {groups}: python -m tools.fit first-contact"
    text = path.read_text(encoding="utf-8")
    for name in FITTED:
        value = round(float(getattr(errors, name)), 3)
        text = re.sub(rf"^  {name}: .*$", f'  {name}: {{value: {value}, source: "{source}"}}', text, flags=re.M)
    path.write_text(text, encoding="utf-8")


def write_figures(found: LeftOut, memory: str, readme: Path, fidelity: Path) -> None:
    """Put what strangers' runs and `verdicts` show into README's sentence, the page's first rows and its regimes."""
    regimes = found.by_regime()
    certain, every = (_percent(*regimes[label]) for label in ("all", WITH_DOUBTED))
    doubted = every["runs"] - certain["runs"]
    ends = (
        "of {publishers} publishers who made neither device nor software, each left out of every fit, the median error "
        "is\n{median} %, nine of ten within {p90} %, and the 90 % bands hold {inside} %"
    ).format_map(certain)
    both = " ({median}, {p90} and {inside} % with {doubted} runs that their tables doubt).".format(
        doubted=doubted, **every
    )
    cells = "{runs}, {publishers} publishers | {median} % | {p90} % | {inside} %, mean half width {half} % |"
    rows = [HEAD_REGIMES, *(REGIME.format(label=label, **_percent(*own)) for label, own in regimes.items())]
    for path, pattern, text in (
        (readme, r"of \d+ publishers who made (?:.|\n)*?(?: \([^)]* doubt\)\.|\.)(?= After)", ends + both),
        (fidelity, r"(\(first contact\) )\|.*", rf"\g<1>| {cells.format_map(certain)} {memory} |"),
        (
            fidelity,
            r"(\| the same with \d+ runs that their tables doubt )(?:\|[^|\n]*){4}\|",
            f"| the same with {doubted} runs that their tables doubt | " + cells.format_map(every),
        ),
        (fidelity, r"(?s)(<!-- regimes -->).*(?=<!-- end -->)", r"\g<1>\n\n" + "\n".join(rows) + "\n\n"),
    ):
        path.write_text(re.sub(pattern, text, path.read_text(encoding="utf-8")), encoding="utf-8")


HEAD_REGIMES = (
    "| strangers | publishers, runs | median | 9 of 10 within | bias | inside | half width |\n"
    "|---|---|---|---|---|---|---|"
)
REGIME = "| {label} | {publishers}, {runs} | {median} % | {p90} % | {bias:+} % | {inside} % | {half} % |"


SHARES = ("median", "p90", "bias", "inside", "half")


def _percent(publishers: int, figures: Sequence[float]) -> dict[str, int]:
    """Figures of one regime as whole percent, by name."""
    percent = {name: round(100.0 * share) for name, share in zip(SHARES, figures[2:], strict=True)}
    return {"publishers": publishers, "runs": round(figures[0]), **percent}
