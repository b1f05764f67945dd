"""Torch modules of a transformer layer at the shapes one device holds."""
