from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from openclaw_core.dumps.tokens import TokenTexts, tokenizer_hash
from openclaw_core.errors import UserError


@pytest.fixture
def path(tmp_path):
    tokenizer = Tokenizer(models.BPE({"h": 0, "Ġi": 1, "Ã": 2, "©": 3}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_ids_have_texts_and_ids_beyond_the_tokenizer_are_flagged(path):
    texts = TokenTexts(path)
    assert texts.last_id == 4
    assert (texts.one(1).text, texts.one(1).flagged) == (" i", False)
    assert texts.one(4).text == "<|im_end|>"
    assert texts.one(2).text == "Ã"
    for beyond in (5, 151700, -1):
        assert (texts.one(beyond).text, texts.one(beyond).flagged) == (f"<id {beyond}>", True)
    assert texts.many([0, 1, 2, 3, 151700, 4]) == "h ié<id 151700><|im_end|>"
    assert texts.hash == tokenizer_hash(path)


def test_without_a_tokenizer_ids_are_shown_and_none_is_flagged():
    texts = TokenTexts(None)
    assert (texts.one(5).text, texts.one(5).flagged) == ("<id 5>", False)
    assert texts.many([1, 2, 3]) == "<3 ids>"


def test_a_broken_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        TokenTexts(tmp_path / "tokenizer.json")
