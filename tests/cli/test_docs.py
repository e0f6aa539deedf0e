"""The pages written from the program are current, so that no documented default differs from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_key_is_described() -> None:
    from openclaw_core.config.keys import all_keys

    assert [path for path, key in all_keys().items() if key.section is None and not key.field.description] == []
