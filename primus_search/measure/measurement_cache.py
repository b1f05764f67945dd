"""Measurements kept between candidates, runs and machines, keyed by what was measured and on what.

One JSON object per line. The key is (kernel, shape, dtype, device, versions): the same layer shape in another
candidate or another run is never paid for twice, and a new torch or driver never answers for an old one. The same
format is the artifact that `--save-benchmark` writes and `--load-benchmark` reads.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import replacing, writing
from primus_search.measure.device.timing import PieceMeasurement

Key = tuple[str, str, str, str, str]
_FIELDS = frozenset(PieceMeasurement.__dataclass_fields__)


def key_of(m: PieceMeasurement) -> Key:
    return (m.kernel, m.shape, m.dtype, m.device, m.versions)


class MeasurementCache:
    """A file of measurements held in memory; later lines win. A missing file is an empty cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[Key, PieceMeasurement] = {}
        if path.exists():
            self._found = {key_of(m): m for m in read(path, is_own=True)}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Key) -> PieceMeasurement | None:
        return self._found.get(key)

    def add(self, measurements: Iterable[PieceMeasurement]) -> None:
        """Remember and append to the file; one write per call, so that writers of several runs do not interleave."""
        new = list(measurements)
        if not new:
            return
        self._found |= {key_of(m): m for m in new}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(m) for m in new))

    def all(self) -> list[PieceMeasurement]:
        return [self._found[key] for key in sorted(self._found)]


def _line(m: PieceMeasurement) -> str:
    return json.dumps(asdict(m), sort_keys=True) + "\n"


def save(path: Path, measurements: Iterable[PieceMeasurement]) -> None:
    """Write an artifact, whole or not at all. Raises InputError where it cannot be written."""
    with writing(f"--save-benchmark {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text("".join(_line(m) for m in measurements), encoding="utf-8")


def read(path: Path, *, is_own: bool = False) -> list[PieceMeasurement]:
    """The measurements of a file. A line cut short by a kill is dropped from our own cache and an error elsewhere."""
    if not path.exists():
        raise InputError([Problem(str(path), "no such benchmark file; write one with --save-benchmark")])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error
    found, problems = [], []
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            found.append(PieceMeasurement(**{**data, "notes": tuple(data["notes"])}))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(Problem(f"{path}:{number}", f"is not a measurement ({error}); expected {sorted(_FIELDS)}"))
    if problems and not is_own:
        raise InputError(problems)
    return found
