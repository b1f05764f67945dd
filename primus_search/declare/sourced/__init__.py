"""Readers of sourced numbers: YAML trees as dataclasses, `extends:`, tables of measured calls, measured ranges."""
