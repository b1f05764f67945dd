"""Damaged logs: cut, interleaved, coloured and re-encoded ones are read or refused, never a traceback."""

import random
from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.learning.readers import read_log
from tests.support.written_logs import LOGS

MUTANTS = 2000


def mutated(rng: random.Random, text: str) -> bytes:
    """One to four damages of a log."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice((cut, drop, interleave, colour, carriage, swap, repeat))(rng, text)
    data = bytearray(text.encode("utf-8", errors="replace"))
    for _ in range(rng.choice((0, 0, 3, 30))):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def cut(rng: random.Random, text: str) -> str:
    begin, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:begin] + rng.choice(("", "\n... cut ...\n")) + text[end:]


def drop(rng: random.Random, text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if rng.random() > 0.3)


def interleave(rng: random.Random, text: str) -> str:
    at = [rng.randrange(len(text) + 1) for _ in range(5)]
    for place in at:
        text = text[:place] + rng.choice(("[rank3]: NCCL INFO", "\nW0511 run.py:852]\n", "5.0 | ")) + text[place:]
    return text


def colour(rng: random.Random, text: str) -> str:
    for _ in range(20):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(("\x1b[31m", "\x1b[0m", "\x1b[", "\x1b[38;2;1;2;3m")) + text[place:]
    return text


def carriage(rng: random.Random, text: str) -> str:
    return text.replace("\n", rng.choice(("\r\n", "\r", "\n\r")))


def swap(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    rng.shuffle(lines)
    return "".join(lines)


def repeat(rng: random.Random, text: str) -> str:
    return text + text[rng.randrange(len(text) + 1) :]


@pytest.mark.in_turn
def test_mutants_are_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(17)
    texts = ["\n".join(make()) + "\n" for make in LOGS.values()]
    path = tmp_path / "mutant.log"
    read = 0
    for _ in range(MUTANTS):
        path.write_bytes(mutated(rng, rng.choice(texts)))
        try:
            reading = read_log(path)
        except InputError:
            continue
        read += 1
        assert reading.step_s is None or reading.step_s > 0.0
    assert read > MUTANTS // 2


@pytest.mark.in_turn
def test_cut_event_files_are_read_or_refused(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path / "whole"))
    for iteration in range(1, 9):
        writer.add_scalar("iteration-time", 2.0, iteration)
    writer.close()
    (whole,) = (tmp_path / "whole").glob("events*")
    data = whole.read_bytes()
    rng = random.Random(3)
    path = tmp_path / "events.out.tfevents.1"
    for _ in range(60):
        damaged = bytearray(data[: rng.randrange(1, len(data))])
        if rng.random() < 0.5:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            read_log(path)
        except InputError as error:
            assert "tfevents" in str(error)
