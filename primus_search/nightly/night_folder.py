"""The folder of a sweep's nights: summary.md, report.html, junit.xml, nightly.json, history.parquet, trend.html."""

import json
from pathlib import Path

from primus_search.base.guards.files import write_whole
from primus_search.exploration import StoreError
from primus_search.nightly.history import append
from primus_search.nightly.night_run import Night
from primus_search.nightly.page import report, trend
from primus_search.nightly.summary import junit, markdown, summary


def default_folder(name: str) -> Path:
    """Where nights of a sweep go unless told otherwise."""
    return Path("results/runs/nightly") / name


def write_night(folder: Path, night: Night) -> None:
    """All files of a night, each whole or not at all; the history grows by one night."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = append(folder / "history.parquet", night)
        texts = {"summary.md": markdown(night), "report.html": report(night), "junit.xml": junit(night)}
        texts |= {
            "nightly.json": json.dumps(summary(night), indent=2) + "\n",
            "trend.html": trend(night.sweep.name, rows),
        }
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error.strerror}") from error
