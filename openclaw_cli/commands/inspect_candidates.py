"""Look at what a step trained on: which candidate taught each position, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openclaw_cli.completion import complete_run
from openclaw_cli.output import active

if TYPE_CHECKING:
    from openclaw_core.dumps.inspect import Filters
    from openclaw_core.dumps.reader import DumpReader
    from openclaw_core.dumps.tokens import TokenTexts

EPILOG = """\b
Examples:
  openclaw inspect-candidates runs/RUN
      the steps of a run
  openclaw inspect-candidates runs/RUN --step 12 --kind opd+rl --hint-contains capital
      samples of a step whose hints speak of capitals
  openclaw inspect-candidates runs/RUN --hint-contains capital
      such samples of all steps, found in the index: no step's file is opened
  openclaw inspect-candidates runs/RUN --step 12 --sample 3fa9
      one sample: hints, which candidate taught what and why, the strongest positions in full
  openclaw inspect-candidates runs/RUN --sample 3fa9 --sort signal --limit 5 --full
      where the teacher pulled most, wherever the sample was trained
  openclaw inspect-candidates runs/RUN --sample 3fa9 --position 7
  openclaw --json inspect-candidates runs/RUN --step 12 --sample 3fa9 | jq '.positions[] | {t, k_star, signal}'
  openclaw inspect-candidates runs/RUN --step 12 --html step.html
      the same as a page that needs nothing else
\b
What the columns hold:
  q, p         probability by the old student, and by the teacher with the hint of candidate k*
  w            q renormalised over the support
  d            difference of log-probs, teacher - student, clipped
  A, signal    A = d * w; the signal of a position is the sum of |A| over its support
  pull         what stands for A under another divergence: minus the term's slope in the student's log-prob of the token
  O, mean O    ids that are in the top-K of student and teacher alike
  K_i          number of candidates; R: tokens of the reply
  odd          numbers in the dump that can't be right; each is named where the sample is shown
  drop         hints that became no candidate; each is named, with the reason, where the sample is shown
\b
In a top-K, bold tokens are in the other side's too; '!': the tokenizer has no such id; 'c': the difference is at the clip.
Exit code: 1 when a dump could not be read as it should (what could be read is shown), 0 with --lenient.
"""
SAMPLE_POSITIONS = 20
FOUND_SAMPLES = 50


def inspect_candidates(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run folder, name below runs/, 'latest' (the newest that trains), or a folder of dumps.",
            autocompletion=complete_run,
        ),
    ],
    step: Annotated[int | None, typer.Option("--step", min=0, help="List the samples of this step.")] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="ID", help="Show this sample (a beginning that no other id has is enough).")
    ] = None,
    position: Annotated[int | None, typer.Option("--position", min=0, help="Show this response position in full.")] = None,
    positions: Annotated[str | None, typer.Option("--positions", metavar="A:B", help="Show positions A to B-1 in full.")] = None,
    sort: Annotated[
        Literal["position", "signal"], typer.Option("--sort", help="Order of positions: as they stand, or largest |A| first.")
    ] = "position",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help="Most positions of a sample, or samples of all steps, shown; 0 for all (default: 20 and 50, all with --json).",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every chosen position in full.")] = False,
    kind: Annotated[Literal["opd+rl", "opd", "rl"] | None, typer.Option("--kind", help="Only samples of this kind.")] = None,
    hint_contains: Annotated[
        str | None,
        typer.Option("--hint-contains", metavar="TEXT", help="Only samples with such a hint, dropped ones among them."),
    ] = None,
    min_overlap: Annotated[
        float | None, typer.Option("--min-overlap", min=0, help="Only samples (or positions) with O at k* of at least this.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="tokenizer.json, or its folder (default: the run's).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page of the step (or of the sample) instead.")
    ] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Exit with 0 although something could not be read.")] = False,
) -> None:
    """Look at what a step trained on: which candidate taught each position, and why."""
    from openclaw_core.dumps.inspect import Filters, list_steps, step_of_sample

    searches = step is None and sample is None and (kind is not None or hint_contains is not None)
    of_samples = {"--kind": kind is not None, "--hint-contains": hint_contains is not None}
    of_positions = {
        "--position": position is not None, "--positions": positions is not None, "--sort": sort != "position",
        "--limit": limit is not None and not searches, "--full": full,
    }  # fmt: skip
    _check_flags(step, sample, html, of_samples, of_positions, min_overlap)
    start, end = _range(position, positions)
    reader, texts = _open(run, tokenizer)
    filters = Filters(kind, hint_contains, min_overlap)
    out = active()
    if step is None and sample is not None:
        step = step_of_sample(reader, sample)
    if html is not None and step is not None:
        _write_page(reader, step, sample, filters, texts, html)
    elif searches:
        _search(reader, filters, limit)
    elif step is None:
        from openclaw_cli.candidates_text import steps_text

        rows = list_steps(reader)
        reader.check_files()
        problems = [str(problem) for problem in reader.problems]
        body = {"folder": reader.folder, "steps": rows, "problems": problems}
        out.data(body, lambda console: steps_text(rows, console), quiet=[str(row.step) for row in rows])
    elif sample is None:
        _show_samples(reader, step, filters, texts)
    else:
        detail = full or position is not None or positions is not None
        most = limit if limit is not None else None if out.json or detail else SAMPLE_POSITIONS
        chosen = {"start": start, "end": end, "sort": sort, "min_overlap": min_overlap, "limit": most or None}
        _show_sample(reader, step, sample, texts, chosen, detail)
    _end(reader, lenient)


def _open(run: str, tokenizer: Path | None) -> tuple[DumpReader, TokenTexts]:
    from openclaw_core.dumps.inspect import dumps_folder
    from openclaw_core.dumps.reader import DumpReader
    from openclaw_core.dumps.tokens import TokenTexts
    from openclaw_core.errors import UserError
    from openclaw_core.files import check_path
    from openclaw_core.run.runfolder import RunFolder
    from openclaw_core.run.runs import open_run

    if tokenizer is not None:
        check_path(tokenizer, "--tokenizer", kind=None)
    path = Path(run)
    bare = path.is_dir() and not (path / "run.json").is_file()
    folder = RunFolder(path) if bare else open_run(run)
    reader = DumpReader(dumps_folder(folder.path))
    if tokenizer is not None:
        file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        return reader, TokenTexts(file)
    try:
        texts = TokenTexts(folder.tokenizer())
    except UserError as error:
        active().warn(error.what, error.remedy)
        texts = TokenTexts(None)
    if texts.path is None:
        active().note("The run's tokenizer was not found: tokens are shown as ids (give one with --tokenizer).")
    return reader, texts


def _check_flags(
    step: int | None, sample: str | None, html: Path | None, of_samples: dict[str, bool], of_positions: dict[str, bool],
    min_overlap: float | None,
) -> None:  # fmt: skip
    """Refuses what would have no effect: choices among samples need a list of them, choices among positions one sample."""
    from openclaw_core.errors import UsageError

    among_samples, among_positions = ([name for name, given in flags.items() if given] for flags in (of_samples, of_positions))
    if html is not None and step is None and sample is None:
        raise UsageError("--html needs a step or a sample.", "Add --step N, or --sample ID.")
    if sample is None and among_positions:
        raise UsageError(f"{' and '.join(among_positions)}: that is of the positions of one sample.", "Name it with --sample.")
    if html is not None and among_positions:
        raise UsageError(f"--html takes no {' or '.join(among_positions)}: a page shows all.", "Leave it out.")
    if sample is not None and among_samples:
        raise UsageError(f"--sample names one, which leaves {' and '.join(among_samples)} no choice.", "Give one of them.")
    if step is None and sample is None and min_overlap is not None:
        raise UsageError("--min-overlap chooses among the samples of a step, by its tensors.", "Name it with --step.")


def _range(position: int | None, positions: str | None) -> tuple[int, int | None]:
    from openclaw_core.errors import UsageError
    from openclaw_core.files import shown

    if position is not None and positions is not None:
        raise UsageError("--position and --positions exclude each other.", "Give one of them.")
    if position is not None:
        return position, position + 1
    first, colon, last = (positions or ":").partition(":")
    try:
        start, end = int(first or 0), int(last) if last else None
    except ValueError:
        start, end = -1, None
    if not colon or start < 0 or (end is not None and end <= start):
        given = shown(positions or "", 40)
        raise UsageError(f"--positions {given} is no range of positions.", "Give A:B with 0 <= A < B, for example 0:20.")
    return start, end


def _search(reader: DumpReader, filters: Filters, limit: int | None) -> None:
    from openclaw_cli.candidates_text import found_text
    from openclaw_core.dumps.search import find_samples

    out = active()
    found = list(find_samples(reader, filters))
    most = limit if limit is not None else 0 if out.json else FOUND_SAMPLES
    shown = found[: most or None]
    problems = [str(problem) for problem in reader.problems]
    body = {"samples": shown, "matching_samples": len(found), "searched_steps": len(reader.steps()), "problems": problems}
    out.data(body, lambda console: found_text(shown, console), quiet=[f"{one.step}\t{one.sample_id}" for one in shown])
    more = "" if len(shown) == len(found) else f", the first {len(shown)} are shown (--limit 0 for all)"
    out.note(f"{len(found)} samples pass in the index of {len(reader.steps())} steps{more}.")


def _show_samples(reader: DumpReader, step: int, filters: object, texts: TokenTexts) -> None:
    from openclaw_cli.candidates_text import samples_text
    from openclaw_core.dumps.inspect import list_samples

    header = reader.header(step)
    rows = list_samples(reader, step, filters, texts.last_id)  # type: ignore[arg-type]
    _check_tokenizer(header.tokenizer_hash, texts)
    body = {"header": header, "samples": rows, "problems": [str(problem) for problem in reader.problems]}
    active().data(body, lambda console: samples_text(header, rows, console), quiet=[row.sample_id for row in rows])
    if not rows:
        active().note("No sample passes the filters.")


def _show_sample(reader: DumpReader, step: int, sample: str, texts: TokenTexts, chosen: dict[str, Any], detail: bool) -> None:
    from openclaw_cli.candidates_text import sample_text
    from openclaw_core.dumps.inspect import show_sample, view_record
    from openclaw_core.dumps.summary import no_signal
    from openclaw_core.errors import UsageError

    view = show_sample(reader, step, sample, texts, **chosen)
    if chosen["sort"] == "signal" and (why := no_signal(view.header, view.sample)):
        raise UsageError(f"Sample {view.sample.sample_id} has no signal to sort by: {why}.", "Leave --sort out.")
    _check_tokenizer(view.header.tokenizer_hash, texts)
    body = {**view_record(view), "problems": [str(problem) for problem in reader.problems]}
    quiet = [f"{one.t}\t{one.k_star}\t{one.signal}" for one in view.positions]
    active().data(body, lambda console: sample_text(view, console, detail=detail), quiet=quiet)


def _check_tokenizer(recorded: str, texts: TokenTexts) -> None:
    if recorded and texts.hash and recorded != texts.hash:
        active().warn(f"The dump was written with tokenizer {recorded[:12]}, this one is {texts.hash[:12]}: texts may be wrong.")


def _write_page(reader: DumpReader, step: int, sample: str | None, filters: object, texts: TokenTexts, path: Path) -> None:
    from openclaw_core.dumps.page import step_page
    from openclaw_core.files import write_atomic

    write_atomic(path, step_page(reader, step, texts, filters, sample))  # type: ignore[arg-type]
    active().data({"page": path}, f"Page written to {path}.", quiet=str(path))


def _end(reader: DumpReader, lenient: bool) -> None:
    """Tells what could not be read; exit code 1 for it unless lenient."""
    if not reader.problems:
        return
    from openclaw_core.errors import Findings

    if lenient:
        for problem in reader.problems:
            active().warn(str(problem))
        return
    title = "Not everything could be read; what could is shown, and --lenient makes this a warning:"
    raise Findings(title, [(str(problem), "") for problem in reader.problems])
