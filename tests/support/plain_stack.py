"""A software stack for tests: `hardware/stacks/bases/pytorch.yaml` with the numbers that a test is about replaced."""

from pathlib import Path
from typing import Any

from primus_search.files.hardware_files import load_stack
from primus_search.values.machine.stack import Stack, with_numbers


def plain_stack(attention_kernel: str, **numbers: Any) -> Stack:
    """The plain stack with an attention kernel and some numbers replaced by the names of their fields."""
    plain = load_stack(str(Path(__file__).with_name("plain_stack.yaml")))
    return with_numbers(plain, numbers | {"attention_kernel": attention_kernel})
