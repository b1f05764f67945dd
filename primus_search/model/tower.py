"""Encoders of other inputs beside a language model: vision and audio towers with their projectors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A patch embedding, an encoder and a projector into the hidden size of the language model.

    params  its parameters, projector included. It is named beside the language model and not projected.
    """

    name: str
    params: int
    num_layers: int = 0
    hidden: int = 0
