"""Every metric of a run: its name, unit and meaning, in one table from which docs/metrics.md is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..config.schema import Config, Loss


@dataclass(frozen=True, slots=True)
class Metric:
    """name is group/what. unit is "" for a plain number; share is a number between 0 and 1."""

    name: str
    unit: str
    meaning: str


TABLE = (
    Metric("step", "steps", "Optimizer step; 0 for the reading before training."),
    Metric("time", "s since the epoch", "When the line was written."),
    Metric("loss/total", "", "The objective, mean over the samples of the step."),
    Metric("loss/grpo", "", "GRPO term before its weight, mean over all samples (without a verdict: 0) of the masked mean."),
    Metric("loss/opd", "", "OPD term before its weight, mean over the samples with a teacher of the masked mean over positions."),
    Metric("loss/entropy", "nats", "Entropy of the current policy at trained positions."),
    Metric("loss/kl", "nats", "KL(cur, ref) at trained positions."),
    Metric("loss/grad_norm", "", "Norm of the gradient before clipping."),
    Metric("loss/lr", "", "Learning rate."),
    Metric("opd/overlap", "ids", "Mean of O at k* over trained positions of samples with a teacher."),
    Metric("opd/support_size", "ids", "Mean size of the support."),
    Metric("opd/empty_share", "share", "Positions whose support is empty (they add 0 and stay in the mean)."),
    Metric("opd/abs_difference", "nats", "Mean |d| over the support, after clipping."),
    Metric("opd/clipped_share", "share", "Entries of the support whose difference was clipped at c."),
    Metric("opd/signal", "nats", "Mean over positions of the sum over the support of |A|."),
    Metric("opd/student_mass", "share", "The old student's probability that lies in the support."),
    Metric("opd/teacher_mass", "share", "The probability of candidate k* that lies in the support."),
    Metric("opd/candidates", "candidates", "Mean number of candidates of a sample."),
    Metric("opd/choice_share", "share", "Positions of samples that have more than one candidate."),
    Metric("opd/k_star", "", "Mean number of the candidate that teaches."),
    Metric("opd/k_star_N_share", "share", "Positions taught by candidate N, for N from 1."),
    Metric("opd/first_share", "share", "Positions taught by the first candidate (the shortest hint)."),
    Metric("opd/tied_share", "share", "Positions where more than one candidate had the best score; the first of them teaches."),
    Metric("ratio/clipped_share", "share", "Trained tokens whose GRPO ratio was clipped."),
    Metric("ratio/opd_clipped_share", "share", "Entries of the support whose OPD ratio was clipped."),
    Metric("ratio/opd_mean", "", "Mean ratio cur / old over the support."),
    Metric("ratio/mean", "", "Mean ratio cur / old of the sampled tokens."),
    Metric("gap/engine_mean", "nats", "Mean |trainer - engine| of the sampled tokens' log-probs."),
    Metric("gap/engine_max", "nats", "Largest |trainer - engine| of the sampled tokens' log-probs."),
    Metric("batch/samples", "samples", "Samples of the step."),
    Metric("batch/opd_rl", "samples", "Samples with a hint and a verdict."),
    Metric("batch/opd", "samples", "Samples with a hint and no verdict."),
    Metric("batch/rl", "samples", "Samples with a verdict and no hint."),
    Metric("batch/reward", "", "Mean reward of the samples that have a verdict."),
    Metric("batch/response_tokens", "tokens", "Mean length of the replies."),
    Metric("batch/response_tokens_max", "tokens", "Longest reply."),
    Metric("batch/capped_share", "share", "Replies that were cut at their length."),
    Metric("batch/short_repeats", "samples", "Replies of at most 8 tokens that another sample of the step repeats."),
    Metric("batch/staleness", "versions", "Mean number of weight versions that the samples lag."),
    Metric("batch/staleness_max", "versions", "Largest number of weight versions that a sample lags."),
    Metric("batch/entropy", "nats", "Entropy of the old policy at trained positions."),
    Metric("batch/tokens", "tokens", "Trained positions of the step."),
    Metric("teacher/tokens", "tokens", "Tokens that the teacher forwarded for the step's samples, shared prefixes once."),
    Metric("teacher/tokens_whole", "tokens", "The same with every real candidate forwarded whole."),
    Metric(
        "teacher/tokens_published",
        "tokens",
        "The same as the published loop does it: the largest K times the batch, missing candidates filled by repetition.",
    ),
    Metric("seconds/collect", "s", "Waiting for the batch to fill."),
    Metric(
        "seconds/teacher",
        "s",
        "Exposed time of the teacher: waiting for its scores, and for its log-probs at the student's ids.",
    ),
    Metric("seconds/pause", "s", "Waiting for replies under way once the gate is closed."),
    Metric("seconds/old", "s", "Old pass: log-probs and top-K of the student before the step."),
    Metric("seconds/train", "s", "Forward, backward and optimizer."),
    Metric("seconds/sync", "s", "New weights to the engines."),
    Metric("seconds/dump", "s", "Writing the step's dump."),
    Metric("seconds/save", "s", "Writing a checkpoint."),
    Metric("seconds/eval", "s", "Reading the preference rate."),
    Metric("funnel/received", "turns", "Requests received since the run began."),
    Metric("funnel/main", "turns", "Requests of main turns."),
    Metric("funnel/answered", "turns", "Turns answered."),
    Metric("funnel/closed", "turns", "Turns whose next state is known."),
    Metric("funnel/judged", "turns", "Turns with votes."),
    Metric("funnel/hinted", "turns", "Turns with an accepted hint."),
    Metric("funnel/sampled", "samples", "Samples made."),
    Metric("funnel/scored", "samples", "Samples scored by the teacher."),
    Metric("funnel/trained", "samples", "Samples trained."),
    Metric("funnel/ready", "samples", "Samples that wait for a batch."),
    Metric("funnel/sessions", "sessions", "Sessions seen since the run began."),
    Metric("eval/preference_rate", "share", "Held-out replies, without any hint, that hold the preferred style."),
    Metric(
        "eval/solved_rate",
        "share",
        "Of the replies that hold the style, those that solve their task (of all replies while none holds it).",
    ),
    Metric("eval/tasks", "tasks", "Held-out tasks of the reading that were answered (the denominator)."),
    Metric("weights/version", "version", "Version of the weights that the engines serve after the step."),
)
KINDS = ("opd+rl", "opd", "rl")
METRICS = {metric.name: metric for metric in TABLE}


def constants(config: Config) -> dict[str, str]:
    """Metrics that cannot move in a run of this configuration, with the reason; of a kind of samples, those that are its own."""
    from ..loss.divergence import DIVERGENCES

    loss = config.loss
    found: dict[str, str] = {"loss/lr": "the learning rate is constant"}
    # Not a matter of configuration: a batch is one step.
    at_one = "a batch is trained in one step, so cur is old and every ratio is 1, but for rounding"
    found |= dict.fromkeys(("ratio/mean", "ratio/clipped_share", "ratio/opd_mean", "ratio/opd_clipped_share"), at_one)
    if loss.w_opd == 0:
        teacher = [name for name in METRICS if name.startswith(("opd/", "teacher/"))]
        teacher += ["loss/opd", "ratio/opd_clipped_share", "ratio/opd_mean", "seconds/teacher", "funnel/scored"]
        found |= dict.fromkeys(teacher, "loss.w_opd is 0: no teacher")
    elif loss.max_candidates == 1 or loss.selection == "shortest":
        why = "loss.max_candidates is 1" if loss.max_candidates == 1 else "loss.selection is shortest"
        found |= dict.fromkeys(
            ("opd/first_share", "opd/tied_share", "opd/choice_share", "opd/k_star", "opd/k_star_N_share"),
            f"{why}: the first candidate always teaches",
        )
    if loss.w_opd > 0 and loss.max_candidates == 1:
        found["opd/candidates"] = "loss.max_candidates is 1"
    if loss.w_opd > 0 and loss.subset != "overlap":
        why = f"loss.subset is {loss.subset}: the support always has K ids"
        found |= dict.fromkeys(("opd/support_size", "opd/empty_share"), why)
    if loss.w_opd > 0 and loss.diff_clip <= 0:
        found["opd/clipped_share"] = "loss.diff_clip is off"
    if loss.w_opd > 0 and not DIVERGENCES.get(loss.divergence).surrogate:
        found |= dict.fromkeys(
            ("opd/clipped_share", "opd/signal", "ratio/opd_clipped_share"), f"loss.divergence is {loss.divergence}: no A, no clip"
        )
    if loss.w_rl == 0:
        found |= dict.fromkeys(("loss/grpo", "ratio/clipped_share", "ratio/mean"), "loss.w_rl is 0")
    if loss.entropy_coef == 0:
        found["loss/entropy"] = "loss.entropy_coef is 0: not computed"
    if config.rollout.on_length == "drop":
        found["batch/capped_share"] = "rollout.on_length is drop: cut replies are never trained"
    if loss.kl_coef == 0:
        found["loss/kl"] = "loss.kl_coef is 0: no reference"
    found |= _of_kinds(loss)
    if config.users is None:
        found |= {name: "there are no simulated users" for name in METRICS if name.startswith("eval/")}
    return found


def _of_kinds(loss: Loss) -> dict[str, str]:
    """Metrics of one kind of samples that cannot move, though those of all samples can."""
    alone = loss.entropy_coef == 0 and loss.kl_coef == 0
    found: dict[str, str] = {}
    if loss.w_rl > 0:
        found["loss/grpo.opd"] = "an OPD-only sample has no verdict: its advantage is 0"
    if alone and loss.w_opd == 0:
        found["loss/total.opd"] = "loss.w_opd is 0, and an OPD-only sample has no verdict"
    if loss.w_opd > 0 and loss.opd_on_rl_only == "skip":
        names = ["loss/opd", "ratio/opd_mean", "ratio/opd_clipped_share", *(name for name in METRICS if name.startswith("opd/"))]
        found |= dict.fromkeys((f"{name}.rl" for name in names), "loss.opd_on_rl_only is skip: no teacher on an RL-only sample")
        if alone and loss.w_rl == 0:
            found["loss/total.rl"] = "loss.w_rl is 0 and loss.opd_on_rl_only is skip"
    elif loss.w_opd > 0:
        names = ["candidates", "choice_share", "k_star", "k_star_N_share", "first_share", "tied_share"]
        found |= dict.fromkeys((f"opd/{name}.rl" for name in names), "an RL-only sample has one candidate")
    return found


def by_kind(groups: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What the loss says of "all" samples under its name, and of each SampleKind as name.opd_rl, name.opd and name.rl."""
    named = {f"{name}.{kind.replace('+', '_')}": value for kind in KINDS for name, value in groups.get(kind, {}).items()}
    return {**groups.get("all", {}), **named}


def unknown(record: dict[str, object]) -> list[str]:
    """Names of a record that the table doesn't have."""
    plain = {name: re.sub(r"\.(opd_rl|opd|rl)$", "", name) for name in record}
    return sorted(name for name in record if re.sub(r"_\d+_", "_N_", plain[name]) not in METRICS)


def markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made from `openclaw_core/track/metrics.py` by `python -m openclaw_core.track.metrics`; don't edit.",
        "",
        "`metrics.jsonl` in the run folder holds one object per optimizer step (step 0 is the reading before training; after",
        "a resume the last line of a step counts). A number that isn't finite is `null`; a metric that a run lacks is absent.",
        "Metrics that can't move in a run (`loss/opd` when `loss.w_opd` is 0) are named as constant by `openclaw status`;",
        "what is so for all samples is so for each kind, and what is so for one kind alone is named as such (`loss/grpo.opd`).",
        "",
        "What the loss says (`loss/` but for norm and rate, `opd/`, `ratio/`, `gap/engine_mean`, `batch/entropy`) is there for",
        "all samples and, with `.opd_rl`, `.opd` or `.rl` behind the name, for those of a kind that the step has: `loss/opd.rl`.",
        "",
        "| name | unit | meaning |",
        "| --- | --- | --- |",
        *(f"| `{metric.name}` | {metric.unit} | {metric.meaning} |" for metric in TABLE),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
