"""What is known of every argument of a release: that it is read, not priced, or cannot matter for time or memory.

    python -m tools.setting_verdicts torchtitan FOLDER     # of classes below a folder, as pip installs a newer release
    python -m tools.setting_verdicts nemo FOLDER           # megatron-core

Arguments of known releases are in tables (`tools.argument_tables`). What a newer one has is read as text, not imported.
"""

import fnmatch
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from primus_search.files.argument_tables import arguments
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.source import read
from primus_search.launch.contract import is_ignored, positive_of
from primus_search.launch.read import torchtitan
from primus_search.launch.read.megatron import model_keys
from primus_search.values.machine.framework import Framework
from tools.argument_tables import of_classes

NEWER = read(Path(__file__).with_name("framework_sources.yaml")).data["newer"]


def settings_of(name: str, release: str) -> frozenset[str]:
    """Arguments of a release by name and flag, as files of a framework have them: Megatron's without sections."""
    table = arguments(release).values()
    flags = {flag.lstrip("!-").replace("-", "_") for one in table for flag in one.flags}
    return _as_in_files(name, {one.name for one in table} | flags)


def settings_below(name: str, folder: Path) -> frozenset[str]:
    """Fields of the configuration classes of a framework below a folder."""
    return _as_in_files(name, {one.name for one in of_classes([folder], NEWER[name])})


def _as_in_files(name: str, settings: Iterable[str]) -> frozenset[str]:
    has_sections = load_framework(name).keys == "torchtitan"
    return frozenset(one if has_sections else one.rpartition(".")[2] for one in settings)


def verdict(framework: Framework, key: str) -> str:
    """What is known of a setting: `read`, `not priced`, `cannot matter`, or nothing."""
    table = known_keys(framework.keys)
    positive = positive_of(key)
    if framework.keys == "torchtitan":
        is_read = key in framework.spelled or key in torchtitan.READ or key in table.read_beside
    else:
        names = (table.renamed, table.translated, table.read_beside, model_keys(), table.companions)
        is_read = key in framework.spelled or any(key in one for one in (*names, *framework.packing.values()))
        adapters = key_table("megatron")["adapters"]
        is_read |= key not in table.irrelevant and any(fnmatch.fnmatch(key, pattern) for pattern in adapters)
    if any(fnmatch.fnmatch(key, pattern) for pattern in framework.ignored):
        return "cannot matter"
    if key in framework.effects or positive in framework.effects:
        return "not priced"
    if is_read or positive in framework.spelled:
        return "read"
    return "cannot matter" if is_ignored(framework, table, key) else ""


def verdicts(name: str, settings: Iterable[str]) -> Mapping[str, str]:
    """The verdict of each setting under the contract of a framework."""
    framework = load_framework(name)
    return {key: verdict(framework, key) for key in sorted(settings)}


def main(name: str, folder: str) -> int:
    """Print counts and what has no verdict; 1 where anything has none, 2 where nothing was found."""
    found = verdicts(name, settings_below(name, Path(folder)))
    print(f"{name}: {len(found)} settings, {dict(Counter(found.values()))}")
    print(*(f"  {key}" for key, kind in found.items() if not kind), sep="\n")
    return 2 if not found else int("" in found.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
