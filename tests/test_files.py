from __future__ import annotations

import pytest

from openclaw_core.files import write_atomic


def test_errors_name_the_file_that_was_meant(tmp_path):
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "gone" / "x", FileNotFoundError)):
        with pytest.raises(kind) as caught:
            write_atomic(path, "text")
        assert caught.value.filename == str(path)
    write_atomic(tmp_path / "x", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
