"""Texts that both tokenizers turn into ids."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from openclaw_core.teacher.compat import validate
from openclaw_core.teacher.probes import TEXTS

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit, of, only, PROBES = pairs["edit"], pairs["of"], pairs["only"], pairs["PROBES"]


def test_probe_texts_show_the_first_place_that_differs(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", lambda value: value["model"]["merges"].pop(1))
    check = of(validate(str(student), str(teacher)), PROBES)
    ids = json.loads((student / "tokenizer.json").read_text())["model"]["vocab"]
    texts = [text for text in TEXTS if "the" in text]
    assert f"{len(texts)} of {len(TEXTS)} texts become other ids, the first 'The quick brown fox" in check.finding
    whole, cut = [ids[word] for word in ("the", "l", "a", "z")], [ids[word] for word in ("th", "e", "l", "a")]
    assert f"on {whole} and {cut}." in check.finding


def test_a_tokenizer_that_the_library_cannot_load(make):
    student, teacher = make("s"), make("t")
    for place, state in ((teacher, "warning"), (student, "problem")):
        edit(place / "tokenizer.json", lambda value: value["added_tokens"][0].pop("lstrip"))
        check = only(validate(str(student), str(teacher)), PROBES, state)
        assert f"{place}/tokenizer.json can't be loaded by the tokenizers library: missing field" in check.finding
