"""Compare projections with measured runs: project the records of a table, score the errors per group."""
