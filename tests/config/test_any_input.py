"""Whatever a profile holds: a configuration, or an error for users. Never anything else."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openclaw_core.config.keys import all_keys, nearest
from openclaw_core.config.load import load_profile
from openclaw_core.errors import UsageError

NAMES = sorted({part for path in all_keys() for part in path.split(".")})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["cpu", "student", "qwen3-4b", "1e-5", "$X", "2,3", "0.0.0.0"])
)


def _mapping(inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[object, object]]:
    keys = st.sampled_from(NAMES) | st.text(max_size=6) | st.integers() | st.none()
    return st.dictionaries(keys, inner, max_size=4)


VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | _mapping(inner), max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(_mapping(VALUES))
def test_any_mapping_is_a_configuration_or_an_error_for_users(data: dict[object, object]) -> None:
    data.pop("extends", None)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_text(yaml.safe_dump(data, allow_unicode=True))
        refusal = _refusal(path)
    assert refusal is None or (str(refusal) and refusal.exit_code == 2)


def _refusal(profile: str | Path, overrides: tuple[str, ...] = ()) -> UsageError | None:
    """The error for users that loading ends with, None where it doesn't; any other exception goes through."""
    try:
        load_profile(profile, overrides, {})
    except UsageError as error:
        return error
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(all_keys())) | st.text(max_size=12), st.text(max_size=12)), max_size=3))
@example([("teacher.hf", "a\0b")])
def test_any_setting_is_taken_or_refused(pairs: list[tuple[str, str]]) -> None:
    refusal = _refusal("tiny-cpu", tuple(f"{key}={value}" for key, value in pairs))
    assert refusal is None or str(refusal)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_there_is_an_answer_for_every_wrong_key(text: str) -> None:
    meant = nearest(text)
    assert meant is None or meant in all_keys()


@pytest.mark.parametrize("text", ["a: &x [*x]\n", "a: &x {b: 1}\nc: *x\n", "[" * 5000, "a: " + "9" * 5000])
def test_traps_of_yaml(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_profile(path, (), {})
