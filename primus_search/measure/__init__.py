"""Measured evidence: the candidate's own layers as torch modules, traced without memory or timed on a device.

torch is imported here and nowhere else. This package's front door stays light: import the room you need, for example
`primus_search.measure.trace` or `primus_search.measure.revalidate`.
"""
