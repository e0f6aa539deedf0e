"""Step dumps as people read them on 100 columns: steps, samples, one sample, one position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from openclaw_core.dumps.inspect import SampleRow, SampleView, StepRow
    from openclaw_core.dumps.position import CandidateTop, PositionView, SupportEntry, TokenProb
    from openclaw_core.dumps.schema import DroppedHint, StepHeader
    from openclaw_core.dumps.search import FoundSample
    from openclaw_core.dumps.summary import CandidateSummary, Quarter, SampleSummary
    from openclaw_core.dumps.tokens import TokenText

WIDTH = 100


def number(value: float | None, digits: int = 3) -> str:
    """value with so many decimals; - where the dump doesn't hold it."""
    return "-" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def share(value: float | None) -> str:
    """value in percent; - where the dump doesn't hold it."""
    return "-" if value is None else f"{value:.0%}"


def visible(text: str, most: int = 0) -> str:
    """text on one line without control characters, cut to most characters where most is given."""
    shown = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return shown if not most or len(shown) <= most else shown[: most - 1] + "…"


def quoted(text: str, most: int = 0) -> str:
    """text in quotation marks, as visible."""
    return f'"{visible(text, most)}"'


def named(token: TokenText, most: int = 30) -> str:
    """A token's text in quotation marks; an id without a text as it is, with '!' where the tokenizer doesn't have it."""
    bare = token.flagged or token.text == f"<id {token.id}>"
    return f"{token.text}{' !' if token.flagged else ''}" if bare else quoted(token.text, most)


def steps_text(rows: Sequence[StepRow], console: Console) -> None:
    """Prints the list of steps."""
    columns = [">step", ">samples", ">opd+rl", ">opd", ">rl", ">reward", ">tokens", ">K_i", ">weights", "objective"]
    cells: list[tuple[object, ...]] = [
        (
            row.step, row.samples, row.opd_rl, row.opd, row.rl, number(row.reward, 2), number(row.response_tokens, 1),
            number(row.candidates, 1), row.weight_version, row.objective,
        )
        for row in rows
    ]  # fmt: skip
    if len({row.objective for row in rows}) == 1:
        field(console, "objective", rows[0].objective)
        columns, cells = columns[:-1], [cell[:-1] for cell in cells]
    console.print(table(columns, cells))


def samples_text(header: StepHeader, rows: Sequence[SampleRow], console: Console) -> None:
    """Prints the samples of a step."""
    from openclaw_core.dumps.inspect import objective_phrase

    field(console, f"step {header.step}", f"{objective_phrase(header)}; weights v{header.weight_version}")
    columns = ("sample", "kind", ">reward", ">R", ">mean O", ">signal", "taught by", ">odd", ">drop", "first hint")
    cells = [
        (
            visible(row.sample_id[:12]), row.kind, f"{row.reward:+g}", row.length, number(row.mean_overlap, 2),
            number(row.signal), " ".join(share(part) for part in row.taught) or "-", row.anomalies or "",
            row.dropped_hints or "", visible(row.hints[0], 28) if row.hints else "-",
        )
        for row in rows
    ]  # fmt: skip
    console.print(table(columns, cells))


def found_text(found: Sequence[FoundSample], console: Console) -> None:
    """Prints samples of several steps."""
    columns = (">step", "sample", "kind", ">reward", ">R", "hint")
    cells = [(one.step, visible(one.sample_id[:12]), one.kind, f"{one.reward:+g}", one.length, _first_hint(one)) for one in found]
    console.print(table(columns, cells))


def _first_hint(one: FoundSample) -> str:
    if one.hints:
        return visible(one.hints[0], 48)
    return f"dropped: {visible(one.dropped_hints[0], 40)}" if one.dropped_hints else "-"


def sample_text(view: SampleView, console: Console, *, detail: bool) -> None:
    """Prints one sample: what it is, its candidates, then positions in full (detail) or a line each and the strongest."""
    _head(view, console)
    _candidates(view.summary, view.header, console)
    for hint in view.sample.dropped_hints or ():
        field(console, "dropped", _dropped(hint))
    _quarters(view.summary.quarters, console)
    for text in view.summary.absent:
        field(console, "absent", text)
    for anomaly in view.anomalies:
        field(console, "odd", str(anomaly), style="yellow")
    shown = f"{len(view.positions)} of {view.matching} positions" if view.matching else "No position passes the filters"
    console.print()
    console.print(shown, style="bold", markup=False)
    if detail:
        for one in view.positions:
            position_text(one, view.header, console)
        return
    console.print(_overview(view.positions))
    strongest = sorted((one for one in view.positions if one.signal), key=lambda one: -(one.signal or 0.0))[:2]
    for one in strongest:
        position_text(one, view.header, console)


def position_text(one: PositionView, header: StepHeader, console: Console) -> None:
    """Prints one position in full."""
    from rich.text import Text

    facts = [f"old {number(one.sampled_logprob)}"]
    if one.sampling_logprob is not None:
        facts.append(f"at the engine's temperature {number(one.sampling_logprob)}")
    facts += [f"engine {number(one.engine_logprob)}", f"entropy {number(one.entropy)}"]
    facts += [f"signal {number(one.signal)}", f"mass {share(one.student_mass)} / {share(one.teacher_mass)}"]
    title = Text(f"\nt {one.t}  ", style="bold")
    title.append_text(_token(one.token))
    title.append(f"  {'  '.join(facts)}{'' if one.trained else '  NOT TRAINED'}", style="dim")
    console.print(title)
    if one.k_star is not None:
        console.print(Text(f"  k* = {one.k_star}: {one.why}"))
    console.print(_top("student", one.student, ""))
    for candidate in one.candidates:
        console.print(_top(f"{'>' if candidate.chosen else ' '}teacher {candidate.k}", candidate.top, _facts(candidate)))
    if one.support:
        console.print(_support(one))
    elif header.w_opd and one.candidates:
        console.print(Text("  support: empty; the position adds 0"))


def _head(view: SampleView, console: Console) -> None:
    sample, header, summary = view.sample, view.header, view.summary
    votes = " ".join("none" if vote is None else f"{vote:+d}" for vote in sample.verdict_votes)
    facts = [sample.kind, f"reward {sample.reward:+g}", f"R {summary.length}", f"trained {summary.trained}"]
    facts += [f"verdict votes {votes}"] if votes else []
    facts += [f"finish {sample.finish_reason}"] if sample.finish_reason else []
    temperatures = ", ".join(f"{name} {value:g}" for name, value in header.temperatures.items())
    losses = ", ".join(f"{name} {number(value, 4)}" for name, value in sample.losses.items())
    means = (
        f"mean O at k* {number(summary.mean_overlap, 2)}, signal {number(summary.signal)}, empty {share(summary.empty_share)}, "
    )
    means += f"clipped {share(summary.clipped_share)}, |trainer - engine| {number(summary.engine_gap, 4)}"
    clip = f"{header.diff_clip:g}" if header.diff_clip > 0 else "off"
    renormalised = "" if sample.get("weights") is None else "w is renormalised over the support; "
    rows = [
        ("sample", f"{sample.sample_id} of step {header.step}, sampled by weights v{sample.weight_version}"),
        ("turn", f"{sample.turn_id}{f', session {sample.session_id}' if sample.session_id else ''}"),
        ("", ", ".join(facts)),
        (
            "support",
            f"{header.subset}, chosen by {header.selection}, K {header.k}, diff clip {clip}, tail {header.tail}",
        ),
        ("", f"{renormalised}log-probs are of the whole real vocabulary ({header.vocab} ids)"),
        ("divergence", header.divergence if header.w_opd else ""),
        ("temperature", f"scoring {header.temperature:g}{f' ({temperatures})' if temperatures else ''}"),
        ("means", means),
        ("loss", losses),
        ("prompt", "" if view.prompt is None else quoted("…" + view.prompt[-240:] if len(view.prompt) > 240 else view.prompt)),
        ("reply", "" if view.reply is None else quoted(view.reply, 400)),
        ("next state", f"{sample.next_state_role}: {quoted(sample.next_state, 300)}" if sample.next_state else ""),
    ]
    for name, value in rows:
        if value:
            field(console, name, value)


def _candidates(summary: SampleSummary, header: StepHeader, console: Console) -> None:
    columns = (">k", ">teaches", ">mean O", ">G", ">student mass", ">teacher mass", ">votes", "hint")
    console.print(table(columns, [_candidate_row(one) for one in summary.candidates], title="Candidates"))
    for one in summary.candidates:
        rests = ""
        if one.hint.next_state:
            rests = f"rests on {one.hint.next_state_role or 'the next state'}: {quoted(one.hint.next_state, 160)}; "
        field(console, f"{one.k}", f"{rests}{one.why}")


def _candidate_row(one: CandidateSummary) -> tuple[object, ...]:
    hint = "(no hint: the un-hinted sequence)" if one.hint.text is None else visible(one.hint.text, 200)
    overlap = number(one.mean_overlap, 2) if one.scored else "not scored"
    masses = share(one.student_mass), share(one.teacher_mass)
    return (one.k, share(one.chosen_share), overlap, number(one.gap), *masses, one.hint.votes or "", hint)


def _dropped(hint: DroppedHint) -> str:
    text = quoted(hint.text, 160)
    more = f" of {hint.characters} characters" if hint.characters > min(len(hint.text), 160) else ""
    return f"{hint.why}; {hint.votes} vote{'' if hint.votes == 1 else 's'}: {text}{more}"


def _quarters(quarters: Sequence[Quarter], console: Console) -> None:
    if all(one.signal is None and one.gain is None for one in quarters):
        return
    rows = [
        (one.by, one.label, one.positions, number(one.signal), number(one.gap), number(one.gain), one.gain_known)
        for one in quarters
    ]
    columns = ("quarter by", "from - to", ">positions", ">signal", ">G at k*", ">gain at sampled id", ">known")
    console.print(table(columns, rows, title="Where the teacher pulls"))


def _overview(positions: Sequence[PositionView]) -> Any:
    columns = (">t", "token", ">entropy", ">k*", ">O", ">q mass", ">p mass", ">signal", "pulls most")
    rows = []
    for one in positions:
        pull = max(one.support, key=lambda entry: abs(entry.pull or 0.0), default=None)
        strongest = "-"
        if pull is not None and pull.pull is not None:
            strongest = f"{pull.pull:+.3f} {named(pull.token, 24)}"
        overlaps = " ".join("-" if c.overlap is None else str(c.overlap) for c in one.candidates)
        token = named(one.token, 24) + ("" if one.trained else " (not trained)")
        k_star = "-" if one.k_star is None else one.k_star
        masses = share(one.student_mass), share(one.teacher_mass)
        rows.append((one.t, token, number(one.entropy, 2), k_star, overlaps or "-", *masses, number(one.signal), strongest))
    return table(columns, rows)


def _facts(candidate: CandidateTop) -> str:
    return f"O {'-' if candidate.overlap is None else candidate.overlap}  G {number(candidate.gap)}"


def _top(name: str, top: Sequence[TokenProb], facts: str) -> Text:
    from rich.text import Text

    line = Text(f"  {name:<11}", style="dim" if not top else "")
    line.append(f"{facts:<14}  " if facts else "")
    for entry in top:
        line.append_text(_token(entry.token, bold=entry.shared))
        line.append(f" {entry.prob:.3f}   ")
    if not top:
        line.append("not in this dump")
    return line


def _support(one: PositionView) -> Any:
    shared = [(f"  {named(entry.token)}", _prob(entry.student_logprob), _prob(entry.teacher_logprob)) for entry in one.support]
    columns, rest = _weighed(one.support)
    return table(("  support", ">q", ">p", *columns), [(*row, *more) for row, more in zip(shared, rest, strict=True)])


def _weighed(support: Sequence[SupportEntry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What the objective makes of q and p at each entry: w, d and A, or the pull of a divergence that has none of them."""
    if any(entry.advantage is not None for entry in support):
        rows: list[tuple[str, ...]] = [
            (number(e.weight), f"{number(e.difference)}{'c' if e.clipped else ' '}", number(e.advantage)) for e in support
        ]
        return (">w", ">d", ">A"), rows
    if any(entry.pull is not None for entry in support):
        return (">pull",), [(f"{entry.pull:+.4f}" if entry.pull is not None else "-",) for entry in support]
    return (), [()] * len(support)


def _prob(logprob: float | None) -> str:
    from math import exp

    return "-" if logprob is None else f"{exp(min(logprob, 700.0)):.3f}"


def _token(token: TokenText, bold: bool = False) -> Text:
    from rich.text import Text

    style = "red" if token.flagged else "bold cyan" if bold else "cyan"
    return Text(named(token), style=style)


def field(console: Console, name: str, value: str, style: str = "") -> None:
    """Prints a name and its value beside it, folded to the width."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=11)
    grid.add_column(overflow="fold", max_width=WIDTH - 12)
    grid.add_row(Text(name, style="bold"), Text(visible(value), style=style))
    console.print(grid)
