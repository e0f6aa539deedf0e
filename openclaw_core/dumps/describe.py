"""docs/dumps.md, made from the schema: python -m openclaw_core.dumps.describe > docs/dumps.md"""

from __future__ import annotations

from dataclasses import fields

from .schema import SCHEMA_VERSION, TENSORS, DroppedHint, HintDump, SampleDump, StepHeader

PAGE = """\
# Step dumps

Made from `openclaw_core/dumps/schema.py` by `python -m openclaw_core.dumps.describe`; don't edit.

`dumps/` of a run holds, schema version {version}, one file `step-000001.safetensors` per optimizer step and one line per step in
`index.jsonl`. A file is renamed into place when it is whole, and only then gets its line; the file keeps a copy of the line
in its metadata (`openclaw_dump`), so that either can be read without the other. A step that is trained again after a resume
gets another line; the last one counts. `openclaw inspect-candidates RUN` reads all of this.

A line is standard JSON: `schema`, `file`, the fields of the header, and `samples` in batch order.

- Header: {header}.
- Sample: {sample}, `R`, `candidates`.
- Hint: {hint}; a `text` of null is the un-hinted candidate.
- Dropped hint, one that the judge gave and that became no candidate: {dropped}. `text` is its beginning, `characters` the
  length of all of it. Version 1 had no `dropped_hints` at first: where they are absent or null, nothing is known of them.

Tensors of the i-th sample are named `s<i>.<name>`. Axes: R response positions, K ids of a top-K, C candidates that the
teacher scored (the first C of the sample), S ids of the support, P prompt ids. Ids below 0 fill places that hold no id.
All but `response_ids` and `loss_mask` may be absent; a sample without an OPD term has none of the teacher's side, and
`differences`, `weights` and `advantages` are there where `divergence` is the clipped surrogate, `reverse_kl`; of another
`inspect-candidates` finds the pull, -d OPD_t / d ell_cur at cur = old, from the support (with `tail: bin` by the bin of
each id; what reaches an id through the bin of all others isn't in it). w is renormalised over the support; log-probs
are over the whole real vocabulary and never are. `losses` are masked means over positions: `total`, and `grpo` and
`opd` before their weights.

| tensor | axes | dtype | holds |
| --- | --- | --- | --- |
{tensors}
"""


def markdown() -> str:
    """The page."""

    def names(cls: type) -> str:
        return ", ".join(f"`{item.name}`" for item in fields(cls) if item.name != "tensors")

    rows = (f"| `{name}` | {axes} | {dtype} | {text} |" for name, (axes, dtype, text) in TENSORS.items())
    return PAGE.format(
        version=SCHEMA_VERSION,
        header=names(StepHeader),
        sample=names(SampleDump),
        hint=names(HintDump),
        dropped=names(DroppedHint),
        tensors="\n".join(rows),
    )


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
