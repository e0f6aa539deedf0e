"""Rules between keys: what stops a run, what is told, and which keys have no effect."""

from __future__ import annotations

import pytest

from openclaw_core.config.checks import check_environment, is_loopback
from openclaw_core.config.load import load_profile
from openclaw_core.errors import UsageFindings

OPENAI = ("judge.kind=openai", "judge.model=m", "judge.base_url=https://host/v1")
JENSEN = "loss.divergence=jensen_shannon"


def wrong(*overrides: str, profile: str = "tiny-cpu") -> str:
    with pytest.raises(UsageFindings) as caught:
        load_profile(profile, overrides, {})
    return str(caught.value)


def told(*overrides: str, profile: str = "tiny-cpu") -> str:
    return "\n".join(f"{what} {remedy}" for what, remedy in load_profile(profile, overrides, {}).warnings)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["loss.w_rl=0", "loss.w_opd=0"], "nothing would be learned"),
        (["rollout.max_response_tokens=1024"], "no room is left for a prompt"),
        (["train.max_tokens_per_device=100"], "fits into no micro-batch"),
        (["judge.kind=openai"], "judge.base_url is not given"),
        ([*OPENAI[:2], "judge.base_url=ftp://host"], "no http or https address"),
        ([*OPENAI[:2], "judge.base_url=https://host/v1?key=abc"], "carries credentials"),
        (["proxy.host=0.0.0.0"], "without a key"),
        (["rollout.top_k=0"], "keeps no token"),
        (["train.dtype=fp16"], "not supported"),
    ],
)
def test_contradictions(overrides: list[str], says: str) -> None:
    assert says in wrong(*overrides)


def test_contradictions_are_told_together() -> None:
    said = wrong("loss.w_rl=0", "loss.w_opd=0", "proxy.host=0.0.0.0", "rollout.top_k=0")
    assert said.count("\n  - ") == 3


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["loss.max_candidates=1"], "has nothing to choose from"),
        (["train.save_every=100", "train.steps=50"], "nothing is saved before its end"),
        (["users.eval_every=100"], "no reading in between"),
        (["rollout.top_p=0.95"], "unfiltered"),
        (["loss.temperature=0.7"], "not of the distribution that was sampled"),
        (["users.concurrency=300"], "some get 503"),
        (["proxy.host=0.0.0.0", "proxy.api_key_env=PROXY_KEY"], "whoever has the key can train the model"),
        (["users=null"], "only understands simulated users"),
        (["loss.diff_clip=0"], "one improbable token"),
        (["judge.kind=engine"], "as weak as what it judges"),
    ],
)
def test_remarks(overrides: list[str], says: str) -> None:
    assert says in told(*overrides)


@pytest.mark.parametrize(
    ("overrides", "keys", "reason"),
    [
        (["loss.w_opd=0", "loss.k=8"], ["loss.k (--set)"], "loss.w_opd is 0"),
        (["loss.w_opd=0", "teacher.hf=x"], ["teacher (--set)"], "loss.w_opd is 0"),
        ([JENSEN, "loss.diff_clip=0", "loss.eps_clip=0.1"], ["loss.diff_clip (--set) has"], "loss.divergence is jensen_shannon"),
        ([JENSEN, "loss.w_rl=0", "loss.eps_clip=0.1"], ["loss.eps_clip (--set) has"], "loss.divergence is jensen_shannon"),
        ([*OPENAI, "judge.unparsable=0.1"], ["judge.unparsable (--set)"], "judge.kind is openai"),
        (
            ["judge.base_url=http://h/v1", "judge.model=m"],
            ["judge.base_url (--set)", "judge.model (--set)"],
            "judge.kind is scripted",
        ),
        (
            ["partition.actor.sequence_parallel=true"],
            ["partition.actor.sequence_parallel"],
            "partition.actor.tensor_parallel is 1",
        ),
        (["judge.only_useless=true", "judge.useless_hints=0.5"], ["judge.useless_hints"], "judge.only_useless is true"),
    ],
)
def test_keys_without_effect(overrides: list[str], keys: list[str], reason: str) -> None:
    said = told(*overrides)
    assert all(key in said for key in keys)
    assert f"no effect because {reason}" in said
    assert "one improbable token" not in said


@pytest.mark.parametrize("profile", ["tiny-cpu", "qwen3-4b-topk", "qwen3-4b-grpo", "qwen3-4b-opd"])
def test_shipped_profiles_set_no_key_without_effect(profile: str) -> None:
    assert "no effect" not in told(profile=profile)


def test_the_demonstration_has_nothing_to_remark() -> None:
    assert told() == ""


def test_secrets_are_looked_for_where_a_run_needs_them() -> None:
    config = load_profile("tiny-cpu", [*OPENAI, "judge.api_key_env=JUDGE_KEY", "proxy.api_key_env=PROXY_KEY"], {}).config
    assert check_environment(config, {"JUDGE_KEY": "a", "PROXY_KEY": "b"}) == []
    assert [what.split()[0] for what, _ in check_environment(config, {"PROXY_KEY": ""})] == [
        "proxy.api_key_env",
        "judge.api_key_env",
    ]


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("myhost", False)]
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local
