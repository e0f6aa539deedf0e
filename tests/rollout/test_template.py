from __future__ import annotations

import logging
import runpy
from pathlib import Path

import pytest

from openclaw_core.errors import UserError
from openclaw_core.rollout import template as template_module
from openclaw_core.rollout.template import HINT_FORMAT, ChatTemplate, with_hint

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "sort: b a"}
QWEN_LIKE = """
{%- if tools %}{{ '<|im_start|>system\n' + messages[0].content + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif not (tools and loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' }}
        {%- if m.reasoning_content and loop.index0 > last.user %}
            {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
""".strip()
TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {}}},)


def decode(template, ids):
    return template.tokenizer.decode(list(ids))


def test_hint_goes_into_the_last_user_message_and_nothing_else_changes(template):
    messages = [SYSTEM, USER, {"role": "assistant", "content": "a b"}, {"role": "user", "content": "again"}]
    plain, hinted = template.prompt_ids(messages), template.hinted_prompt_ids(messages, (), " in capitals ")
    assert decode(template, hinted) == decode(template, plain).replace(
        "again", "again\n\n[user's hint / instruction]\nin capitals"
    )
    suffix = tuple(template.tokenizer("<|im_start|>assistant\n")["input_ids"])
    assert plain[-len(suffix) :] == hinted[-len(suffix) :] == suffix


def test_prompts_past_the_tokenizers_own_length_are_nobodys_warning():
    tokenizer = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["make_tokenizer"]()
    tokenizer.model_max_length = 4
    template, said = ChatTemplate(tokenizer), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    try:
        assert len(template.prompt_ids([SYSTEM, USER])) > 4
        assert len(template.hinted_prompt_ids([SYSTEM, USER], (), "in capitals")) > 4
        assert said == []
        tokenizer("a b c d e f")
        assert "longer than the specified maximum" in said[0], "the same tokenizer, asked plainly, does warn"
    finally:
        logging.getLogger("transformers").removeHandler(handler)


def test_hint_goes_before_tool_results_that_follow_the_user(template):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    hinted = with_hint(messages, "use it")
    assert hinted[0]["content"] == USER["content"] + HINT_FORMAT.format(hint="use it")
    assert hinted[1:] == messages[1:]
    assert messages[0] == USER


def test_parts_and_plain_text_give_the_same_ids(template):
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    text = [{"role": "user", "content": "one\ntwo"}]
    assert template.prompt_ids(parts) == template.prompt_ids(text)
    assert template.hinted_prompt_ids(parts, (), "hint") == template.hinted_prompt_ids(text, (), "hint")
    assert b"two" in decode(template, template.prompt_ids(parts)).encode()


def test_without_a_user_message_the_hint_is_one(template):
    assert with_hint([SYSTEM], "do it") == [SYSTEM, {"role": "user", "content": "[user's hint / instruction]\ndo it"}]


CONVERSATION = [
    SYSTEM,
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one", "reasoning_content": "OLD"},
    USER,
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "NEW",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "seen"},
]
WRITTEN = "[user's hint / instruction]\nDO IT"


@pytest.fixture(scope="module")
def qwen_like():
    """A template that keeps reasoning since the last user message and drops earlier ones, as Qwen3's does."""
    return ChatTemplate(runpy.run_path(str(Path(__file__).with_name("conftest.py")))["make_tokenizer"](QWEN_LIKE))


@pytest.mark.parametrize(
    ("placement", "before", "after"),
    [
        ("last_user", "sort: b a\n\n" + WRITTEN, "<|im_end|>"),
        ("system", "be brief\n\n" + WRITTEN, "[{"),
        ("message", "sort: b a<|im_end|>\n<|im_start|>user\n" + WRITTEN, "<|im_end|>"),
    ],
)
@pytest.mark.parametrize("thinking", [True, False])
def test_placements_add_the_hint_and_change_nothing_else(qwen_like, placement, before, after, thinking):
    plain = qwen_like.prompt_ids(CONVERSATION, TOOLS, thinking=thinking)
    hinted = qwen_like.hinted_prompt_ids(CONVERSATION, TOOLS, "DO IT", thinking=thinking, placement=placement, prompt_ids=plain)
    text = decode(qwen_like, hinted)
    assert before + after in text
    for added in ("<|im_end|>\n<|im_start|>user\n" + WRITTEN, "\n\n" + WRITTEN):
        if placement == "message" or not added.startswith("<"):
            text = text.replace(added, "", 1)
    assert text == decode(qwen_like, plain), "thinking, tools, earlier steps and the generation prompt are as they were"
    assert "NEW" in text
    assert "OLD" not in text
    assert '"name": "look"' in text
    suffix = qwen_like.generation_suffix(CONVERSATION, TOOLS, thinking=thinking)
    assert hinted[-len(suffix) :] == plain[-len(suffix) :] == suffix


@pytest.mark.parametrize("placement", ["last_user", "system", "message"])
def test_placements_with_the_shipped_model(placement):
    tiny = ChatTemplate.from_folder(Path(template_module.__file__).parents[1] / "assets" / "tiny-qwen3")
    plain = tiny.prompt_ids(CONVERSATION, TOOLS)
    text = decode(tiny, tiny.hinted_prompt_ids(CONVERSATION, TOOLS, "DO IT", placement=placement, prompt_ids=plain))
    assert text.count(WRITTEN) == 1
    if placement != "message":
        assert text.replace("\n\n" + WRITTEN, "") == decode(tiny, plain)
    assert text.endswith(decode(tiny, tiny.generation_suffix(CONVERSATION, TOOLS)))


def test_a_system_message_is_made_for_the_hint():
    assert with_hint([USER], "do it", "system") == [{"role": "system", "content": "[user's hint / instruction]\ndo it"}, USER]
    assert with_hint([SYSTEM], "do it", "message")[1:] == [{"role": "user", "content": "[user's hint / instruction]\ndo it"}]


def test_a_prompt_that_ends_otherwise_is_refused(template):
    plain = template.prompt_ids([USER])
    with pytest.raises(UserError, match="doesn't end as the student's own"):
        template.hinted_prompt_ids([USER], (), "hint", prompt_ids=plain[:-1])
    with pytest.raises(UserError, match="doesn't end as the student's own"):
        template.hinted_prompt_ids([USER], (), "hint", thinking=True, prompt_ids=template.prompt_ids([USER], thinking=False))


def test_tools_and_thinking_reach_both_prompts(template):
    for ids in (
        template.prompt_ids([USER], TOOLS, thinking=False),
        template.hinted_prompt_ids([USER], TOOLS, "hint", thinking=False),
    ):
        text = decode(template, ids)
        assert '"name": "look"' in text
        assert text.endswith("<think>\n\n</think>\n\n")
    assert not decode(template, template.prompt_ids([USER], TOOLS)).endswith("</think>\n\n")


def test_consecutive_tool_results_are_rendered_together(template):
    calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}} for i in "ab"]
    results = [{"role": "tool", "tool_call_id": i, "content": i} for i in "ab"]
    text = decode(template, template.prompt_ids([USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]))
    assert "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>" in text


def test_reply_is_the_text_of_its_ids_without_the_end(template, encode):
    parsed = template.parse_reply(encode(" hello\nwörld "), template.prompt_ids([USER]), turn_id="t")
    assert parsed.message == {"role": "assistant", "content": " hello\nwörld "}
    assert parsed.flags == ()


def test_non_canonical_ids_are_kept_as_they_are(template):
    apart = template.tokenizer.convert_tokens_to_ids(["h", "i"])
    together = template.tokenizer("hi")["input_ids"]
    assert len(together) == 1
    assert template.parse_reply(apart, (), turn_id="t").text == template.parse_reply(together, (), turn_id="t").text == "hi"


@pytest.mark.parametrize(
    ("reply", "opened", "message", "flags"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, {"reasoning_content": "hm", "content": "yes"}, ()),
        ("hm\n</think>\n\nyes", True, {"reasoning_content": "hm", "content": "yes"}, ()),
        ("still thinking", True, {"reasoning_content": "still thinking", "content": ""}, ("unfinished_reasoning",)),
        ("a <think> b", False, {"content": "a <think> b"}, ()),
        (
            'hm <tool_call>{"name": "look", "arguments": {}}</tool_call>', True,
            {"reasoning_content": 'hm <tool_call>{"name": "look", "arguments": {}}</tool_call>', "content": ""},
            ("unfinished_reasoning", "tool_call_in_reasoning"),
        ),
    ],
)  # fmt: skip
def test_reasoning(template, thinking_template, encode, reply, opened, message, flags):
    used = thinking_template if opened else template
    parsed = used.parse_reply(encode(reply), used.prompt_ids([USER]), turn_id="t", has_tools=True)
    assert parsed.message == {"role": "assistant", **message}
    assert parsed.flags == flags
    assert parsed.text == reply


def test_tool_calls_become_openai_calls(template, encode):
    text = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "ü"}}\n</tool_call><tool_call>{"name": "b"}</tool_call>'
    message = template.parse_reply(encode(text), (), turn_id="t" * 32, has_tools=True).message
    assert message["content"] == "I look."
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "look", "arguments": '{"at": "ü"}'},
        {"name": "b", "arguments": "{}"},
    ]
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    alone = template.parse_reply(encode('<tool_call>{"name": "b"}</tool_call>'), (), turn_id="t", has_tools=True).message
    assert alone["content"] is None


@pytest.mark.parametrize("call", ["{broken", '{"arguments": {}}', '{"name": 3}', '{"name": "f", "arguments": [1]}', "[]", "1"])
def test_malformed_calls_stay_in_the_content(template, encode, call):
    text = f"x <tool_call>{call}</tool_call>"
    parsed = template.parse_reply(encode(text), (), turn_id="t", has_tools=True)
    assert parsed.message == {"role": "assistant", "content": text}
    assert parsed.flags == ("malformed_tool_call",)


def test_calls_are_text_where_the_request_has_no_tools(template, encode):
    text = '<tool_call>{"name": "b"}</tool_call>'
    assert template.parse_reply(encode(text), (), turn_id="t").message["content"] == text


def test_odd_ids_are_flagged_and_left_out(template, encode):
    outside = template.vocab_size
    start = template.tokenizer.convert_tokens_to_ids("<|im_start|>")
    parsed = template.parse_reply((*encode("ab")[:2], outside, start, *encode("c")), (), turn_id="t")
    assert parsed.text == "abc"
    assert parsed.flags == ("id_out_of_range", "special_token_in_reply")
    assert template.parse_reply(encode(""), (), turn_id="t").flags == ("empty",)


def test_folders_without_tokenizer_or_template_are_refused(tmp_path, tokenizer):
    with pytest.raises(UserError, match="no tokenizer folder"):
        ChatTemplate.from_folder(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot be read"):
        ChatTemplate.from_folder(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert ChatTemplate.from_folder(tmp_path).prompt_ids([USER]) == ChatTemplate(tokenizer).prompt_ids([USER])


def test_template_errors_are_sentences(template):
    with pytest.raises(UserError, match="cannot render"):
        template.prompt_ids([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 3, "arguments": "{}"}}]}])
