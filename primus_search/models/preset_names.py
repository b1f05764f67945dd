"""The preset that a name stands for: of the hub, of a folder or a cache, of a model that was trained further.

model_named("meta-llama/Llama-3.1-8B-Instruct", {})      # the preset llama3.1_8b
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from primus_search.files.known_keys import key_table
from primus_search.models.presets import Preset, presets
from primus_search.values.model import Model


def model_named(name: str, own: Mapping[str, str]) -> Model | None:
    """The preset that a name of the hub, or the last folder of a path, stands for; None where none does."""
    known = presets()
    if (preset := own.get(name, name)) in known:
        return known[preset].model
    tail, hub = _tail(name), _hub_names(known)
    plain = {bare: held for one, held in hub.items() if (bare := _bare(one)) not in hub}
    dotted = re.sub(r"(?<=\d)(?:___|_(?=\db))(?=\d)", ".", tail)  # ModelScope's folders and types
    tries = (tail, tail.rpartition("--")[2], tail.partition("_")[2], dotted)  # of caches, behind the owner
    words = [word for one in tries for word in _stripped(one)]
    found = next((one for word in words if (one := hub.get(word) or plain.get(word))), "")
    if not found:
        called = next((called for one in tries if (called := _bare(one).replace("-", "_")) in known), "")
        found = called or language_part(name) or {**plain, **hub}.get(_base(name, hub), "")
    return known[found].model if found else None


def no_preset(name: str) -> str:
    """Why a model is not priced by a name that no preset has: with its family where the name says one without a reader.

    The family is the longest that the name begins with word by word: `gpt-j-6b` is gptj, `olmo-2-7b` is olmo2.
    """
    words = re.split(r"[-_]", _tail(name))
    begun = ["".join(words[:count]) for count in range(len(words), 0, -1)]
    table = key_table("families")
    why = {one.replace("_", ""): (one, reason) for reason, many in table["not_modelled"].items() for one in many}
    read = {one.replace("_", "") for row in table["families"].values() for one in row["types"]}
    longest = next((one for one in begun if one in why or one in read), "")
    reason = " ('{}' is not modelled: {})".format(*why[longest]) if longest in why else ""
    return f"takes its model from {name}, which no preset is{reason}"


def named_after(name: str) -> str:
    """The last part of the name of a preset's model, with its size, that a name has; empty where it has none.

    What is trained further keeps its layers: `Qwen3-0.6B-Reverse-Text-SFT` is Qwen3-0.6B, `Hermes-3-Llama-3.1-8B`
    Llama-3.1-8B.
    """
    return _base(name, _hub_names(presets()))


def _base(name: str, hub: Mapping[str, str]) -> str:
    """What `_named_after` finds in the last folder of a name, else in one of the `MOST_FOLDERS` above, of a path."""
    folders = [one.lower() for one in name.strip().rstrip("/").split("/")]
    above = folders[-2 : -2 - MOST_FOLDERS : -1] if len(folders) > 2 else []
    tried = (one if one in hub else _named_after(one, hub) for one in above)
    return _named_after(_tail(name), hub) or ("" if _is_known(_tail(name), hub) else next(filter(None, tried), ""))


MOST_FOLDERS = 3
"""Folders above the last one of a path that may be called after the model that is in it."""


def _is_known(tail: str, hub: Mapping[str, str]) -> bool:
    plain = {_bare(one) for one in hub}
    return any(one in hub or one in plain for one in _stripped(tail))


def language_part(name: str) -> str:
    """The preset that the language model of a named model of several parts is; empty where it is none."""
    parts: Mapping[str, str] = key_table("language_parts")["models"]
    return parts.get(_bare(_tail(name)), "")


def preset_in(text: str) -> str:
    """The first preset that a text names as the hub does; empty where it names none."""
    hub = _hub_names(presets())
    words = (_tail(word) for word in re.findall(r"[\w.-]{1,80}/[\w.-]{1,80}", text))
    return next((hub[word] for word in words if word in hub), "")


_CACHED = re.compile(r"(?:^|/)models--([\w.-]{1,80}?)--([\w.-]{1,120})(?:/|$)")
"""The folder of a model in the hub's cache, snapshots below it."""


def _tail(name: str) -> str:
    cached = _CACHED.search(name)
    plain = re.sub(r"/snapshots(?:/[^/]{0,80})?$", "", name.strip().rstrip("/"))  # of ModelScope's
    tail = (cached[2] if cached else plain.rpartition("/")[2]).lower()
    return re.sub(r"^<(?:path[-_ ]to[-_ ])?(?:(?:the|your)[-_ ])?|>$", "", tail)  # to be filled in


def _stripped(tail: str) -> Iterator[str]:
    """A name, and what is left of it without one after another of the ends that leave its sizes as they are."""
    yield tail
    while (found := _pattern("kinds", r"[-_](?:{})$").search(tail)) and found.start():
        yield (tail := tail[: found.start()])


def _bare(tail: str) -> str:
    """A name without the ends that leave its sizes as they are."""
    return _pattern("kinds", r"(?:[-_](?:{})){{1,6}}$").sub("", tail)


def _hub_names(known: Mapping[str, Preset]) -> dict[str, str]:
    """The preset of the last part of each name of the hub."""
    return {_tail(hub): name for name, preset in known.items() for hub in preset.tokenizers}


def _named_after(tail: str, hub: Mapping[str, str]) -> str:
    others = _pattern("other_sizes", "{}")
    if _is_known(tail, hub):
        return ""
    text = f"-{_joined(tail)}-"
    names = sorted({*hub, *map(_bare, hub)})
    known = {_joined(one.removeprefix("meta-")): one for one in names} | {_joined(one): one for one in names}
    inside = [one for one in known if f"-{one}-" in text and re.search(r"\d[bm]", one)]
    inside = [one for one in inside if not others.search(text.replace(f"-{one}-", "-", 1))]
    return known[max(inside, key=len)] if inside else ""


def _joined(name: str) -> str:
    """A name with its version behind its family: `llama3-8b` of `Llama-3-8B`."""
    return re.sub(r"(?<=[a-z])(?<!\d[a-z])-(?=\d)", "", name.replace("_", "-"))


@lru_cache
def _pattern(row: str, around: str) -> re.Pattern[str]:
    """A row of `language_parts`, any of its words, in a pattern."""
    return re.compile(around.format("|".join(key_table("language_parts")[row])))
