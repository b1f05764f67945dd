"""`primus-search models [NAME]` and `hardware [NAME]`: presets and machines, every number with its source."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.units import GIGA, TERA
from primus_search.cli.output import print_json, print_table

if TYPE_CHECKING:
    from primus_search.files.hardware_files import Hardware
    from primus_search.models.presets import Preset
    from primus_search.values.model import Model

LONG = 9999  # above it a number is written with commas; up to it as a configuration has it
REPEATED = ("layers", "heads", "kv_heads", "experts")  # keys of a preset's summary that its fields say again


def models(
    name: str | None = None, ignore: list[str] | None = None, vocab_size: int | None = None, as_json: bool = False
) -> None:
    """The model presets and their sizes; with a NAME, everything about one model."""
    from primus_search.models.presets import presets

    if name is None:
        known = presets()
        if as_json:
            print_json([_summary(key, preset) for key, preset in known.items()])
        else:
            _print_table(known)
        return
    details = _details(name, tuple(ignore or ()), vocab_size)
    if as_json:
        print_json(details)
        return
    lines = list(_lines(details))
    width = max(len(key) for key, _ in lines)
    for key, text in lines:
        typer.echo(f"{key:<{width}}  {text}")


def _summary(name: str, preset: "Preset") -> dict[str, Any]:
    """Sizes of a preset; active parameters in its publisher's convention."""
    model, published = preset.model, preset.published
    return {
        "name": name,
        "title": preset.title,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "experts": model.moe.num_experts if model.moe else 0,
        "vocab_size": model.vocab_size,
        "total_params": model.total_params,
        "active_params": preset.active_params,
        "published_total_params": published.total_params if published else None,
        "published_active_params": (published.active_params or None) if published else None,
        "published_source": published.source if published else None,
        "source": model.source,
    }


def _details(name: str, ignore: tuple[str, ...], vocab_size: int | None) -> dict[str, Any]:
    """Every field and count of one model, preset or imported."""
    from primus_search.models.model_files import load_model
    from primus_search.models.presets import load_preset, presets

    known = presets()
    head: dict[str, Any] = _summary(name, load_preset(name)) if name in known else {}
    model = _of_experiment(name) if not ignore and vocab_size is None else None
    model = model or load_model(name, ignore=ignore, vocab_size=vocab_size)
    listed = ("moe_layers", "windows", "mixers", "feed_forwards")
    fields = {f.name: model.__getattribute__(f.name) for f in dataclasses.fields(model) if f.name not in listed}
    for part in ("latent", "moe", "constants"):
        fields[part] = fields[part] and dataclasses.asdict(fields[part])
    fields |= {"towers": [dataclasses.asdict(tower) for tower in model.towers], "ignored": list(model.ignored)}
    kinds = [
        {
            "is_moe": kind.is_moe,
            "window": kind.window,
            "layers": model.layers.count(kind),
            "mixer": model.mixer(kind).name,
            "feed_forward": model.feed_forward_name(kind),
            "params": model.layer_params(kind),
        }
        for kind in model.kinds
    ]
    counts = {
        "total_params": model.total_params,
        "active_params": head.get("active_params", model.active_params),
        "active_params_with_embedding": model.active_params,
        "embedding_params": model.embedding_params,
        "attention_params_per_layer": model.attention_params,
        "dense_mlp_params_per_layer": model.dense_mlp_params,
        "expert_params": model.expert_params,
        "mtp_params": model.mtp_params * model.num_mtp_layers,
    }
    return head | fields | {"layer_kinds": kinds} | counts


def _of_experiment(name: str) -> "Model | None":
    """The model of an experiment file; None for other files and names. Raises `InputError` where it cannot be read."""
    from pathlib import Path

    from primus_search.base.errors import InputError
    from primus_search.launch.read.experiments import is_experiment, read_experiment

    path = Path(name)
    if not path.is_file() or not is_experiment(path):
        return None
    experiment = read_experiment(path)
    if experiment.model is None:
        raise InputError(experiment.model_problems)
    return experiment.model


def _print_table(known: dict[str, "Preset"]) -> None:
    rows = []
    for name, preset in known.items():
        model = preset.model
        attention = "MLA" if model.latent else f"{model.num_heads}/{model.num_kv_heads}"
        experts = f"{model.moe.num_experts} top {model.moe.top_k}" if model.moe else "-"
        total, active = f"{model.total_params / GIGA:,.2f}", f"{preset.active_params / GIGA:,.2f}"
        rows.append((name, total, active, str(model.num_layers), str(model.hidden), attention, experts))
    print_table(("model", "total B", "active B", "layers", "hidden", "heads/kv", "experts"), rows, numbers=(1, 2, 3, 4))
    typer.echo("B: 10^9 parameters; active as the publisher counts them.")
    typer.echo("Every size and its source: primus-search models NAME")


def _lines(details: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and text of what a terminal shows: every fact once, sections key by key."""
    for key, value in details.items():
        if key in REPEATED or value in (None, ""):
            continue
        if isinstance(value, dict):
            yield from _lines({f"{key}.{inner}": one for inner, one in value.items()})
        elif key == "layer_kinds":
            yield key, "; ".join(f"{k['layers']} x {k['mixer']} + {k['feed_forward']}" for k in value)
        elif key == "towers":
            yield from (("tower", f"{t['name']}, {t['params']:,} parameters") for t in value)
        elif key == "ignored":
            yield from (("ignored as told", name) for name in value)
        elif isinstance(value, bool):
            yield key, "yes" if value else "no"
        else:
            yield key, f"{value:,.0f}" if isinstance(value, int | float) and value > LONG else str(value)


OF_ACCELERATOR = (
    "vendor", "bf16_peak_flops_per_s", "fp8_peak_flops_per_s", "fp4_peak_flops_per_s", "hbm_bytes", "hbm_bytes_per_s",
)  # fmt: skip
OF_NETWORK = ("gpus_per_node", "domain_size", "topology", "link_bytes_per_s", "nics_per_node", "nic_bytes_per_s")


def hardware(name: str | None = None, as_json: bool = False) -> None:
    """The accelerators and networks; with a NAME, every number of one file (or software stack) with its source.

    [FILE] behind a source names the file that the number is inherited from (extends:).
    """
    from primus_search.files.hardware_files import load_hardware, read_stack
    from primus_search.files.search_path import FileKind, name_and_version, names

    stacks = names(FileKind.STACK)
    if name is None:
        every = {key: load_hardware(key) for key in names(FileKind.HARDWARE)}
        if as_json:
            print_json([_machine_summary(key, one) for key, one in every.items()])
        else:
            _print_machines(every, list(stacks))
        return
    if name_and_version(name)[0] in stacks:
        sources = read_stack(name)[1]
        head: dict[str, Any] = {"name": name}
    else:
        loaded = load_hardware(name)
        sources, head = loaded.sources, _machine_summary(name, loaded) | {"notes": list(loaded.notes)}
    if as_json:
        print_json(head | {"numbers": [dataclasses.asdict(number) for number in sources]})
        return
    for note in head.get("notes", []):
        typer.echo(f"note: {note}")
    rows = [
        (s.path, str(s.value), f"{s.source} [{s.inherited_from}]".lstrip(" ") if s.inherited_from else s.source)
        for s in sources
    ]
    print_table(("number", "value", "source"), rows, numbers=(1,))


def _machine_summary(name: str, hardware: "Hardware") -> dict[str, Any]:
    """The figures people ask for first, in base units."""
    return {
        "name": name,
        "title": hardware.name,
        **{figure: hardware.accelerator.__getattribute__(figure) for figure in OF_ACCELERATOR},
        **{figure: hardware.network.__getattribute__(figure) for figure in OF_NETWORK},
        "default_stack": hardware.default_stack,
        "price_per_gpu_hour_USD": hardware.price_per_gpu_hour_usd,
    }


def _print_machines(every: dict[str, "Hardware"], stacks: list[str]) -> None:
    rows = []
    for name, one in every.items():
        acc, net = one.accelerator, one.network
        fp8 = f"{acc.fp8_peak_flops_per_s / TERA:,.0f}" if acc.fp8_peak_flops_per_s else "-"
        bf16 = f"{acc.bf16_peak_flops_per_s / TERA:,.0f}"
        nics = f"{net.nics_per_node}x{net.nic_bytes_per_s / GIGA:,.0f}"
        sizes = [f"{size / GIGA:,.0f}" for size in (acc.hbm_bytes, acc.hbm_bytes_per_s, net.link_bytes_per_s)]
        shown = f"{name}*" if acc.ancestor else name
        rows.append((shown, bf16, fp8, *sizes[:2], f"{net.domain_size} {net.topology}", sizes[2], nics))
    header = ("hardware", "BF16 TF", "FP8 TF", "HBM GB", "GB/s", "domain", "link GB/s", "NICs GB/s")
    print_table(header, rows, numbers=(1, 2, 3, 4, 6, 7))
    typer.echo(
        "TF: 10^12 FLOP/s, dense peak. GB/s: per device (NICs: per node), one direction.\n"
        "*: never measured (planned, or a card of a data sheet)."
    )
    typer.echo(textwrap.fill(f"Software stacks: {', '.join(stacks)}", 80, subsequent_indent="  "))
    typer.echo("Every number with its source: primus-search hardware NAME")
