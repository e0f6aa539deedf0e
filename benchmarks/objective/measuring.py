"""Time by the device's own clock, memory by its allocator, medians of repeated runs.

On a CPU it is the processor time of the process: what else runs on the machine lengthens it less than the wall clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side of one work, in one run of the program.

    seconds is the median over repeats, spread the least and most; extra_bytes is the peak of allocated memory over what was
    there before, less what every side owes; None on a CPU, whose allocator doesn't say. error says why there is no time.
    """

    run: str
    work: str
    side: str
    seconds: float | None
    spread: tuple[float, float] | None = None
    extra_bytes: int | None = None
    repeats: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def ratio(one: Measurement, other: Measurement) -> float:
    """How many times longer one takes than other; ValueError unless the same run measured both sides of the same work."""
    if one.run != other.run or one.work != other.work:
        raise ValueError(f"{one.side} and {other.side} were not measured in the same run of the same work")
    if not one.seconds or not other.seconds:
        raise ValueError(f"{one.side} or {other.side} has no time: {one.error or other.error}")
    return one.seconds / other.seconds


class Meter:
    """Measures on one device; run names this run of the program."""

    def __init__(self, run: str, device: torch.device, repeats: int) -> None:
        self.run = run
        self.device = device
        self.repeats = repeats
        self.cuda = device.type == "cuda"
        self._cover = torch.empty(1 << 31, dtype=torch.uint8, device=device) if self.cuda else None

    def measure(
        self, work: str, side: str, do: Callable[[], Any], before: Callable[[], Any] | None = None, owed_bytes: int = 0
    ) -> Measurement:
        """Time do(), calling before() untimed each time; a failure is recorded, not raised."""
        try:
            prepare = before or (lambda: None)
            prepare()
            do()
            extra = self._extra_bytes(do, prepare, owed_bytes) if self.cuda else None
            times = [self._time(do, prepare) for _ in range(self.repeats)]
        except Exception as error:
            # A peer may lack a compiler, memory or an operator here; the table says so.
            return Measurement(self.run, work, side, None, error=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        finally:
            self._tidy()
        return Measurement(self.run, work, side, statistics.median(times), (min(times), max(times)), extra, self.repeats)

    def _time(self, do: Callable[[], Any], prepare: Callable[[], Any]) -> float:
        prepare()
        if not self.cuda:
            start = time.process_time()
            do()
            return time.process_time() - start
        # The device is still busy when do is launched, as with the output layer in training (some 8 ms for 8,192 rows), and
        # its caches hold other things.
        assert self._cover is not None
        for _ in range(16):
            self._cover.zero_()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        do()
        last.record()
        torch.cuda.synchronize(self.device)
        return first.elapsed_time(last) / 1000

    def _extra_bytes(self, do: Callable[[], Any], prepare: Callable[[], Any], owed: int) -> int:
        prepare()
        self._tidy()
        torch.cuda.reset_peak_memory_stats(self.device)
        held = torch.cuda.memory_allocated(self.device)
        result = do()
        torch.cuda.synchronize(self.device)
        del result
        return max(0, torch.cuda.max_memory_allocated(self.device) - held - owed)

    def _tidy(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()


def copy_bandwidth(meter: Meter) -> float:
    """Bytes read and written per second by a copy within the device's memory, far larger than its caches."""
    source = torch.empty((1 << 31) if meter.cuda else (1 << 27), dtype=torch.uint8, device=meter.device).random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(meter.repeats + 1):
        times.append(meter._time(lambda: target.copy_(source), lambda: None))
    return 2 * source.numel() / statistics.median(times[1:])
