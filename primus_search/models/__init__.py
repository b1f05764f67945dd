"""Other people's models as `values.model.Model`: HuggingFace, Megatron and Primus files, and the presets.

May import: files, values, base.
"""
