"""Rules between keys. check() finds contradictions that stop a run; remarks() finds what is legal but hardly meant."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..loss.divergence import DIVERGENCES
from .inert import inert_keys
from .schema import Config

Finding = tuple[str, str]


def check(config: Config) -> list[Finding]:
    """Every contradiction, each with its remedy; an empty list when there is none."""
    return [*_objective(config), *_lengths(config), *_judge(config), *_proxy(config)]


def _objective(config: Config) -> list[Finding]:
    loss = config.loss
    if loss.w_rl == 0 and loss.w_opd == 0:
        return [("loss.w_rl and loss.w_opd are both 0, so nothing would be learned.", "Set at least one of them above 0.")]
    return []


def _lengths(config: Config) -> list[Finding]:
    rollout, train = config.rollout, config.train
    found = []
    if rollout.max_response_tokens >= rollout.context_length:
        what = (
            f"rollout.max_response_tokens is {rollout.max_response_tokens} and rollout.context_length {rollout.context_length}: "
            "no room is left for a prompt."
        )
        found.append((what, "Lower the first or raise the second."))
    context = config.partition.actor.context_parallel
    if rollout.context_length > train.max_tokens_per_device * context:
        times = f" x partition.actor.context_parallel {context}" if context > 1 else ""
        what = (
            f"rollout.context_length is {rollout.context_length}, but train.max_tokens_per_device "
            f"{train.max_tokens_per_device}{times}: the longest sample fits into no micro-batch."
        )
        least = -(-rollout.context_length // context)
        found.append((what, f"Set train.max_tokens_per_device to at least {least}, or lower the context."))
    if train.dtype == "fp16":
        what = "train.dtype is fp16, whose loss scaling would skip steps in silence, so it is not supported."
        found.append((what, "Use bf16, or fp32 on the CPU."))
    if rollout.top_k == 0 or rollout.top_k < -1:
        found.append((f"rollout.top_k is {rollout.top_k}, which keeps no token.", "Set -1 for no filter, or at least 1."))
    return found


def _judge(config: Config) -> list[Finding]:
    judge = config.judge
    if judge.kind != "openai":
        return []
    found = [
        (f"judge.kind is openai, but judge.{name} is not given.", f"Set judge.{name}, or another judge.kind.")
        for name in ("model", "base_url")
        if getattr(judge, name) is None
    ]
    if judge.base_url is not None:
        found += _address(judge.base_url)
    return found


def _address(url: str) -> list[Finding]:
    """Findings on judge.base_url; the address itself is not repeated, for it may hold a secret."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = bool(parts.username or parts.password or parts.query)
    except ValueError:
        whole, secret = False, False
    if secret:
        return [("judge.base_url carries credentials or a query.", "Give the bare address, and the key by judge.api_key_env.")]
    if not whole:
        return [("judge.base_url is no http or https address.", "Give e.g. https://host/v1.")]
    return []


def _proxy(config: Config) -> list[Finding]:
    proxy = config.proxy
    if proxy.api_key_env is None and not is_loopback(proxy.host):
        what = f"proxy.host is {proxy.host}, which others can reach without a key; whoever can chat can train the model."
        return [(what, "Set proxy.api_key_env to the name of an environment variable with a key, or use 127.0.0.1.")]
    return []


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_environment(config: Config, env: Mapping[str, str]) -> list[Finding]:
    """Secrets that the configuration names and the environment lacks: a real run needs them, a plan doesn't."""
    names = {"proxy.api_key_env": config.proxy.api_key_env}
    if config.judge.kind == "openai":
        names["judge.api_key_env"] = config.judge.api_key_env
    return [
        (f"{key} names the environment variable {name}, which is not set.", f"Set it, e.g. {name}=... openclaw train ...")
        for key, name in names.items()
        if name is not None and not env.get(name)
    ]


def remarks(config: Config, origins: Mapping[str, str]) -> list[Finding]:
    """What is legal but hardly meant, and keys without effect."""
    return [*_weak_objective(config), *_intervals(config), *_surroundings(config), *inert_keys(config, origins)]


def _weak_objective(config: Config) -> list[Finding]:
    loss, rollout = config.loss, config.rollout
    found = []
    if loss.w_opd > 0 and loss.max_candidates == 1 and loss.selection != "shortest":
        what = f"loss.max_candidates is 1, so loss.selection={loss.selection} has nothing to choose from."
        found.append((what, "Set loss.max_candidates to 2 or more."))
    if loss.temperature != rollout.temperature and loss.w_rl > 0:
        what = (
            f"loss.temperature is {loss.temperature:g}, but replies are sampled at {rollout.temperature:g}: "
            "the ratio is not of the distribution that was sampled."
        )
        found.append((what, "Set both to the same value."))
    if rollout.top_p != 1 or rollout.top_k != -1:
        filters = f"rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k}"
        what = f"{filters} filter what is sampled, but the trainer's log-probs are unfiltered."
        found.append((what, "Set 1 and -1, unless you mean it."))
    if loss.w_opd > 0 and loss.diff_clip <= 0 and DIVERGENCES.get(loss.divergence).surrogate:
        found.append((f"loss.diff_clip is {loss.diff_clip:g}, so one improbable token can dominate a step.", "Set it to e.g. 1."))
    return found


def _intervals(config: Config) -> list[Finding]:
    train, users = config.train, config.users
    found = []
    if train.save_every > train.steps:
        what = f"train.save_every is {train.save_every}, but the run has {train.steps} steps: nothing is saved before its end."
        found.append((what, "Lower train.save_every."))
    if users is not None and users.eval_every > train.steps:
        what = f"users.eval_every is {users.eval_every}, but the run has {train.steps} steps: no reading in between."
        found.append((what, "Lower users.eval_every."))
    if users is not None and users.concurrency > config.proxy.max_waiting:
        what = f"users.concurrency is {users.concurrency}, more than proxy.max_waiting={config.proxy.max_waiting}: some get 503."
        found.append((what, "Raise proxy.max_waiting."))
    return found


def _surroundings(config: Config) -> list[Finding]:
    judge, found = config.judge, []
    if judge.kind == "engine" and (judge.model is None or judge.model == config.student.hf):
        what = "The judge runs the student's own starting model, so it is as weak as what it judges."
        found.append((what, "Give a stronger one with judge.model or judge.kind=openai."))
    if judge.kind == "scripted" and config.users is None:
        what = "The scripted judge only understands simulated users, and there are none."
        found.append((what, "Add a users section, or use another judge.kind."))
    if config.rollout.engine == "embedded" and config.partition.device == "cuda":
        found.append(("The embedded engine is made for small models on the CPU.", "Use rollout.engine=sglang on GPUs."))
    if not is_loopback(config.proxy.host):
        found.append(
            (f"proxy.host is {config.proxy.host}: whoever has the key can train the model.", "Use 127.0.0.1 to keep it local.")
        )
    return found
