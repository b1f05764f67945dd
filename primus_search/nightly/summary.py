"""A night in words: the Markdown summary, the JUnit XML for continuous integration, and the JSON."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from primus_search.base.html_templates import rendered
from primus_search.nightly.attribute import Cause
from primus_search.nightly.check import Check
from primus_search.nightly.night_run import Night

MOST_CHANGES = 40


def markdown(night: Night) -> str:
    """The summary a person reads first: verdict, what failed and why, then every figure."""
    text = rendered(
        "nightly_summary.md",
        night=night,
        causes=list(cause_lines(night)),
        most=MOST_CHANGES,
        source=shlex.quote(_text(str(night.sweep.source))),
        move=move,
        limit=limit,
        cell=_cell,
    )
    return text.removesuffix("\n")


def junit(night: Night) -> str:
    """One test case per check, in the form continuous integration reads."""
    failed = str(len(night.failed))
    attributes = {"name": _text(f"nightly {night.sweep.name}"), "tests": str(len(night.checks)), "failures": failed}
    suites = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(suites, "testsuite", attributes | {"errors": "0", "time": f"{night.seconds:.1f}"})
    for check in night.checks:
        names = {"classname": _text(check.where), "name": _text(check.name)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if not check.passed:
            said = f"{check.before} -> {check.after} ({move(check)}, allowed {limit(check)})"
            failure = ElementTree.SubElement(case, "failure", {"message": _text(said)})
            failure.text = _text("\n".join([check.note, *(cause_line(c) for c in causes_of(night, check))]).strip())
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def summary(night: Night) -> dict[str, Any]:
    """What `nightly --json` prints."""
    return {
        "sweep": night.sweep.name,
        "passed": night.passed,
        "started": night.started,
        "seconds": round(night.seconds, 3),
        "commit": night.state.commit,
        "versions": night.state.versions,
        "baseline": [asdict(reason) for reason in night.baseline.reasons],
        "checks": [asdict(check) for check in night.checks],
        "causes": [asdict(cause) for cause in night.causes],
        "changes": list(night.changes),
    }


def move(check: Check) -> str:
    """How far a figure moved, as a reader wants it."""
    if check.name in ("rows", "memory_rows", "clusters"):
        return f"{check.move:+.0f}"
    return f"{check.move:+.2%}"


def limit(check: Check) -> str:
    """What may pass unremarked."""
    return "none" if check.limit == 0 else f"{check.limit:.2%}"


def causes_of(night: Night, check: Check) -> list[Cause]:
    """The causes found for the cluster (or the section) a check is about."""
    return [cause for cause in night.causes if cause.entry == check.entry and cause.cluster == check.cluster]


def cause_line(cause: Cause) -> str:
    """One cause in one line: `accelerator: gemm.tile_overhead 0.1 -> 0.103 moved tokens_per_s by -1.20 %`."""
    effects = [f"{name} by {effect:+.2%}" for name, effect in cause.effects.items() if abs(effect) > 5e-7]
    line = f"{cause.kind}: {cause.what}"
    if effects:
        line += f" moved {', '.join(effects)}"
    elif cause.effects:
        line += " moved none of these figures"
    return f"{line}; {cause.note}" if cause.note else line


def cause_lines(night: Night) -> Iterator[tuple[str, list[str]]]:
    """Every place where a check failed, and its causes, one line each."""
    for where, entry, cluster in dict.fromkeys((c.where, c.entry, c.cluster) for c in night.failed):
        found = [cause_line(c) for c in night.causes if c.entry == entry and c.cluster == cluster]
        yield where, found or ["nothing that is recorded"]


def _cell(text: str) -> str:
    """Text that cannot leave its cell or become markup."""
    return _text(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _text(text: str) -> str:
    """Text without characters that XML forbids."""
    return "".join(c for c in text if c in "\t\n" or " " <= c < "\ud800" or "\ue000" <= c <= "\ufffd" or c > "\uffff")
