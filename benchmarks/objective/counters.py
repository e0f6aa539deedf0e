"""Hardware counters of the kernels, from a profiler's run of --once.

ncu --csv --clock-control none -k regex:"_fused_kernel|_stats_kernel|_topk_kernel|_gradient_kernel" --metrics METRICS \\
    python -m benchmarks.objective --once > counters.csv
"""

from __future__ import annotations

import csv
from typing import Any

METRICS = {
    "gpu__time_duration.sum": "seconds",
    "dram__bytes_read.sum": "read",
    "dram__bytes_write.sum": "written",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": "exponentials",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
}
UNITS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1.0,
}  # fmt: skip
HEAD = ("kernel", "rows", "time, ms", "read, GB", "written, GB", "moved, TB/s", "L2 hits", "issue slots", "exponentials", "warps")


def read_counters(text: str) -> list[dict[str, Any]]:
    """One entry per launch over the largest number of rows, in order; what was launched for checks alone is left out."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"] in METRICS:
            rows = int(row["Grid Size"].strip("() ").split(",")[0])
            one = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"], "rows": rows})
            one[METRICS[row["Metric Name"]]] = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
    most = max((one["rows"] for one in launches.values()), default=0)
    return [one for one in launches.values() if one["rows"] == most]


def counter_table(counters: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for one in counters:
        moved = (one["read"] + one["written"]) / one["seconds"] / 1e12
        numbers = [f"{one['seconds'] * 1e3:.3g}", f"{one['read'] / 1e9:.3g}", f"{one['written'] / 1e9:.3g}", f"{moved:.3g}"]
        shares = [f"{one[name]:.0f} %" for name in HEAD[6:]]
        lines.append("| " + " | ".join((f"`{one['kernel']}`", f"{one['rows']:,}", *numbers, *shares)) + " |")
    return "\n".join(lines)
