"""Tables of training runs, published ones converted, as records that can be projected."""
