"""YAML as data: every value knows its line, and hostile files are refused in a sentence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_search.base.errors import InputError, did_you_mean
from primus_search.files.source import parse, read
from primus_search.models.layer_pattern import layer_pattern


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "x.yaml")
    return str(caught.value)


def test_a_place_names_file_line_and_path() -> None:
    document = parse("model: m\nspace:\n  tp: [1,\n       2]\n  hardware.nic_GBps: 3\n", "x.yaml")
    assert document.where(("space", "tp", 1)) == "x.yaml:4 @ $.space.tp[1]"
    assert document.where(("space", "missing")) == "x.yaml:2 @ $.space.missing"
    assert document.where() == "x.yaml:1 @ $"


def test_a_key_given_twice_with_two_values_is_a_problem() -> None:
    assert message("a: 1\nb: {c: 1,\n    c: 2}\na: 3\n") == (
        "x.yaml:3 @ $.b.c: duplicate key with another value than on line 2; keep one\n"
        "x.yaml:4 @ $.a: duplicate key with another value than on line 1; keep one"
    )


def test_a_key_given_twice_with_the_same_value_is_tolerated() -> None:
    """AMD Primus' qwen2.5_base.yaml is written like that."""
    assert parse("a: 1\na: 1\n", "x.yaml").data == {"a": 1}


def test_aliases_that_multiply_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert message("\n".join(levels)) == (
        "x.yaml:1 @ $.a5: expands to more than 200,000 values; remove the aliases (&name, *name) that multiply it"
    )


def test_an_alias_to_itself_is_refused() -> None:
    assert message("a: &a [*a]") == "x.yaml:1 @ $.a[0][0][0]: is nested more than 40 deep"


def test_deep_nesting_is_refused_without_recursion() -> None:
    assert message("\n" + "[" * 100_000) == "x.yaml:2 @ $: is nested more than 40 deep"


def test_tags_are_refused() -> None:
    assert message("a: !!python/object/apply:os.system ['echo']\nb: !secret x") == (
        "x.yaml:1 @ $.a: tag tag:yaml.org,2002:python/object/apply:os.system is not data; write a plain value\n"
        "x.yaml:2 @ $.b: tag !secret is not data; write a plain value"
    )


def test_broken_yaml_names_the_line() -> None:
    assert message("a: [1\nb: 3") == "x.yaml:2 @ $: is not valid YAML: did not find expected ',' or ']'"


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("big.yaml").write_bytes(b"#" * (5 * 1024 * 1024))
    Path("binary.yaml").write_bytes(b"a: \xff\xfe")
    expected = {
        "none.yaml": "none.yaml: no such file",
        "big.yaml": "big.yaml: has more than 4,194,304 bytes, the most that is read of such a file",
        "binary.yaml": "binary.yaml: is not UTF-8 text (byte 3)",
        ".": ".: is a folder; give the path of a file",
    }
    for name, what in expected.items():
        with pytest.raises(InputError) as caught:
            read(Path(name))
        assert str(caught.value) == what


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-05", 1e-05),
        ("50_000_000", 50_000_000),
        ("1:30", "1:30"),
        ("2025-11-01", "2025-11-01"),
        ("'8'", "8"),
        ("yes", True),
        ("~", None),
        ("none", "none"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_mean_what_a_reader_expects(text: str, value: object) -> None:
    assert parse(f"a: {text}", "x.yaml").data == {"a": value}


def test_the_nearest_name_ignores_case_and_signs() -> None:
    assert did_you_mean("Mixtral-8x22B", ["mixtral_8x7b", "mixtral_8x22b"]) == "; did you mean 'mixtral_8x22b'?"
    assert did_you_mean("zzz", ["tp", "pp"]) == ""


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(0, 5)), min_size=1, max_size=4)
)
def test_a_layer_pattern_means_what_python_would_make_of_it(parts: list[tuple[list[int], int]]) -> None:
    text = "(" + "+".join(f"{numbers}*{times}" for numbers, times in parts) + ")"
    assert layer_pattern(text) == tuple(n for numbers, times in parts for n in numbers * times)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("__import__('os')", "a layer pattern is a sum of lists such as [0]*3+[1]*58"),
        ("[0]*99999999", "a layer pattern of more than 4096 layers"),
        ("[0", "'[' was never closed in a layer pattern"),
        ("([0]", "'(' was never closed in a layer pattern"),
        ("[0]*[1]", "a '*' in a layer pattern needs a whole number after it"),
        ("[0]]", "unmatched ']' in a layer pattern"),
        ("[0, x]", "a list of a layer pattern holds whole numbers"),
        ("[0] [1]*2; 1", "cannot read '; 1' in a layer pattern"),
        ("3", "a layer pattern is a sum of lists such as [0]*3+[1]*58"),
    ],
)
def test_a_layer_pattern_is_never_evaluated(text: str, what: str) -> None:
    with pytest.raises(ValueError) as caught:
        layer_pattern(text)
    assert str(caught.value) == what
