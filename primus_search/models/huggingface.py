"""Models from a HuggingFace `config.json`: one reader per family of architectures (`families`), by `model_type`.

Every field is read, or listed in `spaces/keys/huggingface.yaml` as one that decides no size, or makes the file refused
by its name; a field that is null, false, zero or empty switches nothing on and may be unknown. Defaults of absent
fields are those of the `transformers` configuration class of the family (version 5.23): sizes in
`spaces/keys/class_defaults.yaml`, the rest in the family's reader.

Vocabulary: `vocab_size` as published, padded to a multiple of 128 (see `presets`). Encoders of other inputs are named
as towers of the model, with their parameters where the family is known.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, did_you_mean
from primus_search.files.fields import Fields, Located
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.search_path import title
from primus_search.files.source import Document
from primus_search.files.unread_keys import drop_ignored, refuse_unread
from primus_search.models.build import build_model
from primus_search.models.families.family_table import FAMILIES, TEXT_OF
from primus_search.models.families.towers import SECTIONS, towers
from primus_search.models.model_constants import of_huggingface
from primus_search.values.model import Model

OFF: tuple[Any, ...] = (None, False, 0, "", [], {})
TEXT_SECTION = "text_config"
TIE = "tie_word_embeddings"


def from_document(document: Document, ignore: Collection[str] = (), vocab_size: int | None = None) -> Model:
    """The model a config.json describes; InputError with every problem.

    ignore: fields left out knowingly. vocab_size: rows of the embedding before padding, instead of the file's.
    """
    outer = Fields.of(document, document.data)
    has_text = isinstance(document.data.get(TEXT_SECTION), dict)
    fields = Fields.of(document, document.data[TEXT_SECTION], (TEXT_SECTION,), into=outer) if has_text else outer
    ignored = drop_ignored(outer, [key for key in ignore if key in outer.entries or key not in fields.entries])
    if has_text:
        ignored += drop_ignored(fields, [key for key in ignore if key in fields.entries])
        _settle_ties(outer, fields)
    if vocab_size is not None:
        fields.entries = {**fields.entries, "vocab_size": Located(vocab_size, fields.where)}
    outer_family = outer.word("model_type", "")
    family = _family(document, fields, outer_family, has_text)
    filled = _fill_in(fields, family)
    values = FAMILIES[family](fields)
    fields.read.update(filled)
    values["constants"] = of_huggingface(fields, family)
    values["towers"] = towers(outer, outer_family, values)
    known = known_keys("huggingface")
    for section in (outer, fields) if has_text else (fields,):
        section.read.update(
            (TEXT_SECTION, *SECTIONS, "model_type", *(k for k, v in section.entries.items() if _is_off(v)))
        )
        refuse_unread(section, known)
    name = title(str(document.data.get("_name_or_path") or Path(document.name).absolute()).rstrip("/"))
    return build_model(outer, name=name, source=document.name, ignored=ignored, **values)


def _settle_ties(outer: Fields, fields: Fields) -> None:
    """Give the text section the ties of the whole configuration, as its class takes them (`ties` of families.yaml)."""
    rule = key_table("families")["ties"].get(outer.word("model_type", ""), {"counts": "outer"})
    given = [one.entries[TIE] for one in (outer, fields) if one.has(TIE)]
    if rule["counts"] == "outer" and (outer.has(TIE) or "default" in rule):
        chosen = outer.entries[TIE] if outer.has(TIE) else Located(rule["default"], outer.where)
    elif rule["counts"] == "either" and given:
        chosen = next((one for one in given if one.value is True), given[0])
    else:
        return
    fields.entries = {**fields.entries, TIE: chosen}


def _fill_in(fields: Fields, family: str) -> tuple[str, ...]:
    """Add what the family's configuration class has where the file leaves a key out; the keys added.

    A key under another name that the class takes (`num_experts` of Mixtral) is renamed; both at once stay as they are.
    """
    table = key_table("class_defaults")
    for other, key in table["aliases"].get(family, {}).items():
        if other in fields.entries and key not in fields.entries:
            fields.entries = {key if name == other else name: one for name, one in fields.entries.items()}
    missing = {
        k: Located(v, fields.where) for k, v in table["defaults"].get(family, {}).items() if k not in fields.entries
    }
    fields.entries = {**fields.entries, **missing}
    return tuple(missing)


def _is_off(given: Located) -> bool:
    return given.value in OFF


def _family(document: Document, fields: Fields, outer: str, has_text: bool) -> str:
    """The family that reads the text model; InputError naming the known ones."""
    own = fields.word("model_type", "") if has_text else outer
    family = own if own in FAMILIES and own != outer else TEXT_OF.get(outer, own) if has_text else own
    if has_text and outer not in TEXT_OF and outer not in FAMILIES:
        family = outer
    if family in FAMILIES:
        return family
    known = sorted({*FAMILIES, *TEXT_OF})
    if why := next((why for why, many in key_table("families")["not_modelled"].items() if family in many), ""):
        raise InputError([document.problem(("model_type",), f"'{family}' is not modelled: {why}")])
    what = f"unknown model_type '{family}'{did_you_mean(family, known)} - known: {', '.join(known)}"
    raise InputError([document.problem(("model_type",), what)])
