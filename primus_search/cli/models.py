"""`primus-search models [NAME]`: the presets, their sizes and what is published about them."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from primus_search.declare.presets import Preset
    from primus_search.values.model import LayerKind, Model

BILLION = 1e9
LONG = 9999
"""Above it a number is written with commas; up to it as a configuration has it."""
REPEATED = ("layers", "heads", "kv_heads", "experts")
"""Keys of a preset's summary that its fields say again."""


def models(
    name: Annotated[str | None, typer.Argument(help="A preset, a Primus/Megatron YAML or a config.json.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="KEY", help="Leave out this key of the file; repeatable.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Rows of the embedding before padding, instead of the file's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """The model presets and their sizes; with a NAME, everything about one model."""
    from primus_search.declare.presets import presets

    if name is None:
        known = presets()
        if as_json:
            typer.echo(json.dumps([_summary(key, preset) for key, preset in known.items()], indent=2))
        else:
            _print_table(known)
        return
    details = _details(name, tuple(ignore or ()), vocab_size)
    if as_json:
        typer.echo(json.dumps(details, indent=2))
    else:
        _print_details(details)


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
    import dataclasses

    from primus_search.declare.model_files import load_model
    from primus_search.declare.presets import load_preset, presets

    known = presets()
    head: dict[str, Any] = _summary(name, load_preset(name)) if name in known else {}
    model = _of_experiment(name) if not ignore and vocab_size is None else None
    model = model or load_model(name, ignore=ignore, vocab_size=vocab_size)
    kinds = [_kind(model, kind) for kind in model.kinds]
    fields = {f.name: model.__getattribute__(f.name) for f in dataclasses.fields(model)}
    fields |= {"latent": model.latent and dataclasses.asdict(model.latent)}
    fields |= {"moe": model.moe and dataclasses.asdict(model.moe)}
    fields |= {"constants": dataclasses.asdict(model.constants)}
    for listed in ("moe_layers", "windows", "mixers", "feed_forwards"):
        del fields[listed]
    fields |= {"towers": [dataclasses.asdict(tower) for tower in model.towers], "ignored": list(model.ignored)}
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
    from primus_search.declare.launch.experiments import is_experiment, read_experiment

    path = Path(name)
    if not path.is_file() or not is_experiment(path):
        return None
    experiment = read_experiment(path)
    if experiment.model is None:
        raise InputError(experiment.model_problems)
    return experiment.model


def _kind(model: "Model", kind: "LayerKind") -> dict[str, Any]:
    """One kind of layer: its mixer and feed-forward in words, how many there are, the parameters of one."""
    return {
        "is_moe": kind.is_moe,
        "window": kind.window,
        "layers": model.layers.count(kind),
        "mixer": model.mixer(kind).name,
        "feed_forward": model.feed_forward_name(kind),
        "params": model.layer_params(kind),
    }


def _print_table(known: dict[str, "Preset"]) -> None:
    from primus_search.cli.output.written_files import print_table

    rows = []
    for name, preset in known.items():
        model = preset.model
        attention = "MLA" if model.latent else f"{model.num_heads}/{model.num_kv_heads}"
        experts = f"{model.moe.num_experts} top {model.moe.top_k}" if model.moe else "-"
        total, active = f"{model.total_params / BILLION:,.2f}", f"{preset.active_params / BILLION:,.2f}"
        rows.append((name, total, active, str(model.num_layers), str(model.hidden), attention, experts))
    print_table(("model", "total B", "active B", "layers", "hidden", "heads/kv", "experts"), rows, numbers=(1, 2, 3, 4))
    typer.echo("B: 10^9 parameters; active as the publisher counts them.")
    typer.echo("Every size and its source: primus-search models NAME")


def _print_details(details: dict[str, Any]) -> None:
    lines = list(_lines(details))
    width = max(len(key) for key, _ in lines)
    for key, text in lines:
        typer.echo(f"{key:<{width}}  {text}")


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
