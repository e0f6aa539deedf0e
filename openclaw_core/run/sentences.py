"""What a run will do, in words: the effective objective, where log-probs come from, how stale a sample may be."""

from __future__ import annotations

from typing import Literal

from openclaw_core.config.schema import Config

Mode = Literal["hybrid", "opd", "grpo"]
SUPPORTS = {
    "student": "the student's {k} most probable ids",
    "teacher": "the chosen teacher's {k} most probable ids",
    "overlap": "the ids among the {k} most probable of both student and chosen teacher",
}
SELECTIONS = {
    "shortest": "the shortest hint",
    "token_optimal": "the one with the largest overlap per position (token_optimal)",
    "sequence_optimal": "the one with the largest overlap per step (sequence_optimal)",
    "signal_optimal": "the one with the largest overlap among those that say something (signal_optimal)",
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
    support = SUPPORTS[loss.subset].format(k=loss.k) + (" and one bin for the rest" if loss.tail == "bin" else "")
    chosen = (
        "one hinted candidate"
        if loss.max_candidates == 1
        else f"up to {loss.max_candidates} hinted candidates, {SELECTIONS[loss.selection]}"
    )
    bound = f"differences clipped at {loss.diff_clip:g}" if loss.diff_clip > 0 else "differences not clipped"
    rl_only = "pulled by the un-hinted teacher (anchor)" if loss.opd_on_rl_only == "anchor" else "left alone (skip)"
    return (
        f"{loss.w_opd:g} x OPD towards the teacher over {support} (K = {loss.k}, M = {loss.max_candidates}: {chosen}; {bound}; "
        f"samples without a hint are {rl_only})"
    )


def logprob_sources(config: Config) -> dict[str, str]:
    """Where each log-prob comes from, at which temperature, and what it is for."""
    loss, rollout = config.loss, config.rollout
    sources = {
        "old": f"the trainer's own pass at the start of the step, temperature {loss.temperature:g}: denominator of the ratio",
        "current": f"the pass that is differentiated, temperature {loss.temperature:g}",
        "rollout": f"the engine's at its sampling temperature {rollout.temperature:g}: stored and compared with old, never trained on",
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
