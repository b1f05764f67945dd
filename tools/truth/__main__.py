"""`python -m tools.truth`: train small models for real on this machine and compare with the projection."""

from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from primus_search.cli.output import must_be_folder
from primus_search.files.hardware_files import load_stack
from tools.truth.rounds import MEASUREMENTS, prove

Only = Annotated[str, typer.Option(help="Only configurations whose name contains one of these texts, commas between.")]
Count = Annotated[int, typer.Option(min=1, help="Configurations to choose, evenly over projected speed.")]
Seconds = Annotated[float, typer.Option(min=60, help="Seconds after which it ends, whatever is still wide.")]
Steps = Annotated[int, typer.Option(min=1, help="Calm steps of each configuration to look for in each round.")]
Out = Annotated[Path, typer.Option(help="Folder for the figures, the verdicts and the measurements.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the comparison as JSON, nothing else.")]
RESULTS = Path("results/measurements")


def truth(
    only: Only = "", count: Count = 26, seconds: Seconds = 900.0, steps: Steps = 3, out: Out = RESULTS,
    json: AsJson = False,
) -> None:  # fmt: skip
    """Train a small GPT and a small MoE with torch.distributed here; compare with what is projected for the host."""
    wanted = [text.strip() for text in only.split(",") if text.strip()]
    must_be_folder(out, "--out")
    (out / MEASUREMENTS).unlink(missing_ok=True)

    say = partial(typer.echo, err=True)
    report = prove(load_stack("host"), folder=out, only=wanted, count=count, seconds=seconds, steps=steps, say=say)
    text = dumps(report.as_json(), indent=2)
    page = report.as_markdown("Real training on this machine against the projection")
    for ending, content in {"json": text + "\n", "csv": report.as_csv(), "md": page}.items():
        (out / f"truth.{ending}").write_text(content, encoding="utf-8")
    typer.echo(text if json else page)


if __name__ == "__main__":
    typer.run(truth)
