"""A student and a teacher as found on disk: headers and JSON, no weights. Each side is read from its own checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openclaw_core.checkpoint.examine import Examined, examine_hf, examine_torch_dist
from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.manifest import Manifest, read_manifest
from openclaw_core.checkpoint.sniff import Found, carried_config, sniff
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.errors import UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf, architecture_from_torch_dist
from openclaw_core.teacher.tokens import Tokenizer, read_tokenizer

State = Literal["ok", "warning", "problem", "skipped"]
Shown = tuple[str, str]


@dataclass(frozen=True)
class Use:
    """What a run will ask of the two models. Lengths in tokens; None leaves the checks that need it to the models alone.

    deep also hashes every tensor that convert-ckpt wrote, against its manifest.
    """

    prompt_and_reply: int | None = None
    hint: int = 0
    dtype: str | None = None
    student_tp: int = 1
    student_pp: int = 1
    teacher_tp: int = 1
    teacher_pp: int = 1
    deep: bool = False


@dataclass
class Side:
    """One model as found. What couldn't be read is None, with the reason in errors.

    arguments are those that megatron left in a torch_dist; empty where it left none, and of a Hugging Face folder.
    """

    role: str
    path: str
    found: Found | None = None
    config_folder: Path | None = None
    architecture: Architecture | None = None
    examined: Examined | None = None
    tokenizer: Tokenizer | None = None
    manifest: Manifest | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, UserError] = field(default_factory=dict)

    @property
    def bare(self) -> bool:
        """Whether it is a torch_dist that states its architecture itself: it has no config and no tokenizer to be read."""
        return self.found is not None and self.config_folder is None and self.architecture is not None

    def source(self, *names: str) -> str:
        """Where the files of these names lie, or what stands for them."""
        if self.bare and self.found is not None:
            return f"megatron's arguments in {self.found.folder}"
        folder = self.config_folder or Path(self.path)
        return ", ".join(str(folder / name) for name in names)


@dataclass(frozen=True)
class Pair:
    """Both sides and what a run will ask of them: what every check is given."""

    student: Side
    teacher: Side
    use: Use

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.student, self.teacher

    def source(self, *names: str) -> str:
        """Where the files of these names lie on both sides."""
        return "; ".join(side.source(*names) for side in self.sides)


@dataclass(frozen=True)
class Outcome:
    """What a check found: shown holds the student's and the teacher's value."""

    state: State
    shown: Shown = ("-", "-")
    source: str = ""
    finding: str = ""
    remedy: str = ""


def ok(shown: Shown, source: str, note: str = "") -> Outcome:
    """Nothing to do; note is for what is worth knowing."""
    return Outcome("ok", shown, source, note)


def skipped(why: str) -> Outcome:
    """A check that other findings make impossible."""
    return Outcome("skipped", finding=f"Not checked: {why}.", remedy="Mend the findings above first.")


def reader_of(found: Found) -> HfReader | TorchDistReader:
    """The reader of a checkpoint's tensors."""
    return HfReader(found.folder) if found.kind == "hf" else TorchDistReader(found.folder)


def _arguments(folder: Path) -> dict[str, Any]:
    found = TorchDistReader(folder).common().get("args")
    return found if isinstance(found, dict) else vars(found) if hasattr(found, "__dict__") else {}


def read_side(role: str, path: str, hf: str | None = None) -> Side:
    """Everything of one model that the checks read: headers and JSON, no weights."""
    side = Side(role, path)

    def attempt(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except UserError as error:
            side.errors[name] = error
        except Exception as error:  # damaged files make their parsers raise whatever comes
            what = f"The {role}'s {name} can't be read: {type(error).__name__} {str(error).partition(chr(10))[0]:.200}"
            side.errors[name] = UserError(f"{what.rstrip('. ')}.", "Fetch, convert or save the checkpoint again.")
        return None

    side.found = found = attempt("folder", lambda: sniff(path))
    if found is None:
        return side
    side.config_folder = Path(hf) if hf else attempt("config", lambda: carried_config(found))
    arch = side.architecture = attempt(
        "config", lambda: architecture_from_hf(side.config_folder) if side.config_folder else architecture_from_torch_dist(path)
    )
    side.manifest = attempt("manifest", lambda: read_manifest(found.folder))
    if side.config_folder is not None:
        folder = side.config_folder
        side.tokenizer = attempt("tokenizer", lambda: read_tokenizer(folder))
    elif arch is not None:
        what = f"{path} carries no tokenizer, so the {role}'s ids can't be compared."
        side.errors["tokenizer"] = UserError(what, f"Name its Hugging Face folder: --{role}-hf FOLDER.")
    if found.kind == "torch_dist":
        side.arguments = attempt("arguments", lambda: _arguments(found.folder)) or {}
    if arch is not None:
        examine = (
            (lambda: examine_hf(HfReader(found.folder), arch))
            if found.kind == "hf"
            else (lambda: examine_torch_dist(TorchDistReader(found.folder), arch))
        )
        side.examined = attempt("weights", examine)
    return side
