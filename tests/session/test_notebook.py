"""The API of notebooks, and docs/notebook.ipynb executed cell by cell."""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import primus_search as ps
from primus_search.base.errors import InputError

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def executed(code: str, names: dict[str, Any]) -> Any:
    """Run one cell; the value of its last expression, as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The variables of the notebook after its last cell, and `shown`: what each cell shows."""
    cells = ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert len(cells) == 12
    found: dict[str, Any] = {}
    shown = [executed(cell, found) for cell in cells]
    return found | {"shown": shown}


def test_the_notebook_runs_and_shows_tables_a_figure_and_files(names: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    kinds = [type(one) for one in names["shown"]]
    assert kinds.count(pd.DataFrame) >= 3 and Figure in kinds
    assert [path.exists() for path in names["shown"][-1]] and names["shown"][-1]


def test_what_is_shown_is_short(names: dict[str, Any]) -> None:
    run = names["run"]
    for one in (run, run[2], run[2].explain(), run.result, run.result.ranking):
        assert len(repr(one)) < 200 and "array" not in repr(one)
    assert "take it when" in run._repr_html_() and "<pre>" in run[2].explain()._repr_html_()


def test_a_loaded_run_has_the_same_tables(names: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "space.json"
    file.write_text(json.dumps(names["space"]))
    run = ps.search(file, nodes=1, out=tmp_path / "run")
    again = ps.load_run(tmp_path / "run")
    for name in ("ranking", "frontier", "choices"):
        pd.testing.assert_frame_equal(getattr(run, name), getattr(again, name))
        pd.testing.assert_frame_equal(getattr(run, name), getattr(names["run"], name))
    assert len(run.candidates) == run.feasible and again.result is None
    assert again[1].row["tp"] == run.ranking.loc[1, "tp"]
    with pytest.raises(InputError, match="has ranks 1 to"):
        run[10**6]
    with pytest.raises(InputError, match="is unknown; use one of"):
        run[1].export("jax")


def test_every_public_name_says_what_it_takes_and_gives() -> None:
    for name in ps.__all__:
        if name != "__version__":
            assert len(inspect.getdoc(getattr(ps, name)) or "") > 60, name
