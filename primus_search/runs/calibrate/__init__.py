"""Fit an accelerator's efficiencies to measured kernels: read, predict, fit, judge, write with provenance.

    points     rows of a measurement CSV as typed points; which rows can be used, and in which tier they stand
    predict    the laws of `cost/` on those points
    kernel_fit robust least squares on log time, left-out errors, refusal of what the data does not identify
    provenance the fitted numbers back into a hardware YAML, and the table of all of them in docs/

Nothing here knows a rate: the starting values are those of the hardware file, the bounds those of
`kernels.yaml`.
"""
