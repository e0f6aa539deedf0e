"""The plan: placement, arithmetic, objective, memory, and what it refuses, with the nearest legal partition."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.config.keys import all_keys
from openclaw_core.config.load import load_profile
from openclaw_core.errors import UsageError, UserError
from openclaw_core.loss import fused_linear
from openclaw_core.models.architecture import padded_vocab
from openclaw_core.run import memory as estimates
from openclaw_core.run.layout import ROLES, Shape, place
from openclaw_core.run.memory import GIB, Split, shard_parameters
from openclaw_core.run.plan import IllegalPlan, Plan, make_plan
from openclaw_core.run.sources import architecture_of, missing_sources

PUBLISHED = "qwen3-4b-topk"
TWO_NODES = [
    "partition.nodes=2",
    "partition.actor.devices=8",
    "partition.rollout.devices=4",
    "partition.judge.devices=2",
    "partition.teacher.devices=2",
]


def plan_of(*overrides: str, profile: str = PUBLISHED) -> Plan:
    return make_plan(load_profile(profile, overrides, {}, check=False))


def refused(*overrides: str, profile: str = PUBLISHED) -> IllegalPlan:
    with pytest.raises(IllegalPlan) as caught:
        plan_of(*overrides, profile=profile)
    assert caught.value.exit_code == 2
    return caught.value


def devices(plan: Plan, role: str) -> list[tuple[int, tuple[int, ...]]]:
    return [(process.node, process.devices) for process in plan.roles[role].processes]


def test_the_published_run() -> None:
    plan = plan_of()
    assert devices(plan, "actor") == [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))]
    assert devices(plan, "rollout") == [(0, (4, 5))]
    assert devices(plan, "judge") == [(0, (6,))]
    assert devices(plan, "teacher") == [(0, (7,))]
    actor = plan.roles["actor"]
    assert (actor.tensor_parallel, actor.data_parallel, actor.sequence_parallel) == (4, 1, True)
    assert [process.tensor_rank for process in actor.processes] == [0, 1, 2, 3]
    assert (plan.roles["rollout"].engines, plan.roles["rollout"].tensor_parallel) == (1, 2)
    assert plan.free == {0: ()}
    assert plan.mode == "hybrid"
    for part in (
        "Hybrid",
        "1 x GRPO",
        "1 x OPD",
        "K = 4",
        "M = 3",
        "student's top-4",
        "sequence_optimal",
        "anchor",
        "clipped at 1",
    ):
        assert part in plan.objective


def test_two_machines_are_counted_in_total() -> None:
    plan = plan_of(*TWO_NODES)
    assert {node for node, _ in devices(plan, "actor")} == {0}
    assert devices(plan, "rollout") == [(1, (0, 1)), (1, (2, 3))]
    assert devices(plan, "teacher") == [(1, (6,)), (1, (7,))]
    ranks = [(p.data_rank, p.tensor_rank) for p in plan.roles["actor"].processes]
    assert ranks == [(d, t) for d in range(2) for t in range(4)]


def test_physical_ids_are_taken_from_the_allowed_set() -> None:
    plan = plan_of(
        "partition.allowed_devices=2,3,5,7", "partition.actor.devices=1", "partition.actor.tensor_parallel=1",
        "partition.rollout.devices=1", "partition.rollout.devices_per_engine=1",
    )  # fmt: skip
    assert [devices(plan, role)[0][1] for role in ROLES] == [(2,), (3,), (5,), (7,)]


def test_pipeline_ranks_follow_megatrons_order() -> None:
    plan = plan_of("partition.actor.tensor_parallel=1", "partition.actor.pipeline_parallel=2")
    ranks = [(p.index, p.pipeline_rank, p.data_rank) for p in plan.roles["actor"].processes]
    assert ranks == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]


def test_context_parallel_actors_share_sequences_and_their_budget() -> None:
    settings = ("partition.actor.tensor_parallel=2", "partition.actor.context_parallel=2")
    plan, plain = plan_of(*settings, "train.max_tokens_per_device=16384"), plan_of("partition.actor.tensor_parallel=2")
    ranks = [(p.tensor_rank, p.context_rank, p.data_rank) for p in plan.roles["actor"].processes]
    assert ranks == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert (plan.roles["actor"].context_parallel, plan.roles["actor"].data_parallel) == (2, 1)
    assert plan.batch.token_budget == 32768
    one, other = plan.roles["actor"].memory, plain.roles["actor"].memory
    assert one is not None
    assert other is not None
    assert {part.name for part in one.device} - {part.name for part in other.device} == {"keys of context ranks"}
    assert one.device_bytes < other.device_bytes
    with pytest.raises(UserError, match=r"max_tokens_per_device 8192 x partition\.actor\.context_parallel 2"):
        plan_of(*settings, "train.max_tokens_per_device=8192")


def test_without_opd_the_teacher_gives_its_device_back() -> None:
    plan = plan_of("loss.w_opd=0")
    assert plan.mode == "grpo"
    assert plan.objective.startswith("GRPO only")
    assert plan.roles["teacher"].processes == ()
    assert plan.free == {0: (7,)}
    assert any("its 1 device is given back" in note for note in plan.notes)
    assert "teacher" not in plan.logprobs
    larger = plan_of("loss.w_opd=0", "partition.teacher.devices=8")
    assert larger.free == {0: (7,)}


def test_without_rewards() -> None:
    plan = plan_of(profile="qwen3-4b-opd")
    assert plan.mode == "opd"
    assert plan.objective.startswith("OPD only")
    assert "verdicts do not train" in plan.objective


def test_an_external_judge_holds_no_devices() -> None:
    plan = plan_of("judge.kind=openai", "judge.model=m", "judge.base_url=https://host/v1")
    assert plan.roles["judge"].processes == ()
    assert plan.free == {0: (7,)}


def test_batch_arithmetic() -> None:
    batch = plan_of("train.max_tokens_per_device=65536", *TWO_NODES).batch
    assert (batch.samples, batch.data_parallel, batch.samples_per_rank) == (16, 2, 8)
    assert (batch.fewest_micro_batches, batch.most_micro_batches) == (1, 4)
    assert batch.samples_in_run == 16000
    uneven = plan_of("partition.actor.devices=3", "partition.actor.tensor_parallel=1", "train.batch_size=16").batch
    assert uneven.samples_per_rank == pytest.approx(16 / 3)
    assert uneven.most_micro_batches == 6


def test_origins_and_sampling_are_told() -> None:
    plan = plan_of("loss.k=8")
    assert plan.origins["loss.k"] == "--set"
    assert plan.sampling["parameters"]["temperature"] == {"value": 0.6, "origin": "profile qwen3-4b-topk"}
    assert plan.sampling["filters"] == "none"
    assert "denominator of the ratio" in plan.logprobs["old"]
    assert "8 weight versions" in plan.staleness


def test_all_violations_and_the_nearest_legal_partition_at_once() -> None:
    error = refused(
        "partition.actor.devices=6", "partition.rollout.devices=3", "partition.teacher.context_parallel=2", "loss.w_rl=-0.0"
    )
    said = str(error)
    assert "partition.actor.devices is 6" in said
    assert "partition.rollout.devices is 3" in said
    assert "the teacher scores whole sequences, without context parallelism" in said
    assert "ask for 11 devices (actor 6 + rollout 3 + judge 1 + teacher 1), but there are 8" in said
    nearest = {"partition.actor.devices": 4, "partition.rollout.devices": 2, "partition.teacher.context_parallel": 1}
    assert error.nearest == nearest
    assert plan_of(*(f"{key}={value}" for key, value in nearest.items())).roles["actor"].devices == 4


def test_contradictions_come_with_the_violations() -> None:
    said = str(refused("partition.actor.devices=6", "rollout.top_k=0"))
    assert "rollout.top_k" in said
    assert "partition.actor.devices" in said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["partition.actor.tensor_parallel=3"], "doesn't divide the 8 key-value heads"),
        (
            ["partition.actor.tensor_parallel=16", "partition.actor.devices=16", "partition.nodes=3"],
            "more than the 8 devices of a machine",
        ),
        (
            ["partition.actor.pipeline_parallel=5", "partition.actor.devices=20", "partition.nodes=4"],
            "doesn't divide the 36 layers",
        ),
        (["partition.teacher.devices=0"], "Or set loss.w_opd=0"),
        (["partition.judge.devices=0"], "Or set judge.kind=openai"),
        (["partition.actor.devices=0"], "partition.actor.devices is 0"),
        (["partition.allowed_devices=2,9"], "names 9, but a machine has devices 0 to 7"),
        (["rollout.engine=embedded"], "this engine runs on one device"),
        (["train.batch_size=1", "partition.actor.tensor_parallel=1"], "train.batch_size is 1"),
        (["rollout.context_length=300000", "train.max_tokens_per_device=300000"], "was made for 262144 positions"),
    ],
)
def test_violations(overrides: list[str], says: str) -> None:
    assert says in str(refused(*overrides))


def test_units_stay_on_one_machine() -> None:
    error = refused(
        "partition.nodes=2", "partition.devices_per_node=3", "partition.actor.devices=2", "partition.actor.tensor_parallel=2",
        "partition.rollout.devices=4", "judge.kind=openai", "judge.model=m", "judge.base_url=http://h/v1", "loss.w_opd=0",
    )  # fmt: skip
    assert "not whole on single machines" in str(error)
    assert error.nearest is not None


def test_nothing_legal_is_said_so() -> None:
    error = refused("partition.devices_per_node=2", "partition.allowed_devices=null")
    assert error.nearest is None
    assert "No legal partition" in str(error)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3, 4]))
def test_a_proposal_is_legal_and_the_same_each_time(counts: list[int], tensor: int, engine: int) -> None:
    overrides = [f"partition.{role}.devices={count}" for role, count in zip(ROLES, counts, strict=True)]
    overrides += [f"partition.actor.tensor_parallel={tensor}", f"partition.rollout.devices_per_engine={engine}"]
    proposal = _proposal(overrides)
    if proposal is not None:
        assert plan_of(*overrides, *(f"{key}={value}" for key, value in proposal.items()))
        assert _proposal(overrides) == proposal


NUMBERS = [path for path, key in all_keys().items() if key.section is None and key.field.annotation in (int, float)]


@settings(max_examples=60, deadline=3000)
@given(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from([0, 1, 3, 64, 1000, 65536, 10**12])), max_size=4))
def test_extreme_numbers_end_in_a_plan_or_an_error_for_users(pairs: list[tuple[str, int]]) -> None:
    try:
        body = plan_of(*(f"{key}={value}" for key, value in pairs)).to_dict()
    except UsageError:
        return
    assert json.dumps(body, allow_nan=False)


def _proposal(overrides: list[str]) -> dict[str, int] | None:
    """The nearest legal settings; None where the ones given are legal."""
    try:
        plan_of(*overrides)
    except IllegalPlan as error:
        return error.nearest or {}
    return None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=4, max_size=4), st.integers(1, 3))
def test_no_device_is_given_twice(sizes: list[tuple[int, int]], nodes: int) -> None:
    shapes = {role: Shape(count * unit, unit) for role, (count, unit) in zip(ROLES, sizes, strict=True)}
    ids = (2, 3, 5, 7, 11)
    placed = place(shapes, nodes, ids)
    if placed is None:
        assert sum(shape.devices for shape in shapes.values()) > nodes or max(shape.unit for shape in shapes.values()) > 1
        return
    processes, free = placed
    taken = [(p.node, device) for group in processes.values() for p in group for device in p.devices]
    left = [(node, device) for node, entry in free.items() for device in entry]
    assert sorted(taken + left) == [(node, device) for node in range(nodes) for device in ids]
    assert {role: sum(len(p.devices) for p in group) for role, group in processes.items()} == {
        r: s.devices for r, s in shapes.items()
    }


def test_shard_sizes_add_up_to_the_model() -> None:
    arch = architecture_of(load_profile(PUBLISHED, (), {}).config.student)
    assert arch is not None
    assert shard_parameters(arch, Split()) == arch.parameters
    untied = replace(arch, tied=False)
    assert shard_parameters(untied, Split()) == untied.parameters
    norms = arch.layers * (2 * arch.hidden + 2 * arch.head_dim) + arch.hidden
    padding = (padded_vocab(arch.vocab, tp=4) - arch.vocab) * arch.hidden
    assert 4 * shard_parameters(arch, Split(tensor=4)) == arch.parameters + 3 * norms + padding


def test_memory_of_the_published_run_is_of_the_measured_size() -> None:
    plan = plan_of()
    teacher = plan.roles["teacher"].memory
    assert teacher is not None
    parts = {part.name: part.bytes for part in teacher.device}
    assert parts["weights"] / GIB == pytest.approx(7.5, abs=0.1)
    assert parts["activations"] / 32768 == pytest.approx(118e3, rel=0.1)
    rollout = plan.roles["rollout"].memory
    assert rollout is not None
    assert rollout.kv_tokens is not None
    assert rollout.kv_tokens > 32768


def test_recomputation_and_sharding_save_memory() -> None:
    def actor(*overrides: str) -> dict[str, int]:
        memory = plan_of(*overrides).roles["actor"].memory
        assert memory is not None
        return {part.name: part.bytes for part in memory.device}

    base = actor()
    assert actor("train.recompute=false")["activations"] > 4 * base["activations"]
    assert actor("partition.actor.sequence_parallel=false")["activations"] > base["activations"]
    assert actor("partition.actor.tensor_parallel=2")["weights"] > 1.9 * base["weights"]
    assert actor("partition.actor.tensor_parallel=2")["optimizer"] == pytest.approx(base["optimizer"], rel=0.01)
    assert actor("loss.kl_coef=0.1")["reference"] == base["weights"]
    saved = base["logits"] - actor("train.output_layer=chunked")["logits"]
    # 32,768 rows of 151,936 / 4 columns less 896 MiB, their gradient in hidden size 2,560, and the weight's.
    columns = padded_vocab(151_936, tp=4) // 4
    assert saved == 2 * 32_768 * columns - 896 * 2**20 - 2 * 32_768 * 2_560 - 6 * columns * 2_560


def test_a_chunk_of_logits_is_as_large_as_the_loss_makes_it() -> None:
    assert estimates.CHUNK_BYTES == fused_linear.CHUNK_BYTES


def test_memory_that_does_not_fit_is_told() -> None:
    small = plan_of("partition.device_memory_gib=16")
    remedies = {what.split(" needs about ")[0]: remedy for what, remedy in small.warnings if " needs about " in what}
    assert any(what.startswith("The actor needs about 21") for what, _ in small.warnings)
    assert [role for role, remedy in remedies.items() if "train.output_layer=chunked" in remedy] == ["The actor"]
    chunked = plan_of("partition.device_memory_gib=16", "train.output_layer=chunked").warnings
    assert not any("output_layer" in remedy for _, remedy in chunked)
    # Of few rows the output weight's gradient in float32 takes more than the logits.
    lengths = ("rollout.context_length=4096", "rollout.max_response_tokens=128", "train.max_tokens_per_device=4096")
    few = ("partition.device_memory_gib=5", *lengths)
    whole, parts = (plan_of(*few, f"train.output_layer={how}").roles["actor"].memory for how in ("whole", "chunked"))
    assert whole.device_bytes < parts.device_bytes
    assert any(what.startswith("The actor needs") for what, _ in plan_of(*few).warnings)
    assert not any("output_layer" in remedy for _, remedy in plan_of(*few).warnings)
    host = plan_of("partition.host_memory_gib=64")
    assert any(what.startswith("Node 0 needs about") and "64 GiB" in what for what, _ in host.warnings)
    assert not any("needs about" in what for what, _ in plan_of().warnings)


def test_on_the_cpu_everything_is_main_memory() -> None:
    overrides = ["student.architecture=qwen3-4b", "student.hf=null"]
    plan = plan_of(*overrides, profile="tiny-cpu")
    actor = plan.roles["actor"].memory
    assert actor is not None
    assert plan.host_bytes[0] > actor.device_bytes


def test_missing_sources_are_warnings_of_a_plan() -> None:
    plan = plan_of("student.hf=/nowhere")
    assert any("student.hf is /nowhere" in what for what, _ in plan.warnings)
    config = load_profile(PUBLISHED, ["student.hf=/nowhere"], {}).config
    assert [what for what, _ in missing_sources(config)] == ["student.hf is /nowhere, which is no folder; a real run needs it."]


def test_facts_that_contradict_the_folder_are_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "rope_theta": 1000000, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = str(refused(f"student.hf={tmp_path}"))
    assert "rope_theta 5000000.0 stated, 1000000.0 read" in said
    assert "max_position 262144 stated, 40960 read" in said
    assert "layers" not in said.split("contradicts")[1].split("Set student")[0]
    assert plan_of(f"student.hf={tmp_path}", "student.architecture=null").architectures["student"].rope_theta == 1e6  # type: ignore[union-attr]


def test_a_plan_is_plain_data() -> None:
    body = plan_of().to_dict()
    text = json.dumps(body)
    assert body["configuration"]["loss.k"] == {"value": 4, "origin": "profile qwen3-4b-topk"}
    assert body["roles"]["actor"]["memory"]["device_bytes"] > 0
    assert json.loads(text)["profile"] == PUBLISHED
    assert math.isfinite(body["roles"]["actor"]["memory"]["host_bytes"])


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from openclaw_core.config.load import load_profile; from openclaw_core.run.plan import make_plan;"
        "make_plan(load_profile('qwen3-4b-topk'));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'ray', 'transformers', 'numpy', 'typer'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": ""})
    assert done.stdout.strip() == "[]"
