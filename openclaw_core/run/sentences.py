"""What a run will do, in words: the effective objective, where log-probs come from, how stale a sample may be."""

from __future__ import annotations

from typing import Literal

from openclaw_core.config.schema import Config
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.needs import needs

Mode = Literal["hybrid", "opd", "grpo"]
SUPPORTS = {
    "student": "the student's top-{k} ids",
    "teacher": "the chosen teacher's top-{k} ids",
    "overlap": "the ids in both the student's and the chosen teacher's top-{k}",
}
SELECTIONS = {
    "shortest": "the shortest hint",
    "token_optimal": "the largest overlap per position",
    "sequence_optimal": "the largest overlap per step",
    "signal_optimal": "the largest overlap per step among hints that say something",
}


def mode_of(config: Config) -> Mode:
    """Which terms of the objective are there. A configuration with neither is refused before."""
    if config.loss.w_opd == 0:
        return "grpo"
    return "opd" if config.loss.w_rl == 0 else "hybrid"


def objective(config: Config) -> str:
    """The effective objective in one sentence."""
    loss, mode = config.loss, mode_of(config)
    clip = f"ratio clipped to [{1 - loss.eps_clip:g}, {1 + loss.eps_clip_high:g}]"
    grpo = f"{loss.w_rl:g} x GRPO on the judge's verdict as raw reward"
    title = {"hybrid": "Hybrid", "opd": "OPD only", "grpo": "GRPO only"}[mode]
    terms = [grpo] if mode != "opd" else []
    if mode != "grpo":
        terms.append(_opd(config))
    extra = [f"{loss.entropy_coef:g} x entropy bonus"] if loss.entropy_coef else []
    extra += [f"{loss.kl_coef:g} x KL to the starting student"] if loss.kl_coef else []
    unused = {"opd": "; verdicts do not train (w_rl = 0)", "grpo": "; no teacher (w_opd = 0)"}.get(mode, "")
    return f"{title}: {' + '.join(terms + extra)}; {clip}{unused}."


def _opd(config: Config) -> str:
    loss = config.loss
    named = SUPPORTS.get(loss.subset, f"the top-{{k}} ids of subset {loss.subset}").format(k=loss.k)
    support = f"{named} and one bin for the rest" if loss.tail == "bin" else named
    how = f": {SELECTIONS[loss.selection]}" if loss.selection in SELECTIONS else ""
    several = f"M = {loss.max_candidates} candidates at most, chosen by {loss.selection}{how}"
    chosen = "M = 1 candidate, so nothing is chosen" if loss.max_candidates == 1 else several
    bound = f"differences clipped at {loss.diff_clip:g}" if loss.diff_clip > 0 else "differences not clipped"
    what = "OPD"
    if not DIVERGENCES.get(loss.divergence).surrogate:
        what, bound = f"OPD by {loss.divergence}", "without ratio and clip"
    anchor = loss.opd_on_rl_only == "anchor"
    rl_only = "pulled by the un-hinted teacher (anchor)" if anchor else "left alone by OPD (skip)"
    return f"{loss.w_opd:g} x {what} over {support} (K = {loss.k}; {chosen}; {bound}; samples without a hint are {rl_only})"


def logprob_sources(config: Config) -> dict[str, str]:
    """Where each log-prob comes from, at which temperature, and what it is for."""
    loss, rollout = config.loss, config.rollout
    own = (
        "the trainer's own pass at the start of the step"
        if needs(loss).at_student
        else "the training pass itself, before the step"
    )
    sources = {
        "old": f"{own}, temperature {loss.temperature:g}: denominator of the ratio",
        "current": f"the pass that is differentiated, temperature {loss.temperature:g}",
        "rollout": f"the engine's at its sampling temperature {rollout.temperature:g}: compared with old, never trained on",
    }
    if loss.w_opd > 0:
        sources["teacher"] = f"the teacher's own pass over each candidate, temperature {loss.temperature:g}"
    if loss.kl_coef > 0:
        sources["reference"] = f"the starting student's pass, temperature {loss.temperature:g}"
    return sources


def staleness(config: Config) -> str:
    """How far behind the policy a sample may be, and how often it is used."""
    lag = config.rollout.max_staleness
    bound = "of the current weights only" if lag == 0 else f"at most {lag} weight version{'s' if lag > 1 else ''} behind"
    return f"Each sample is trained once (1 epoch per batch, 1 step per batch), {bound}; older ones are dropped with a reason."
