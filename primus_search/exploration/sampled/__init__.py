"""Sampled search with Optuna: proposals, screening, the study and its check."""
