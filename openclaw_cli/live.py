"""The progress display of a run: a panel on a terminal, one line per step elsewhere. Writes to stderr only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from openclaw_cli.output import Output
from openclaw_core.run.progress import Progress, SilentWatcher, Watcher

FUNNEL = ("received", "answered", "closed", "judged", "hinted", "sampled", "scored", "trained")
SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(rates: list[float]) -> str:
    """Rates in [0, 1] as one character each."""
    return "".join(SPARKS[min(7, int(rate * 8))] for rate in rates)


def _funnel(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    names = [name for name in FUNNEL if name in progress.funnel]
    for _ in names:
        table.add_column(justify="right")
    table.add_row(*(Text(name, style="dim") for name in names))
    table.add_row(*(Text(str(progress.funnel[name]), style="bold") for name in names))
    return table


def _losses(progress: Progress) -> Text:
    shown = [(name, value) for name, value in progress.metrics.items() if value is not None][:5]
    of = {"loss/opd": f" ({progress.opd_samples[0]}/{progress.opd_samples[1]})"} if progress.opd_samples else {}
    waiting = f"going on after step {progress.step}" if progress.step else "no step yet"
    return Text("   ".join(f"{name} {value:+.4f}{of.get(name, '')}" for name, value in shown) or waiting, style="cyan")


def _reading(progress: Progress) -> Text:
    if not progress.readings:
        return Text("preference: not read yet", style="dim")
    step, rate, solved = progress.readings[-1]
    text = Text(f"preference without a hint {rate:6.1%}", style="bold green")
    text.append(f"   solved {solved:6.1%} (step {step})  ", style="green")
    return text.append(sparkline([r for _, r, _ in progress.readings]), style="green")


def panel(progress: Progress) -> RenderableType:
    """The whole display for one state of the run."""
    elapsed = time.time() - progress.started
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(
        Text(f"step {progress.step}/{progress.steps}  {progress.stage}", style="bold"),
        Text(f"weights v{progress.weight_version}   {elapsed:.0f} s", style="dim"),
    )
    bar = ProgressBar(total=progress.steps, completed=progress.step)
    body = Group(head, bar, Text(""), _funnel(progress), Text(""), _losses(progress), _reading(progress))
    title, address = f"openclaw train · {progress.run_folder}", progress.proxy or None
    return Panel(body, title=title, subtitle=address, border_style="blue", padding=(1, 2))


class LiveWatcher:
    """Shows a panel that changes in place."""

    def __init__(self, console: Console, out: Output) -> None:
        self.console, self.last = console, out.error
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveWatcher:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Prints above the panel."""
        self.console.print(Text(text, style="dim"))

    def update(self, progress: Progress) -> None:
        """Redraws."""
        self._live.update(panel(progress))


class LineWatcher:
    """One line per step, for pipes and logs."""

    def __init__(self, console: Console, out: Output) -> None:
        self.console, self.last = console, out.error
        self._shown: tuple[int, int] = (-1, -1)

    def note(self, text: str) -> None:
        """Prints the line."""
        self.console.print(Text(text))

    def update(self, progress: Progress) -> None:
        """Prints when a step ended or a reading came."""
        now = (progress.step, len(progress.readings))
        if now == self._shown:
            return
        self._shown = now
        parts = [f"step {progress.step}/{progress.steps}", _losses(progress).plain]
        if progress.readings:
            parts.append(f"preference {progress.readings[-1][1]:.1%} (step {progress.readings[-1][0]})")
        self.console.print(Text("  ".join(parts)), soft_wrap=True)


@contextmanager
def watching(out: Output) -> Iterator[Watcher]:
    """A watcher that fits the output: a panel on a terminal, lines elsewhere, nothing when quiet."""
    console = out.console(stderr=True)
    if out.quiet:
        yield SilentWatcher()
    elif console.is_terminal and out.human:
        with LiveWatcher(console, out) as live:
            yield live
    else:
        yield LineWatcher(console, out)
