"""The wrong kind of folder is named, with what to do."""

from __future__ import annotations

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.sniff import resolve, sniff
from openclaw_core.errors import UserError


def test_kinds(make_hf, tmp_path):
    source = make_hf()
    convert(plan_conversion(source, tmp_path / "td"))
    assert sniff(source).kind == "hf"
    for place in (tmp_path / "td", tmp_path / "td" / "release"):
        found = sniff(place)
        assert (found.kind, found.folder) == ("torch_dist", tmp_path / "td" / "release")
        assert resolve(place) == tmp_path / "td" / "release"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["metadata.json", "__0_0.distcp"], "half-written"),
        (["mp_rank_00/model.pt"], "old per-rank format"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA"),
        (["model.gguf"], "GGUF"),
        (["iter_0000010/.metadata"], "Name one of them"),
        (["config.json", "tokenizer.json"], "no weights"),
        (["config.json", "training_args.bin", "optimizer.pt", "rng_state_0.pth"], "no weights"),
        (["weights.pt"], r"its weights are pickle \(weights\.pt\), which can run code .* save_pretrained"),
        (["params.json", "consolidated.00.pth"], "its weights are pickle"),
        (["model.safetensors"], "no config.json"),
        (["model.safetensors", "tokenizer.json"], "no config.json"),
        (["model.safetensors.index.json", "tokenizer.json"], "no weights"),
        (["notes.txt"], "neither config.json"),
        ([], "neither config.json"),
    ],
)
def test_what_a_folder_is_instead(tmp_path, files, said):
    folder = tmp_path / "x"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    with pytest.raises(UserError, match=said):
        sniff(folder)


def test_a_conversion_that_lost_its_tracker_is_whole_again_by_the_remedy(make_hf, tmp_path):
    convert(plan_conversion(make_hf(), tmp_path / "td"))
    tracker = tmp_path / "td" / "latest_checkpointed_iteration.txt"
    tracker.unlink()
    with pytest.raises(UserError, match=r"release/ but no latest_checkpointed_iteration\.txt\. Write the word release into"):
        sniff(tmp_path / "td")
    tracker.write_text("release")
    assert not recheck(tmp_path / "td").problems


def test_paths_that_are_no_folders(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"")
    with pytest.raises(UserError, match="is a file"):
        sniff(tmp_path / "file.bin")
    with pytest.raises(UserError, match=r"doesn't exist\. Check"):
        sniff(tmp_path / "nowhere")
    with pytest.raises(UserError, match="hf download"):
        sniff("Qwen/Qwen3-4B")


def test_a_tracker_that_names_nothing(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("40\n")
    with pytest.raises(UserError, match="names '40'"):
        sniff(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("../../etc")
    with pytest.raises(UserError, match="isn't there completely"):
        sniff(tmp_path)
    for content in (b"\xff\xfe\x00" * 1000, "²".encode(), b""):
        (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(content)
        with pytest.raises(UserError, match="isn't there completely"):
            sniff(tmp_path)


def test_a_tracker_that_is_a_folder(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").mkdir()
    with pytest.raises(UserError, match=r"iteration\.txt can't be read: is a directory\. Name the folder of one step"):
        sniff(tmp_path)


def test_a_run_without_checkpoints(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-²").mkdir(parents=True)
    with pytest.raises(UserError, match="no checkpoints yet"):
        sniff(tmp_path)


def test_a_step_of_something_that_is_no_run(make_hf):
    with pytest.raises(UserError, match="isn't a run folder"):
        sniff(make_hf(), step=3)
