"""The list of public job files and what the tool says of a file."""

from pathlib import Path

import pytest

from tools.coverage import outcome, rows

NANOTRON = """
model:
  model_config: {hidden_size: 512, intermediate_size: 1024, num_attention_heads: 8, num_hidden_layers: 4, num_key_value_heads: 8,
    vocab_size: 32000, max_position_embeddings: 1024, is_llama_config: true}
optimizer: {zero_stage: 1}
parallelism: {dp: 4, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}
tokens: {micro_batch_size: 1, sequence_length: 1024, batch_accumulation_per_replica: 4}
"""  # noqa: E501


def test_the_list_names_files_by_repository_commit_and_path() -> None:
    listed = rows()
    assert len(listed) > 100
    assert len({row["launcher"] for row in listed}) >= 12
    assert all(len(row["commit"]) == 40 and row["expect"] in ("read", "refuse", "read by hand") for row in listed)


@pytest.mark.parametrize(
    ("text", "expect", "kind"),
    [
        (NANOTRON, "read", "read"),
        (NANOTRON, "refuse", "misread"),
        (NANOTRON + "# tp: 4", "read", "read"),
        (NANOTRON.replace("is_llama_config", "is_other_config"), "read", "refused rightly"),
        ("some: yaml", "read", "refused wrongly"),
        ("some: yaml", "refuse", "refused rightly"),
    ],
)
def test_a_file_is_read_refused_or_misread(tmp_path: Path, text: str, expect: str, kind: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert outcome(path, expect)[0] == kind
