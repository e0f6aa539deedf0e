"""What is compared: experiments, each a few settings of `openclaw train`, and the tables that they stand in."""

from __future__ import annotations

from dataclasses import dataclass, replace

PROFILE = "tiny-cpu"
SEEDS = (0, 1, 2)
STEPS = 40
EVAL_EVERY = 5
HELD_READINGS = 2
# Without a reward only complaints make samples, and a student that holds the preference gets few: such runs are read more
# often, and are done at the first reading that holds.
HINTS_ALONE = {"users.eval_every": "2", "users.stop_after_held": "1"}

SUBSETS = ("student", "teacher", "overlap")
SELECTIONS = ("shortest", "token_optimal", "sequence_optimal", "signal_optimal")
CELL_SELECTIONS = SELECTIONS[:3]
# What the profile has where rows of several tables differ; an experiment doesn't name it, so that its run is made once.
DEFAULTS = {
    "users.preference": "capitals",
    "loss.subset": "student",
    "loss.selection": "sequence_optimal",
    "loss.opd_on_rl_only": "skip",
}
OPD_ONLY = {"loss.w_rl": "0"}
GRPO_ONLY = {"loss.w_opd": "0"}
ONLY_USELESS = {"judge.only_useless": "true"}
HALF_USELESS = {"judge.useless_hints": "0.5"}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A row: its name in the table and the settings that differ from the profile, as (key, value) by key."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under one title. letter is what --only takes."""

    letter: str
    title: str
    about: str
    rows: tuple[Experiment, ...]


def experiment(name: str, *parts: dict[str, str]) -> Experiment:
    """An experiment of all parts' settings, without those at the profile's default."""
    merged = {key: value for part in parts for key, value in part.items()}
    return Experiment(name, tuple(sorted((k, v) for k, v in merged.items() if DEFAULTS.get(k) != v)))


HYBRID = experiment("hybrid")
OPD = experiment("OPD only", OPD_ONLY)
OPD_ANCHOR = experiment("OPD only, anchor", OPD_ONLY, {"loss.opd_on_rl_only": "anchor"})
GRPO = experiment("GRPO only", GRPO_ONLY)
USELESS = experiment("hybrid, useless hints only", ONLY_USELESS)
USELESS_OPD = experiment("OPD only, useless hints only", OPD_ONLY, ONLY_USELESS)
HALF = {rule: experiment(rule, OPD_ONLY, HALF_USELESS, {"loss.selection": rule}) for rule in SELECTIONS}

PREFERENCES = Table(
    "p",
    "Three preferences from the same base",
    "The profile as it is: hybrid, `student` subset, `sequence_optimal`. Only what the users want differs.",
    tuple(experiment(style, {"users.preference": style}) for style in ("capitals", "brackets", "lines")),
)
OBJECTIVES = Table(
    "a",
    "(a) Objectives",
    "The same loss with one of its weights at 0, and the same run when no hint ever asks for anything.",
    (HYBRID, OPD, GRPO, USELESS, USELESS_OPD),
)
CELLS = Table(
    "b",
    "(b) The nine cells",
    "Hybrid. The subset is the support of the OPD term, the selection says which candidate teaches a position.",
    tuple(
        experiment(f"{subset} / {rule}", {"loss.subset": subset, "loss.selection": rule})
        for subset in SUBSETS
        for rule in CELL_SELECTIONS
    ),
)
ANCHOR = Table(
    "c",
    "(c) Samples without a hint: anchor or skip",
    "`anchor` lets the un-hinted teacher pull samples without a hint back to itself, `skip` leaves them to the reward.",
    (
        replace(OPD, name="OPD only, skip"),
        OPD_ANCHOR,
        replace(HYBRID, name="hybrid, skip"),
        experiment("hybrid, anchor", {"loss.opd_on_rl_only": "anchor"}),
    ),
)
SELECTING = Table(
    "d",
    "(d) Selections when half of the hint sets hold a useless hint",
    "OPD only. In half of the hint sets one hint asks for nothing; the teacher ignores it, so it overlaps most with the student.",
    tuple(HALF.values()),
)
TABLES = (PREFERENCES, OBJECTIVES, CELLS, ANCHOR, SELECTING)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment: its settings with all that is common, as (key, value) by key."""

    settings: tuple[tuple[str, str], ...]

    @property
    def seed(self) -> int:
        return int(dict(self.settings)["train.seed"])

    def arguments(self) -> list[str]:
        """Arguments of `openclaw train` that make this run."""
        return ["train", "--profile", PROFILE, *(part for key, value in self.settings for part in ("--set", f"{key}={value}"))]

    def command(self) -> str:
        """The same as one line for a reader."""
        return " ".join(["openclaw", *self.arguments()])


def run_of(one: Experiment, seed: int, steps: int) -> Run:
    """The run of an experiment at a seed. The last state alone is saved: nobody resumes these runs."""
    common = {
        "train.seed": str(seed),
        "train.steps": str(steps),
        "train.save_every": str(steps),
        "train.keep_checkpoints": "1",
        "users.eval_every": str(EVAL_EVERY),
        "users.stop_after_held": str(HELD_READINGS),
    }
    if dict(one.settings).get("loss.w_rl") == "0":
        common |= HINTS_ALONE
    if one.settings in {row.settings for row in PREFERENCES.rows}:
        # These show whether the student stays able long after it has learned.
        del common["users.stop_after_held"]
    return Run((*one.settings, *common.items()))


def runs_of(tables: tuple[Table, ...], seeds: tuple[int, ...], steps: int) -> list[Run]:
    """All runs of the tables, each once: table by table, all rows at one seed before the next seed."""
    found = {run_of(row, seed, steps): None for table in tables for seed in seeds for row in table.rows}
    return list(found)
