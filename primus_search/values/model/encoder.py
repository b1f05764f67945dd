"""Encoders of towers as models of one dense layer, for the formulas of time and memory."""

from primus_search.values.model.decoder import Model
from primus_search.values.model.tower import Tower


def encoder_model(tower: Tower) -> Model:
    """One encoder layer as a model, whose attention the caller takes as going both ways."""
    return Model(
        name=tower.name,
        num_layers=1,
        hidden=tower.hidden,
        ffn_hidden=tower.ffn_hidden,
        num_heads=tower.num_heads,
        num_kv_heads=tower.num_heads,
        head_dim=tower.head_dim,
        vocab_size=1,
        is_gated=tower.is_gated,
        has_linear_bias=not tower.is_gated,
    )
