"""One chat turn: request -> prompt ids -> engine -> message, written to the store before anybody sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from openclaw_core.rollout.dispatch import OnLength, drop_reason
from openclaw_core.rollout.engines.client import Generation
from openclaw_core.rollout.gate import Gate
from openclaw_core.rollout.pool import EnginePool, NoEngine
from openclaw_core.rollout.requests import ApiError, ChatRequest
from openclaw_core.rollout.sessions import Place, continuation_key, extends, has_placeholder, place_request
from openclaw_core.rollout.settings import ProxySettings
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.rollout.template import ChatTemplate, off_loop, text_of
from openclaw_core.types import Turn

HEADER_TURN = "x-openclaw-turn-id"
HEADER_SESSION = "x-openclaw-session-id"
HEADER_LIMIT = "x-openclaw-max-tokens"
HEADER_LEFT_OUT = "x-openclaw-ignored"
HEADER_SAMPLING = "x-openclaw-sampling"


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn that is in the store, and the headers that say what was done to the request."""

    turn: Turn
    stream: bool
    include_usage: bool
    headers: dict[str, str] = field(default_factory=dict)


class Chat:
    """What a request passes through. turn_closed is called when a turn got its next state."""

    def __init__(
        self,
        settings: ProxySettings,
        store: Store,
        pool: EnginePool,
        template: ChatTemplate,
        gate: Gate,
        *,
        turn_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.store, self.pool, self.template, self.gate = settings, store, pool, template, gate
        self._turn_closed = turn_closed

    async def answer(self, request: ChatRequest, *, header_id: str | None, side: bool) -> Answer:
        """Serves one request. side turns are answered and kept, and neither close a turn nor become samples.

        Raises ApiError, GateClosed, NoEngine, EngineError, and UserError where the template refuses the messages. Cancelling it
        frees the engine; a reply that is in the store by then stays there.
        """
        turn_id = uuid4().hex
        messages, tools, thinking = request.messages, request.tools, request.thinking
        prompt_ids = await off_loop(messages, lambda: self.template.prompt_ids(messages, tools, thinking=thinking))
        max_tokens = self._token_limit(request, len(prompt_ids))
        place = place_request(self.store, request.messages, header_id=header_id, user_id=request.user, side=side)
        if not side:
            self.store.count("main")
            self._close_parent(place, turn_id)
        sampling = self._sampling(request, side)
        if not self.pool.ready:
            raise NoEngine("no engine has generated a token yet or all are out.")
        async with self.gate.enter():
            generation = await self.pool.generate(prompt_ids, {**sampling, "max_new_tokens": max_tokens}, rid=turn_id)
            # Inside the gate, so that a drained gate means that every reply is in the store.
            return self._record(request, place, turn_id, prompt_ids, generation, sampling, max_tokens, side)

    def _token_limit(self, request: ChatRequest, prompt_tokens: int) -> int:
        room = self.settings.context_length - prompt_tokens
        if room < 1:
            message = f"The prompt has {prompt_tokens} tokens; prompt and reply together may have {self.settings.context_length}."
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        return min(request.max_tokens or self.settings.max_response_tokens, self.settings.max_response_tokens, room)

    def _sampling(self, request: ChatRequest, side: bool) -> dict[str, float]:
        ours = {"temperature": self.settings.temperature, "top_p": self.settings.top_p, "top_k": self.settings.top_k}
        return {**ours, **request.sampling} if side else ours

    def _close_parent(self, place: Place, turn_id: str) -> None:
        if not (place.closes and place.parent_turn_id):
            return
        if has_placeholder([text_of(m.get("content")) for m in place.next_state], self.settings.placeholders):
            self.store.drop_turn(place.parent_turn_id, "placeholder_next_state", next_state=place.next_state)
        elif self.store.close_turn(place.parent_turn_id, place.next_state, next_turn_id=turn_id):
            self._turn_closed()

    def _record(
        self, request: ChatRequest, place: Place, turn_id: str, prompt_ids: tuple[int, ...], generation: Generation,
        sampling: dict[str, float], max_tokens: int, side: bool,
    ) -> Answer:  # fmt: skip
        parsed = self.template.parse_reply(generation.response_ids, prompt_ids, turn_id=turn_id, has_tools=bool(request.tools))
        flags = [*parsed.flags, *self._flags(request, place, prompt_ids, parsed.text, generation, side)]
        turn = Turn(
            turn_id=turn_id,
            session_id=place.session.session_id,
            lineage_id=place.lineage_id,
            messages=request.messages,
            tools=request.tools,
            reply=parsed.message,
            prompt_ids=prompt_ids,
            response_ids=generation.response_ids,
            response_logprobs=generation.logprobs,
            finish_reason=generation.finish_reason,
            # Of a reply that straddles an update the oldest part counts.
            weight_version=min((span.version for span in generation.versions), default=generation.weight_version),
        )
        note = {
            "max_tokens": max_tokens, "asked_max_tokens": request.max_tokens,
            "sampling": sampling, "asked_sampling": request.sampling,
            "left_out": request.left_out, "stream": request.stream,
        }  # fmt: skip
        thinking = self.template.thinking if request.thinking is None else request.thinking
        reason = drop_reason(generation.finish_reason, flags, cast(OnLength, self.settings.on_length))
        key = continuation_key(request.messages, parsed.message)
        self.store.add_turn(NewTurn(turn, parsed.text, key, thinking, place.parent_turn_id, tuple(flags), note, reason))
        if "empty" in flags:
            raise ApiError(
                502, "empty_reply", f"The model said nothing (turn {turn_id}, finished by {generation.finish_reason})."
            )
        if generation.finish_reason == "abort":
            message = f"The engine aborted the reply (turn {turn_id}): {generation.abort_message or 'no reason given'}."
            raise ApiError(503, "aborted", message, headers={"Retry-After": "1"})
        return Answer(turn, request.stream, request.include_usage, _headers(request, turn, max_tokens, sampling))

    def _flags(
        self, request: ChatRequest, place: Place, prompt_ids: tuple[int, ...], text: str, generation: Generation, side: bool
    ) -> list[str]:
        flags = []
        if side:
            flags.append("side")
        parent = self.store.turn(place.parent_turn_id) if place.parent_turn_id else None
        if parent and not extends(prompt_ids, parent):
            flags.append("prompt_drift")
        known = len(parent.turn.messages) + 1 if parent else 0
        if has_placeholder([text_of(m.get("content")) for m in request.messages[known:]], self.settings.placeholders):
            flags.append("placeholder_in_prompt")
        if has_placeholder([text], self.settings.placeholders):
            flags.append("placeholder_reply")
        if len({span.version for span in generation.versions}) > 1:
            flags.append("mixed_weights")
        return flags


def _headers(request: ChatRequest, turn: Turn, max_tokens: int, sampling: dict[str, Any]) -> dict[str, str]:
    headers = {HEADER_TURN: turn.turn_id, HEADER_SESSION: turn.session_id}
    if request.max_tokens and request.max_tokens > max_tokens:
        headers[HEADER_LIMIT] = f"{max_tokens} (asked {request.max_tokens})"
    if any(sampling[name] != value for name, value in request.sampling.items()):
        headers[HEADER_SAMPLING] = ", ".join(f"{name}={value:g}" for name, value in sampling.items())
    if request.left_out:
        # Field names are the client's own text, and a header takes little of it.
        headers[HEADER_LEFT_OUT] = ", ".join(re.sub(r"[^A-Za-z0-9_.-]", "?", name)[:64] for name in request.left_out[:32])
    return headers
