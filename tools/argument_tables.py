"""Tables of every argument of a framework's release, with type and default, from the framework's own parser or classes.

    python -m tools.argument_tables CHECKOUTS                      # writes spaces/keys/arguments/*.tsv
    python -m tools.argument_tables CHECKOUTS megatron@core_0.20   # one of them

CHECKOUTS is a folder of the frameworks' sources, `argument_tables.yaml` says which. With the table of Primus goes one
of its own files of models and trainers, `spaces/keys/primus_files.tsv`. A line of a table is one argument:

    name, type (flag, int, float, str, list of str, list[int], list[float], pattern, table), default, choices, spellings

Defaults and choices are JSON; a default that the source computes is `?` and its expression. A spelling is a flag of the
command line; one with a `!` before it sets the argument to false. `pattern` is a number or a list written as Python.
"""

import argparse
import ast
import enum
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from primus_search.files.source import read
from primus_search.models.megatron_yaml import file_settings
from tools.class_fields import Field, Sources

TABLES: Mapping[str, Any] = read(Path(__file__).with_name("argument_tables.yaml")).data
FOLDER = Path(__file__).parents[1] / "spaces" / "keys" / "arguments"
UNKNOWN = "?"
"""What stands before a default that is an expression of the source."""


@dataclass(frozen=True, slots=True, order=True)
class Argument:
    """One argument; `default` and `choices` as JSON, `spellings` its flags, `!` before one that sets it to false."""

    name: str
    type: str
    default: str
    choices: str = ""
    spellings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return "\t".join((self.name, self.type, self.default, self.choices, " ".join(self.spellings))).rstrip("\t")


def written(value: Any) -> str:
    """A value as JSON; an enumeration's member as its name, one of torch's types as its last part."""

    def plain(one: Any) -> Any:
        if isinstance(one, enum.Enum):
            return one.name
        if isinstance(one, list | tuple):
            return [plain(each) for each in one]
        if isinstance(one, dict):
            return {str(key): plain(each) for key, each in one.items()}
        text = str(one)
        return one if one is None or isinstance(one, bool | int | float | str) else text.removeprefix("torch.")

    return json.dumps(plain(value), separators=(",", ":"))


def of_parser(parser: argparse.ArgumentParser) -> list[Argument]:
    """Arguments of a parser, sorted; actions that write the same argument are one line."""
    found: dict[str, Argument] = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        kind = _type_of_action(action)
        choices = written(list(action.choices)) if action.choices and kind != "flag" else ""
        one = Argument(action.dest, kind, written(action.default), choices, tuple(_spellings(action)))
        above = found.get(action.dest)
        found[action.dest] = one if above is None else replace(above, spellings=(*above.spellings, *one.spellings))
    return sorted(found.values())


def _type_of_action(action: argparse.Action) -> str:
    if action.nargs == 0 or (isinstance(action.default, bool) and action.type is None):
        return "flag"
    name = getattr(action.type, "__name__", "str")
    if action.nargs in ("+", "*") or isinstance(action.nargs, int):
        return f"list[{name}]" if name in ("int", "float") else "list"
    named = {"bool": "str", "enum_type_handler": "str", "int": "int", "float": "float", "str": "str"}
    return named.get(name, "pattern")


def _spellings(action: argparse.Action) -> Iterator[str]:
    is_either = isinstance(action, argparse.BooleanOptionalAction)
    for flag in action.option_strings:
        sets_false = flag.startswith("--no-") if is_either else isinstance(action, argparse._StoreFalseAction)
        yield f"{'!' * sets_false}{flag}"


def of_defaults(home: Path, files: Iterable[str], parser: list[Argument]) -> list[Argument]:
    """Arguments of Primus: its YAML defaults over those of Megatron's parser."""
    values: dict[str, Any] = {}
    for file in files:
        values |= file_settings(home / file)
    known = {one.name: replace(one, spellings=()) for one in parser}
    for name, value in values.items():
        above = known.get(name)
        kind = above.type if above else _type_of_value(value)
        known[name] = Argument(name, kind, written(value), above.choices if above else "")
    return sorted(known.values())


def _type_of_value(value: Any) -> str:
    kinds = {bool: "flag", int: "int", float: "float", list: "list", dict: "table"}
    return kinds.get(type(value), "str")


def of_classes(roots: list[Path], classes: Mapping[str, tuple[str, str]]) -> list[Argument]:
    """Arguments of configuration classes, each below its prefix."""
    sources = Sources(roots)
    found: dict[str, Argument] = {}
    for prefix, (file, name) in classes.items():
        for field in sources.fields(roots[0] / file, name):
            key = f"{prefix}.{field.name}" if prefix else field.name
            found[key] = Argument(key, *_of_annotation(field))
    sections = {key.rpartition(".")[0] for key in found}
    return sorted(one for key, one in found.items() if key not in sections)


def _of_annotation(field: Field) -> tuple[str, str, str]:
    """Type, default and choices of a field."""
    text = re.sub(r"Annotated\[(.*?),.*\]$", r"\1", field.annotation)
    text = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$", r"\1", text)
    kinds = [one.strip() for one in re.split(r"\|(?![^\[]*\])", text) if one.strip() != "None"]  # not inside brackets
    choices = re.match(r"(?:typing\.)?Literal\[(.*)\]$", kinds[0]) if kinds else None
    default = default_of(field.default)
    if choices:
        given = list(ast.literal_eval(f"({choices[1]},)"))
        return _type_of_value(given[0]), default, written(given)
    head = "float" if "float" in kinds else kinds[-1].partition("[")[0].lower() if kinds else "str"
    if head in ("list", "tuple"):
        item = re.match(r"\w+\[(int|float)\b", kinds[-1])
        return f"list[{item[1]}]" if item else "list", default, ""
    named = {"bool": "flag", "int": "int", "float": "float", "dict": "table", "mapping": "table"}
    return named.get(head, "str"), default, ""


def default_of(text: str) -> str:
    """A default of a source as JSON, or as `?` and the expression."""
    if not text:
        return UNKNOWN
    made = {"list()": [], "dict()": {}, "tuple()": [], "float('inf')": float("inf")}
    if text in made:
        return written(made[text])
    body = text.removeprefix("lambda: ").removesuffix("()") if text.startswith("lambda: ") else text
    try:
        return written(_value(ast.parse(body, mode="eval").body))
    except (ValueError, SyntaxError, TypeError):
        return UNKNOWN + " ".join(text.split())


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Attribute(value=ast.Name(id="torch" | "signal")):
            return node.attr
        case ast.BinOp(op=ast.Pow()):
            return _value(node.left) ** _value(node.right)
        case ast.BinOp(op=ast.Mult()):
            return _value(node.left) * _value(node.right)
    return ast.literal_eval(node)


def table(name: str, checkouts: Path) -> list[Argument]:
    """Arguments of one release. FileNotFoundError where its sources are not there."""
    row = TABLES[name]
    installed = row.get("installed")
    home = Path(str(metadata.distribution(installed).locate_file(""))) if installed else checkouts / row["folder"]
    if not home.is_dir():
        raise FileNotFoundError(f"{name}: no folder {home}")
    if row["reads"] == "classes":
        classes = {"": row["root"], **row.get("beside", {})}
        return of_classes([home, *(checkouts / one for one in row.get("also", ()))], classes)
    from tools.framework_imports import megatron

    module = megatron(checkouts / row.get("parser", row["folder"]))
    parser = of_parser(module.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)))
    return parser if row["reads"] == "parser" else of_defaults(home, row["files"], parser)


def text(name: str, arguments: Iterable[Argument]) -> str:
    """The file of a table."""
    row = TABLES[name]
    head = f"# {name}: {row['repository']} {row['commit']} ({row['date']}), by `python -m tools.argument_tables`"
    return "\n".join((head, "# name\ttype\tdefault\tchoices\tspellings", *(one.line for one in arguments))) + "\n"


def own_files(home: Path) -> str:
    """Primus' own files of models and trainers as a table: path and keys as JSON."""
    row = TABLES["primus"]
    head = f"# Files of {row['repository']} {row['commit']} ({row['date']}), by `python -m tools.argument_tables`"
    files = sorted(file.relative_to(home) for folder in row["own"] for file in (home / folder).glob("*.yaml"))
    return "\n".join((head, *(f"{file}\t{written(read(home / file).data)}" for file in files))) + "\n"


def main(arguments: list[str]) -> None:
    checkouts, names = Path(arguments[0]), arguments[1:] or list(TABLES)
    if "primus" in names:
        (FOLDER.parent / "primus_files.tsv").write_text(own_files(checkouts / "primus"), encoding="utf-8")
    if len(names) == 1:
        (FOLDER / f"{names[0]}.tsv").write_text(text(names[0], table(names[0], checkouts)), encoding="utf-8")
        return
    for name in names:  # a process each: releases of a framework have the same module names
        subprocess.run([sys.executable, "-m", "tools.argument_tables", str(checkouts), name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
