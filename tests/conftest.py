"""Examples of property tests, and the order of the files.

Property tests draw the same examples in continuous integration every time; on a developer's machine, new ones.
A busy machine is no fault of a strategy: how fast examples are drawn or run is not checked.

Of the parameters of a test with `daily(n)` n are drawn a day; the others are `full`. A long test with `in_turn` runs
on one day of `DAYS`, by its name or, `in_turn("word")`, with the tests of its file that share a costly fixture; on the
others it is `full`. `TEST_DAY=2026-11-27` draws as on that day; a run with failures ends with its day.

The files of the longest wall time run first, so that the workers of a parallel run end together. `--record-times`
writes the wall and processor seconds of the files that ran to `file_times.csv`. `--processor-budget 60` runs the files
of the least processor time that together need 60 s of it, files without a row, and `tests/structure`; of the others
nothing is imported.
"""

import csv
import gc
import inspect
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.daily import DAY, drawn, is_turn

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers share the cores: a second thread waits, at full load
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "default")

FILE_TIMES = Path(__file__).with_name("file_times.csv")
NEW_FILE_S = 60.0
"""Wall time that a file without a row is taken to need: it starts early, so that a long one does not run last alone."""
ALWAYS = "tests/structure/"
LEFT_OUT = pytest.StashKey[set[str]]()
"""Files that a budget of processor time leaves out."""
PROCESSOR = "processor_s"
"""Property of a test's report: seconds of processor, those of processes that it started and that ended included."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-times", action="store_true", help=f"write the seconds of each file to {FILE_TIMES.name}")
    parser.addoption("--processor-budget", type=float, metavar="S", help="run the shortest files, S seconds in all")


def longest_files(budget_s: float) -> set[str]:
    """Files that the shortest ones, `budget_s` processor seconds together, leave out; never those of the structure."""
    rows = sorted((float(row["processor_s"]), file) for file, row in file_times().items() if ALWAYS not in file)
    spent = accumulate(seconds for seconds, _ in rows)
    return {file for (_, file), so_far in zip(rows, spent, strict=True) if so_far > budget_s}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    root = FILE_TIMES.parents[1]
    is_ours = collection_path.is_relative_to(root)
    return True if is_ours and collection_path.relative_to(root).as_posix() in config.stash[LEFT_OUT] else None


def file_times() -> dict[str, dict[str, str]]:
    """Rows of `file_times.csv` by file: `wall_s` and `processor_s`; its head says how they were measured."""
    if not FILE_TIMES.exists():
        return {}
    with FILE_TIMES.open(newline="") as lines:
        return {row["file"]: row for row in csv.DictReader(line for line in lines if not line.startswith("#"))}


def draw_of_the_day(items: list[pytest.Item]) -> None:
    """Mark as `full` what the day does not draw: parameters of tests with `daily(n)`, tests with `in_turn`."""
    sampled: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        turn, test = item.get_closest_marker("in_turn"), item.nodeid.partition("[")[0]
        if turn and not is_turn("::".join([test.partition("::")[0], *turn.args]) if turn.args else test):
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("daily") and not item.get_closest_marker("full"):
            sampled[item.nodeid.partition("[")[0]].append(item)
    for name, several in sampled.items():
        mark = several[0].get_closest_marker("daily")
        assert mark is not None
        today = drawn(name, several, mark.args[0])
        for item in several:
            if item not in today:
                item.add_marker(pytest.mark.full)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw the day's samples, then sort the files by recorded wall time, longest first; a file keeps its order."""
    draw_of_the_day(items)
    times = file_times()

    def place(item: pytest.Item) -> tuple[float, str]:
        file = item.nodeid.partition("::")[0]
        return (-float(times[file]["wall_s"]) if file in times else -NEW_FILE_S, file)

    items.sort(key=place)


@pytest.fixture(autouse=True, scope="module")
def pages_where_they_are_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """Commands that a test file calls here write no page, half of a small run, unless it has "report.html"."""
    text = inspect.getsource(request.module)
    with pytest.MonkeyPatch.context() as patch:
        if "CliRunner" in text and 'report.html"' not in text:
            from primus_search.report import html

            real = html.write_report
            patch.setattr(html, "write_report", lambda run, rank=1, target=None: target and real(run, rank, target))
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"drawn with {DAY}={os.environ[DAY]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while files are imported: next to nothing of it is any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what stands for the whole session out of every later collection of garbage: torch, libraries, tests."""
    gc.collect()
    gc.freeze()


def processor_s() -> float:
    """Processor seconds of this process and of those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Clock:
    """Writes the processor seconds of each part of a test into its report."""

    def __init__(self) -> None:
        self.started = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.started = processor_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self.started = self.started, processor_s()
        report.user_properties.append((PROCESSOR, self.started - before))
        return report


class Times:
    """Sums the reports of the workers into seconds by file."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.wall[file] += report.duration
        self.processor[file] += sum(float(str(each)) for name, each in report.user_properties if name == PROCESSOR)

    def pytest_sessionfinish(self) -> None:
        """Replace the rows of the files that ran, and drop those of files that are gone."""
        root = FILE_TIMES.parents[1]
        rows = {file: row for file, row in file_times().items() if (root / file).exists()}
        for file, wall in self.wall.items():
            rows[file] = {"file": file, "wall_s": f"{wall:.1f}", PROCESSOR: f"{self.processor[file]:.1f}"}
        head = [line for line in FILE_TIMES.open() if line.startswith("#")] if FILE_TIMES.exists() else []
        with FILE_TIMES.open("w", newline="") as lines:
            lines.writelines(head)
            table = csv.DictWriter(lines, ("file", "wall_s", PROCESSOR), lineterminator="\n")
            table.writeheader()
            table.writerows(sorted(rows.values(), key=lambda row: (-float(row["wall_s"]), row["file"])))


def pytest_configure(config: pytest.Config) -> None:
    """Every worker reads its clock; the process that collects the reports writes the file. All have one day."""
    os.environ.setdefault(DAY, f"{datetime.now(UTC):%Y-%m-%d}")
    budget_s = config.getoption("--processor-budget")
    config.stash[LEFT_OUT] = longest_files(budget_s) if budget_s else set()
    if config.getoption("--record-times"):
        config.pluginmanager.register(Clock())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Times())
