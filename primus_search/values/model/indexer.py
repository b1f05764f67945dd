"""The indexer of sparse attention: small heads that score every earlier token, so that attention reads the best few."""

from dataclasses import dataclass

from primus_search.values.model.mixer import Split, WeightMatrix, attended_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Scores of DeepSeek sparse attention (DSA, `block` 1) or of block-sparse attention (MiniMax-M3).

    top_k       keys a query may read, whole blocks counted by token
    query_rank  width of the compressed queries that the indexer's queries are made of; 0: from the hidden state
    block       tokens of one selected block
    has_weights a learned weight per head and token; norm_params: parameters of its norms
    has_own     false in a layer that reuses the selection of an earlier one (GLM-5.2) and has no weights of its own

    Source: DeepSeek-V3.2 (arXiv:2512.02556) section 2.1 for shapes: per query and key, one product of `head_dim` and
    a ReLU for each of `num_heads` heads with one shared key.
    """

    num_heads: int
    head_dim: int
    top_k: int
    query_rank: int = 0
    block: int = 1
    has_weights: bool = True
    norm_params: int = 0
    has_own: bool = True

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        """Queries, one shared key and the weights of heads; replicated over tensor-parallel ranks."""
        if not self.has_own:
            return ()
        queries = WeightMatrix(
            group="index queries", n=self.num_heads * self.head_dim, k=self.query_rank or hidden, split=Split.WHOLE
        )
        keys = WeightMatrix(group="index keys", n=self.head_dim, k=hidden, split=Split.WHOLE)
        weights = WeightMatrix(group="index keys", n=self.num_heads, k=hidden, split=Split.WHOLE)
        return (queries, keys, weights) if self.has_weights else (queries, keys)

    @property
    def vector_params(self) -> int:
        return self.norm_params if self.has_own else 0

    def scoring_flops(self, seq_length: int) -> float:
        """FLOPs per token to score all earlier tokens."""
        if not self.has_own:
            return 0.0
        return 2.0 * self.num_heads * self.head_dim * attended_tokens(seq_length, 0)
