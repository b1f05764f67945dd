"""How far a projection can be trusted: coverage, evidence, error bands."""
