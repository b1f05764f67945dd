"""Which layers live on which virtual pipeline stage. Memory, time and export all ask here.

A stage holds a run of consecutive layers; the embedding is on the first virtual stage and the head (with the final
norm, the loss and any multi-token-prediction modules) on the last, unless a layout string says otherwise.
"""

import re
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from primus_search.base.errors import ScheduleError
from primus_search.values.model import Model


@dataclass(frozen=True, slots=True)
class Layout:
    """How layers are dealt to virtual stages.

    EVEN      the same number on each; only where it divides
    BALANCED  as even as can be, MTP modules counted as layers; the embedding's and the head's stage are the first to
              hold one fewer, and hold none where embedding and loss count as a layer each
    first/last  layers on the first / last virtual stage, the rest even
    text      a Megatron layout string such as `Et*4|t*4|...|t*3L` (E embedding, t layer, m MTP, L loss)
    """

    kind: str = "even"
    first: int | None = None
    last: int | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.kind == "string":
            return self.text
        if self.kind == "ends":
            return f"first={self.first},last={self.last}"
        return self.kind

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout that `str` wrote; raises ValueError where the text is none."""
        if text in ("even", "balanced"):
            return cls(text)
        ends = re.fullmatch(r"first=(\d+|None),last=(\d+|None)", text)
        if ends:
            first, last = (None if n == "None" else int(n) for n in ends.groups())
            return cls("ends", first=first, last=last)
        expand(text)
        return cls("string", text=text)


COUNTED_ENDS = 2
"""Embedding and loss, which may count as a layer each: the first and the last virtual stage then hold nothing else
(Megatron-LM megatron/core/transformer/transformer_config.py, account_for_embedding_in_pipeline_split, .._loss_..)."""

EVEN = Layout("even")
BALANCED = Layout("balanced")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers per virtual stage, in stage order.

    counts          (stages, kinds of `model.kinds`) decoder layers of each kind
    has_embedding   (stages,) 1.0 where the token embedding lives; has_head likewise; mtp counts MTP modules
    """

    counts: NDArray[np.float64]
    has_embedding: NDArray[np.float64]
    has_head: NDArray[np.float64]
    mtp: NDArray[np.float64]

    @property
    def layers(self) -> NDArray[np.float64]:
        """(stages,) decoder layers per virtual stage, all kinds."""
        result: NDArray[np.float64] = self.counts.sum(axis=1)
        return result

    @property
    def num_embeddings(self) -> NDArray[np.float64]:
        """(stages,) token embeddings held: MTP modules on a stage without one have a copy of their own.

        Source: NVIDIA/Megatron-LM core/models/gpt/gpt_model.py, `pre_process or mtp_process`; its builder agrees.
        """
        result: NDArray[np.float64] = np.maximum(self.has_embedding, self.mtp > 0.0)
        return result

    def repeated(self, copies: int) -> "StageLayers":
        """The stages of so many copies of the model, one after the other."""
        return StageLayers(**{one.name: np.concatenate([getattr(self, one.name)] * copies) for one in fields(self)})


@lru_cache(maxsize=65536)
def stage_layers(model: Model, stages: int, layout: Layout) -> StageLayers | None:
    """The layers of each of `stages` virtual stages, or None where the layout does not suit that many stages."""
    parts = _parts(model, stages, layout)
    if parts is None:
        return None
    kind_index = {kind: i for i, kind in enumerate(model.kinds)}
    counts = np.zeros((stages, len(model.kinds)))
    embedding, head, mtp = np.zeros(stages), np.zeros(stages), np.zeros(stages)
    layer = 0
    for stage, part in enumerate(parts):
        embedding[stage], head[stage], mtp[stage] = part.count("E"), part.count("L"), part.count("m")
        for _ in range(part.count("t")):
            counts[stage, kind_index[model.layers[layer]]] += 1
            layer += 1
    for array in (counts, embedding, head, mtp):
        array.setflags(write=False)
    return StageLayers(counts=counts, has_embedding=embedding, has_head=head, mtp=mtp)


def dealt_layers(model: Model, stages: int, layout: Layout) -> StageLayers:
    """`stage_layers` of a layout that suits; raises `ScheduleError` where it does not."""
    dealt = stage_layers(model, stages, layout)
    if dealt is None:
        raise ScheduleError(f"layout {layout} does not deal {model.num_layers} layers to {stages} virtual stages")
    return dealt


def layout_string(model: Model, stages: int, layout: Layout) -> str | None:
    """The Megatron layout string that says the same, or None where the layout does not suit that many stages."""
    parts = _parts(model, stages, layout)
    return None if parts is None else "|".join(parts)


def _parts(model: Model, stages: int, layout: Layout) -> list[str] | None:
    """One string of E, t, m, L per virtual stage; None if impossible."""
    if layout.kind == "string":
        parts = expand(layout.text)
        total = "".join(parts)
        fits = len(parts) == stages and total.count("t") == model.num_layers
        return parts if fits and total.count("m") in (0, model.num_mtp_layers) else None
    numbers = _numbers(model, stages, layout)
    if numbers is None:
        return None
    parts = ["t" * n for n in numbers]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * model.num_mtp_layers + "L"
    return parts


def _numbers(model: Model, stages: int, layout: Layout) -> list[int] | None:
    layers = model.num_layers
    if layout.kind == "ends":
        fixed = [n for n in (layout.first, layout.last) if n is not None]
        middle, rest = stages - len(fixed), layers - sum(fixed)
        if middle < 0 or rest < 0 or (middle == 0 and rest) or (middle and rest % middle):
            return None
        numbers = [rest // middle] * middle if middle else []
        numbers = ([layout.first] if layout.first is not None else []) + numbers
        return numbers + ([layout.last] if layout.last is not None else [])
    if layout.kind == "even":
        return [layers // stages] * stages if layers % stages == 0 else None
    if layers + COUNTED_ENDS < stages:
        return None
    # Short stages go to the end that carries the head first, then to the embedding's, then inwards from the end.
    base, extra = divmod(layers + model.num_mtp_layers, stages)
    short_first = [stages - 1, 0, *range(stages - 2, 0, -1)][:stages] if stages > 1 else [0]
    short = set(short_first[: stages - extra])
    numbers = [base + (0 if stage in short else 1) for stage in range(stages)]
    numbers[-1] -= model.num_mtp_layers
    return numbers if numbers[-1] >= 0 else None


MAX_SIGNS = 20_000
"""Upper limit of an expanded layout string: layers plus stages; the deepest published models have a few hundred."""

_TOKEN = re.compile(r"\(([^()]*)\)\*(\d+)|([EtmL])\*(\d+)|([EtmL|,])")


def expand(text: str) -> list[str]:
    """A Megatron layout string as one string per stage, repeats and commas resolved.

    >>> expand("Et*2|(t*3|)*2tL")
    ['Ett', 'ttt', 'ttt', 'tL']

    Raises ValueError naming the first character that cannot be read.
    """
    flat = _expand_tokens(text.replace(" ", ""))
    return flat.split("|")


def _repeated(part: str, times: str, text: str) -> str:
    """A part so many times. Raises ValueError, before it is expanded, where the result is longer than any model."""
    if len(times) > len(str(MAX_SIGNS)) or len(part) * int(times) > MAX_SIGNS:
        raise ValueError(_too_long(text))
    return part * int(times)


def _too_long(text: str) -> str:
    return f"layout string {text[:60]!r}: expands to more than {MAX_SIGNS:,} layers and stages"


def _expand_tokens(text: str) -> str:
    out: list[str] = []
    position, length = 0, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"layout string {text!r}: cannot read {text[position]!r} at position {position}")
        group, times, letter, letter_times, single = match.groups()
        if group is not None:
            out.append(_repeated(_expand_tokens(group), times, text))
        elif letter is not None:
            out.append(_repeated(letter, letter_times, text))
        elif single != ",":
            out.append(single)
        position = match.end()
        length += len(out[-1]) if single != "," else 0
        if length > MAX_SIGNS:
            raise ValueError(_too_long(text))
    return "".join(out)
