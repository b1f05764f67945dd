"""For maintainers: fit of the shipped numbers, translation of published tables, ground truth by training."""
