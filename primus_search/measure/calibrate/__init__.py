"""Fit an accelerator's efficiencies to measured kernels: read, predict, fit, judge, write with provenance.

    points     rows of a measurement CSV as typed points, and the laws of `cost/` on them
    kernel_fit robust least squares on log time, left-out errors, refusal of what the data does not identify; the
               fitted numbers back into a hardware YAML

Nothing here knows a rate: the starting values are those of the hardware file, the bounds those of
`kernels.yaml`.
"""
