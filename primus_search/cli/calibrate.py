"""`primus-search calibrate`: fit an accelerator's efficiencies to a CSV of measured kernels."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import finite
from primus_search.cli.output import print_json, write

if TYPE_CHECKING:
    from primus_search.measure.calibrate.kernel_fit import Result


def calibrate(
    measurements: Path | None = None,
    hardware: str | None = None,
    gpu: str | None = None,
    out: Path | None = None,
    device: str | None = None,
    as_json: bool = False,
) -> None:
    """Fit the efficiencies of an accelerator from measurements.

    Prints, per stage, the error of points left out of the fit, the numbers found, and the numbers the data does not
    identify with the reason. With --out it writes the hardware file with every fitted number and its provenance.
    """
    if device == "cpu":
        from primus_search.measure.host_calibration import host_file

        typer.echo(f"hardware: host is measured: {host_file(again=True)}")
        return
    if device is not None:
        measurements = measured_table(device, measurements, hardware, gpu)
    from primus_search.measure.calibrate.kernel_fit import calibrate_hardware, hardware_names
    from primus_search.measure.calibrate.points import read_points

    if measurements is None or not measurements.is_file():
        what = f"no such file '{measurements}'" if measurements else "missing; give a CSV of measured kernels"
        raise InputError([Problem("--measurements", what)])
    points = read_points(measurements)
    names = [hardware] if hardware else hardware_names(points)
    if not names:
        raise InputError([Problem("--measurements", "no usable point of a device that has a hardware file")])
    if out is not None and len(names) != 1:
        raise InputError([Problem("--out", "needs --hardware: one file is written")])
    results = [calibrate_hardware(name, points, gpu, is_own_sweep=device is not None) for name in names]
    if as_json:
        print_json(finite([_as_data(result) for result in results]))
    else:
        for result in results:
            _print(result)
    if out is not None:
        _write_hardware(results[0], out, measurements if device is not None else None)


def _write_hardware(result: "Result", out: Path, table: Path | None) -> None:
    """The hardware file again with every fitted number and its provenance, and with the measured table if given."""
    import datetime

    from primus_search.measure.calibrate.hardware_edits import with_fitted, with_tables

    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    text = with_fitted(result.path.read_text(encoding="utf-8"), result.calibration, today, str(result.path))
    if table is not None:
        text = with_tables(text, beside(out, table))
    write(out, text, "--out")


def beside(out: Path, table: Path) -> str:
    """A copy of the table in a folder beside the hardware file; its path from there."""
    name = f"tables/{out.stem}.csv"
    target = out.parent / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(table.read_bytes())
    return name


def measured_table(device: str, path: Path | None, hardware: str | None, gpu: str | None, sweep: str = "full") -> Path:
    """Sweep this machine's device into a CSV that is read like a published one."""
    from primus_search.files.hardware_files import load_hardware
    from primus_search.measure.device.device_info import describe
    from primus_search.measure.device.device_table import measure_device

    if hardware is None:
        raise InputError([Problem("--device", "needs --hardware: the file that describes this device")])
    name = gpu or load_hardware(hardware, where="--hardware").name
    target = path or Path("results/measurements") / f"{hardware}.csv"
    try:
        describe(device)
    except ValueError as error:
        raise InputError([Problem("--device", str(error))]) from error
    for line in measure_device(target, kind=device, gpu=name, sweep=sweep):
        typer.echo(f"not measured: {line}", err=True)
    return target


def _as_data(result: "Result") -> dict[str, Any]:
    """One calibrated device as plain data, without the accelerator itself."""
    return {
        "hardware": result.name,
        "gpu": result.gpu,
        "points": result.num_points,
        "stages": [asdict(stage) for stage in result.calibration.stages],
    }


def _print(result: "Result") -> None:
    from primus_search.base.html_templates import rendered

    typer.echo(rendered("calibration.txt", result=result), nl=False)
