"""Readers of HuggingFace and Megatron model families; `family_table` lists them by `model_type`."""
