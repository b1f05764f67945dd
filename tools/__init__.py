"""The laboratory, outside the wheel: fits of the shipped numbers, truth by training, generators of docs."""
