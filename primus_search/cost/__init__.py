"""What a configuration costs: one physical effect per file, pure functions over columns; `project` composes them.

May import: space, schedule, values, base.
"""
