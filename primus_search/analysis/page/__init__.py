"""Figures of the page beside those of the answer: the roofline of a row, and a grid of what-if projections."""
