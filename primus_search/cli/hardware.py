"""`primus-search hardware [NAME]`: accelerators and networks, every number with its source."""

import json
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_search.cli.output.written_files import print_table

if TYPE_CHECKING:
    from primus_search.declare.hardware_files import Hardware
    from primus_search.declare.records import Sourced

TERA, GIGA = 1e12, 1e9
OF_ACCELERATOR = (
    "vendor", "bf16_peak_flops_per_s", "fp8_peak_flops_per_s", "fp4_peak_flops_per_s", "hbm_bytes", "hbm_bytes_per_s",
)  # fmt: skip
OF_NETWORK = ("gpus_per_node", "domain_size", "topology", "link_bytes_per_s", "nics_per_node", "nic_bytes_per_s")


def hardware(
    name: Annotated[str | None, typer.Argument(help="A hardware file by name or path, or a software stack.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """The accelerators and networks; with a NAME, every number of one file (or software stack) with its source.

    [FILE] behind a source names the file that the number is inherited from (extends:).
    """
    from primus_search.declare.hardware_files import load_hardware, read_stack
    from primus_search.declare.search_path import FileKind, name_and_version, names

    stacks = names(FileKind.STACK)
    if name is None:
        every = {key: load_hardware(key) for key in names(FileKind.HARDWARE)}
        if as_json:
            typer.echo(json.dumps([_summary(key, one) for key, one in every.items()], indent=2))
        else:
            _print_table(every, list(stacks))
        return
    if name_and_version(name)[0] in stacks:
        sources = read_stack(name)[1]
        head: dict[str, Any] = {"name": name}
    else:
        loaded = load_hardware(name)
        sources, head = loaded.sources, _summary(name, loaded) | {"notes": list(loaded.notes)}
    if as_json:
        numbers = [
            {"path": s.path, "value": s.value, "source": s.source, "inherited_from": s.inherited_from} for s in sources
        ]
        typer.echo(json.dumps(head | {"numbers": numbers}, indent=2))
        return
    for note in head.get("notes", []):
        typer.echo(f"note: {note}")
    print_table(("number", "value", "source"), [(s.path, str(s.value), _origin(s)) for s in sources], numbers=(1,))


def _origin(number: "Sourced") -> str:
    """The source of a number, and the file that gives it where the one shown inherits it."""
    return f"{number.source} [{number.inherited_from}]".lstrip() if number.inherited_from else number.source


def _summary(name: str, hardware: "Hardware") -> dict[str, Any]:
    """The figures people ask for first, in base units."""
    return {
        "name": name,
        "title": hardware.name,
        **{figure: hardware.accelerator.__getattribute__(figure) for figure in OF_ACCELERATOR},
        **{figure: hardware.network.__getattribute__(figure) for figure in OF_NETWORK},
        "default_stack": hardware.default_stack,
        "price_per_gpu_hour_USD": hardware.price_per_gpu_hour_usd,
    }


def _print_table(every: dict[str, "Hardware"], stacks: list[str]) -> None:
    rows = []
    for name, one in every.items():
        acc, net = one.accelerator, one.network
        fp8 = f"{acc.fp8_peak_flops_per_s / TERA:,.0f}" if acc.fp8_peak_flops_per_s else "-"
        rows.append(
            (
                name,
                f"{acc.bf16_peak_flops_per_s / TERA:,.0f}",
                fp8,
                f"{acc.hbm_bytes / GIGA:,.0f}",
                f"{acc.hbm_bytes_per_s / GIGA:,.0f}",
                f"{net.domain_size} {net.topology}",
                f"{net.link_bytes_per_s / GIGA:,.0f}",
                f"{net.nics_per_node}x{net.nic_bytes_per_s / GIGA:,.0f}",
            )
        )
    header = ("hardware", "BF16 TF", "FP8 TF", "HBM GB", "GB/s", "domain", "link GB/s", "NICs GB/s")
    print_table(header, rows, numbers=(1, 2, 3, 4, 6, 7))
    typer.echo("TF: 10^12 FLOP/s, dense peak. GB/s: per device (NICs: per node), one direction.")
    typer.echo(textwrap.fill(f"Software stacks: {', '.join(stacks)}", 80, subsequent_indent="  "))
    typer.echo("Every number with its source: primus-search hardware NAME")
