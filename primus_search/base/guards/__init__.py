"""Guards at the edge of the program: files, names and numbers from outside, and signals."""
