"""Learning a preference from conversation: objectives, cells, anchors and selections, through the product's command line.

    python -m benchmarks.personalisation --work /tmp/personalisation              all runs, then page, plot and results
    python -m benchmarks.personalisation --work /tmp/personalisation --only p,a   some tables; runs that are done stay done
    python -m benchmarks.personalisation --report-only                            page and plot again, from the results

Every run is one `openclaw train` with a folder of its own below the work folder, from one copy of the program that the first call
puts there. Stop with Ctrl-C; the same command goes on with what is missing. Failed runs are made again by the next call.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from benchmarks import page, results
from benchmarks.claims import Results
from benchmarks.driving import ROOT, Driver, require_program, result_of
from benchmarks.experiments import SEEDS, STEPS, TABLES, Run, Table, runs_of
from benchmarks.results import Record
from openclaw_core.errors import UsageError, UserError
from openclaw_core.files import write_atomic

NAME = "personalisation"


def main(argv: list[str] | None = None) -> int:
    """The program; returns 0, 1 where runs failed or something is in the way, 2 for wrong flags, 130 when stopped."""
    args = _parser().parse_args(argv)
    try:
        tables = _tables(args.only)
        out = args.out or (ROOT / "benchmarks" if args.steps == STEPS else args.work)
        if args.report_only:
            write(out, collect(out, args.work, args.steps))
            return 0
        with _alone(args.work):
            return _make(runs_of(tables, args.seeds, args.steps), out, args)
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        print(f"error: {error.what} {error.remedy}".rstrip(), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    letters = ", ".join(f"{table.letter}: {table.title}" for table in TABLES)
    parser.add_argument("--work", type=Path, default=Path("runs") / NAME, help="folder of runs; default: %(default)s")
    parser.add_argument(
        "--out", type=Path, help="folder of page, plot and results; default: benchmarks/, --work at other --steps"
    )
    parser.add_argument("--only", default=",".join(table.letter for table in TABLES), help=f"tables, default all ({letters})")
    parser.add_argument("--seeds", type=_seeds, default=SEEDS, help="default: 0,1,2")
    parser.add_argument("--steps", type=_positive, default=STEPS, help="optimizer steps of a run; default: %(default)s")
    parser.add_argument("--jobs", type=_positive, default=1, help="runs at the same time; default: %(default)s")
    parser.add_argument(
        "--timeout", type=_positive, default=1800, metavar="S", help="longest time of a run; default: %(default)s"
    )
    parser.add_argument("--keep", action="store_true", help="keep dumps, checkpoints and conversations of finished runs")
    parser.add_argument("--report-only", action="store_true", help="make no run; write page and plot from what is there")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _seeds(text: str) -> tuple[int, ...]:
    wanted = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if unknown := set(wanted) - set(SEEDS):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} is not among the declared seeds {SEEDS}")
    return wanted


def _tables(only: str) -> tuple[Table, ...]:
    known = {table.letter: table for table in TABLES}
    wanted = [part.strip() for part in only.split(",") if part.strip()]
    if not wanted or (unknown := [letter for letter in wanted if letter not in known]):
        raise UsageError(f"--only {only} names no table: {unknown if wanted else 'nothing'}.", f"Choose from {', '.join(known)}.")
    return tuple(known[letter] for letter in dict.fromkeys(wanted))


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Holds the work folder for this process."""
    require_program()
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"Another call works in {work}.", "Wait for it, or give --work another folder.") from error
        yield


def _make(runs: list[Run], out: Path, args: argparse.Namespace) -> int:
    known = collect(out, args.work, args.steps)
    missing = [run for run in runs if not ((record := result_of(args.work, run)) and record.finished)]
    _say(f"{len(runs)} runs, {len(runs) - len(missing)} of them done before; work folder {args.work}.")
    driver = Driver(args.work.resolve(), timeout_s=args.timeout, jobs=args.jobs, keep=args.keep)
    signal.signal(signal.SIGTERM, _interrupt)
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = {pool.submit(driver.run, run): run for run in missing}
        try:
            for number, done in enumerate(as_completed(waiting), start=1):
                record = done.result()
                assert record is not None
                failed += not record.finished
                known.records[record.run] = record
                write(out, known)
                _say(f"[{number}/{len(missing)}] {_line(record)}")
        except BaseException:
            driver.stop()
            raise
    write(out, known)
    return 1 if failed else 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _line(record: Record) -> str:
    settings = " ".join(f"{key}={value}" for key, value in record.settings if not key.startswith("train.") or key == "train.seed")
    if not record.finished:
        return f"FAILED {settings}: {record.error}"
    held = f"held from step {record.held[0]}" if record.held else "not held"
    return f"{settings}: {100 * (record.last or 0):.0f} % at the end, {held}, {record.wall_seconds:.0f} s"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def collect(out: Path, work: Path, steps: int) -> Results:
    """Every declared run that the results file or the work folder knows; the work folder counts where both do."""
    found = results.load(out / f"{NAME}.json")
    for run in runs_of(TABLES, SEEDS, steps):
        if record := result_of(work, run):
            found[run] = record
    declared = set(runs_of(TABLES, SEEDS, steps))
    return Results(steps, {run: record for run, record in found.items() if run in declared})


def write(out: Path, found: Results) -> None:
    """Results, page and plot."""
    out.mkdir(parents=True, exist_ok=True)
    results.store(out / f"{NAME}.json", found.records)
    write_atomic(out / f"{NAME}.md", page.page(found))
    write_atomic(out / page.PLOT, page.plot(found))


if __name__ == "__main__":
    sys.exit(main())
