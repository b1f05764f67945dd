"""Tables of training runs, published ones converted, as records that can be projected."""

from primus_search.evidence.published.convert import measured_table, validated

__all__ = ["measured_table", "validated"]
