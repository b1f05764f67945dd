"""Measured evidence: the candidate's own layers as torch modules, traced without memory or timed on a device; and a
device's hardware file fitted to its measured kernels (`calibrate/`).

torch is imported here and nowhere else. This package's front door stays light: import the module you need, for example
`primus_search.measure.trace` or `primus_search.measure.revalidate`.

May import: files, cost, values, base.
"""
