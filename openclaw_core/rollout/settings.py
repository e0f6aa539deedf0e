"""What the proxy is told, free of where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_core.rollout.sessions import PLACEHOLDERS

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The door and its limits. Token counts are ids of the student's tokenizer.

    api_key None lets everybody in, which is for loopback alone. key_setting names, in refusals, where the key comes from.
    aliases are further names of the model. sampling of captured turns is always ours: a client's temperature would train on
    another distribution than the one scored. A stream that has nothing to send yet sends a comment every keep_alive_s.
    """

    model: str = "student"
    aliases: tuple[str, ...] = ("default", "openclaw")
    context_length: int = 32768
    max_response_tokens: int = 8192
    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = -1
    thinking: bool = True
    on_length: str = "drop"
    api_key: str | None = field(default=None, repr=False)
    key_setting: str = "proxy.api_key_env"
    max_waiting: int = 256
    max_wait_s: float = 600.0
    max_body_bytes: int = 32 * 2**20
    keep_alive_s: float = 15.0
    placeholders: tuple[str, ...] = PLACEHOLDERS
