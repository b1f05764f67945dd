"""Put numbers fitted to training runs into stack and hardware files, each with its provenance, and touch nothing else.

Files are edited as text so that comments and everybody else's lines stay as they are. A number that the runs do not
identify is written with the mean of its family (or its prior) and says so.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from primus_search.declare.search_path import FileKind, names
from primus_search.runs.calibrate.provenance import SECTION
from primus_search.values.machine.stack import GROUP_OF
from primus_search.values.measured_run import MeasuredRun
from tools.docs.fitted_numbers import count_fitted
from tools.fit.priors import PriorParameter
from tools.fit.training import touches
from tools.fit.training_parameters import IDENTIFIED, MAX_FITTED, TRAINING_RATE, rate_family, yaml_key

Owner = tuple[str, str]
"""`stack` or `hardware`, and the name."""


def identified(
    parameters: Sequence[PriorParameter], apart: Mapping[str, float], taken: Mapping[Owner, int]
) -> set[str]:
    """Paths of what the runs identify, the best known first, at most `MAX_FITTED` per owner with what it has `taken`.

    `apart` is the standard error of each parameter's distance from its family's mean.
    """
    by_owner: dict[Owner, list[tuple[float, str]]] = defaultdict(list)
    for p in parameters:
        by_owner[p.owner, p.name].append((apart[p.path] / p.sigma, p.path))
    best = ((owner, sorted(f for f in found if f[0] < IDENTIFIED)) for owner, found in by_owner.items())
    return {path for owner, found in best for _, path in found[: max(MAX_FITTED - taken.get(owner, 0), 0)]}


def fitted_elsewhere(parameters: Sequence[PriorParameter]) -> dict[Owner, int]:
    """How many numbers of each stack and accelerator were fitted to something else: kernels, memory peaks."""
    keys: dict[Owner, set[str]] = defaultdict(set)
    for p in parameters:
        keys[p.owner, p.name].add(yaml_key(p.field)[0])
    texts = {
        (owner, _word(text, "name")): text
        for owner, kind in (("stack", FileKind.STACK), ("hardware", FileKind.HARDWARE))
        for text in (path.read_text(encoding="utf-8") for path in names(kind).values())
    }
    return {owner: count_fitted(texts[owner], frozenset(own)) for owner, own in keys.items() if owner in texts}


def write_parameters(
    parameters: Sequence[PriorParameter],
    values: Mapping[str, float],
    standard_errors: Mapping[str, float],
    known: Set[str],
    cases: Sequence[MeasuredRun],
    folder: Path,
    date: str,
) -> None:
    """Write every parameter into `folder`: stacks/NAME.yaml in its group, training rates under accelerator."""
    files = {_word(path.read_text(), "name"): path for path in sorted(folder.glob("*.yaml"))}
    members = Counter(p.family for p in parameters)
    for p in parameters:
        runs = sum(touches(p, case) for case in cases)
        source = f"prior: {runs} training runs do not identify it"
        if p.family:
            siblings = f"{p.owner} files{p.family.removeprefix(p.field).partition(' of ')[0]}"
            source = f"mean of {members[p.family]} {siblings}, {date}: {runs} training runs do not identify it"
        if p.path in known:
            source = f"fitted {date} to {runs} training runs, standard error {standard_errors[p.path]:.2g}"
        is_stack = p.owner == "stack"
        path = folder / "stacks" / f"{p.name}.yaml" if is_stack else files[p.name]
        _put(path, p.field, values[p.path], source, GROUP_OF[p.field] if is_stack else SECTION)


def write_means(
    means: Mapping[str, float],
    values: Mapping[str, float],
    parameters: Sequence[PriorParameter],
    folder: Path,
    date: str,
) -> None:
    """Training rates of devices without a rate of their own: that of the device their file names (`same die as NAME`,
    `no training runs: as NAME`), else the mean of the vendor's devices."""
    fitted = {p.name: values[p.path] for p in parameters if p.owner == "hardware"}
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text()
        if _word(text, "name") in fitted:
            continue
        told = re.search(rf'{TRAINING_RATE.field}: .*"((?:same die|no training runs:) as (.+?))"', text)
        family = rate_family(_word(text, "vendor"))
        if told:
            if told[2] in fitted:
                _put(path, TRAINING_RATE.field, fitted[told[2]], told[1], SECTION)
        elif family in means:
            count = sum(p.family == family for p in parameters)
            source = f"mean of {count} hardware files, {date}: no training run on this device"
            _put(path, TRAINING_RATE.field, means[family], source, SECTION)


def write_copies(folder: Path, date: str) -> None:
    """Numbers of stacks without runs: those of the stack that a line names (`as NAME`), or the family's mean, as it
    stands in the files of stacks whose runs do not identify it."""
    texts = {path: path.read_text() for path in sorted((folder / "stacks").glob("*.yaml"))}
    by_name = {_word(text, "name"): text for text in texts.values()}
    means = {key: (value, count) for text in by_name.values() for key, value, count in _MEAN.findall(text)}
    for path, text in texts.items():
        for key, name in re.findall(r'^ *(\w+): .*"as (\w+), \d{4}-\d\d-\d\d"', text, re.M):
            found = re.search(rf"^ *{key}: *{{value: ([^,]+),", by_name.get(name, ""), re.M)
            if found:
                text = _with_number(text, key, found[1], f"as {name}, {date}")
        for key in re.findall(r'^ *(\w+): .*"mean of \d+ stack files, \d{4}-\d\d-\d\d"', text, re.M):
            if key in means:
                value, count = means[key]
                text = _with_number(text, key, value, f"mean of {count} stack files, {date}")
        path.write_text(text)


_MEAN = re.compile(r'^ *(\w+): \{value: ([^,]+), source: "mean of (\d+) stack files, [-\d]+: ', re.M)
"""A number that some stack's runs do not identify: key, value, and how many files the mean is of."""


def _put(path: Path, field: str, value: float, source: str, section: str) -> None:
    """Write the number of a field into a file, in the units of its YAML key."""
    key, factor = yaml_key(field)
    path.write_text(_with_number(path.read_text(), key, str(float(f"{value * factor:.4g}")), source, section))


def _word(text: str, key: str) -> str:
    found = re.search(rf"^{key}: *(.+?) *$", text, re.M)
    return found.group(1).strip("\"'") if found else ""


def _with_number(text: str, key: str, value: str, source: str, section: str = "") -> str:
    """The text with the line of a key of some section replaced; a new one goes to the top of `section`."""
    line = f'  {key}: {{value: {value}, source: "{source}"}}'
    present = re.compile(rf"^  {key}: .*$", re.M)
    if present.search(text):
        return present.sub(lambda _: line, text, count=1)
    head = re.search(rf"^{section}:.*\n", text, re.M) if section else None
    if head is None:
        return f"{text}{section}:\n{line}\n"
    return f"{text[: head.end()]}{line}\n{text[head.end() :]}"
