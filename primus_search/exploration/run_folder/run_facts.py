"""`run.json` read back: every key that a reader uses has its type, or the file is refused by the key's name."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, exists, read_bytes, read_text
from primus_search.exploration.run_folder.resolved import is_known_form, is_of_today, refusal
from primus_search.files.plain_forms import SWITCH, mapping_of, problems_of

WRITTEN = mapping_of("sha256", "bytes")
FACTS = mapping_of(
    "space source search_sha256 model hardware stack framework objective method method_reason engine finished",
    "nodes gpus seed workers raw legal feasible",
    "memory_margin seconds peak_rss_bytes",
    **dict.fromkeys(("exact", "complete"), SWITCH),
    **dict.fromkeys(("best", "versions"), dict[str, Any]),
    notes=list[str],
    overrides=list[mapping_of("key origin", value=Any)],  # type: ignore[misc]
    removed=list[mapping_of("rule reason", "rows")],  # type: ignore[misc]
    workload=mapping_of("", "seq_length global_batch_size"),
    stages=list[mapping_of("name", "rows", "seconds rows_per_s")],  # type: ignore[misc]
    clusters=list[  # type: ignore[misc]
        mapping_of("", "nodes gpus legal feasible", "best_tokens_per_s_per_gpu", labels=dict[str, Any])
    ],
    files=dict[str, WRITTEN],  # type: ignore[valid-type]
)
"""Keys of run.json that readers use, and what each value is."""


def read_facts(folder: Path) -> Mapping[str, Any]:
    """The content of run.json. Raises `InputError` with the file and the key for a missing, cut or changed one."""
    file = folder / "run.json"
    if not exists(file):
        what = "holds no run.json; is it a finished run of `primus-search run --out`?"
        raise InputError([Problem(str(folder), what if exists(folder) and folder.is_dir() else "no such folder")])
    text = read_text(file, most=MAX_TABLE_BYTES)
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(file), f"cannot be read back: {error}")]) from error
    if not isinstance(facts, dict) or "files" not in facts:
        raise InputError([Problem(str(file), "was written by an older version; run the search again")])
    found = list(problems_of(facts, FACTS))
    if not is_known_form(facts) or (found and not is_of_today(facts)):
        why = "; ".join(f"{key} {what.partition(';')[0]}" for key, what in found[:1])
        raise InputError([Problem(str(folder), refusal(facts, why))])
    if found:
        raise InputError([Problem(f"{file} @ {key}", what) for key, what in found])
    return facts


def file_facts(content: bytes) -> dict[str, Any]:
    """What `run.json` says of a file beside it, so that a cut one is not taken for a short one."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_written(path: Path, files: Mapping[str, Any]) -> bytes:
    """A file of the run folder. Raises `InputError` when it is not what the run wrote (`files` of run.json)."""
    written: Any = files.get(path.name)
    if wrong := list(problems_of(written, WRITTEN, f"$.files.{path.name}")):
        raise InputError([Problem(f"{path.parent / 'run.json'} @ {key}", what) for key, what in wrong])
    content = read_bytes(path, most=max(written["bytes"], 1) + 1)
    if file_facts(content) != written:
        there, wrote = len(content), written["bytes"]
        sizes = f": {there:,} bytes, not {wrote:,}" if there != wrote else ""
        raise InputError([Problem(str(path), f"is not what the run wrote{sizes}; run the search again")])
    return content
