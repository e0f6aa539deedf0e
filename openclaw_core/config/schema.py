"""What a run can be told. Every key is read somewhere; unknown keys are errors at any depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from .devices import parse_devices

PositiveInt = Annotated[int, Field(ge=1, le=10**12)]
Flags = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
PathText = Annotated[str, Field(json_schema_extra={"format": "path"})]
EnvName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$", json_schema_extra={"format": "environment-variable"})]


def _one_per_file(folder: str, *first: str) -> tuple[str, ...]:
    """Names of a folder of the loss room, where each file is a choice: a new one is known here without an edit.

    Those in first lead, in that order, because people read them so.
    """
    names = {file.stem for file in (Path(__file__).parents[1] / "loss" / folder).glob("[a-z]*.py")}
    return (*first, *sorted(names.difference(first)))


if TYPE_CHECKING:
    Subset = str
    Selection = str
    Divergence = str
else:
    Subset = Literal[_one_per_file("subsets", "student", "teacher", "overlap")]
    Selection = Literal[_one_per_file("selections", "shortest", "token_optimal", "sequence_optimal")]
    Divergence = Literal[_one_per_file("divergences", "reverse_kl")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True, allow_inf_nan=False)


class ModelFacts(Section):
    """What a model is, so that a plan needs no checkpoint. A real run reads the checkpoint and refuses other facts."""

    family: Literal["qwen3", "qwen2", "llama"] = Field(description="Family, which decides biases and norms.")
    layers: PositiveInt = Field(description="Decoder layers.")
    hidden: PositiveInt = Field(description="Width of the residual stream.")
    heads: PositiveInt = Field(description="Query heads.")
    kv_heads: PositiveInt = Field(description="Key and value heads.")
    head_dim: PositiveInt = Field(description="Width of a head.")
    ffn: PositiveInt = Field(description="Width of the MLP.")
    vocab: PositiveInt = Field(description="Rows of the embedding in the checkpoint.")
    rope_theta: Annotated[float, Field(gt=0)] = Field(description="Base of the rotary embedding.")
    norm_eps: Annotated[float, Field(gt=0)] = Field(1e-6, description="Epsilon of the norms.")
    tied: bool = Field(description="Whether the output layer shares the embedding's weights.")
    qk_norm: bool = Field(description="Whether queries and keys are normalised per head.")
    qkv_bias: bool = Field(False, description="Whether query, key and value have biases.")
    max_position: PositiveInt = Field(description="Positions the model was made for.")


class ModelSource(Section):
    """Where a model comes from."""

    hf: PathText | None = Field(
        None, description="Hugging Face folder: config, tokenizer and, where load is absent, the weights."
    )
    load: PathText | None = Field(None, description="torch_dist checkpoint folder; made from hf with convert-ckpt when absent.")
    architecture: ModelFacts | None = Field(
        None,
        description="Facts for plans without a checkpoint; also the name of one of profiles/models. Read from hf when absent.",
    )


class Role(Section):
    """Devices of one role, in total over all nodes (GPUs, or worker processes when device is cpu)."""

    devices: Annotated[int, Field(ge=0, le=65536)] = Field(1, description="Devices of this role in total over all nodes.")


class MegatronRole(Role):
    """A role that runs megatron-core: its data-parallel size is devices / (tensor x pipeline x context)."""

    tensor_parallel: PositiveInt = Field(1, description="Ranks that share each layer.")
    pipeline_parallel: PositiveInt = Field(1, description="Stages that share the layers.")
    context_parallel: PositiveInt = Field(1, description="Ranks that share each sequence; the teacher has 1.")
    sequence_parallel: bool = Field(False, description="Shard activations of norms over the tensor-parallel ranks.")


class EngineRole(Role):
    """A role that runs inference engines: devices / devices_per_engine engines."""

    devices_per_engine: PositiveInt = Field(1, description="Devices of one engine (its tensor-parallel size).")


class Partition(Section):
    """Which role gets which devices."""

    device: Literal["cuda", "cpu"] = Field("cuda", description="Kind of device that roles run on.")
    nodes: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="Number of machines.")
    devices_per_node: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Devices of each machine; on cpu the most worker processes."
    )
    allowed_devices: tuple[int, ...] | None = Field(
        None,
        description="Physical device ids that may be used on each node, e.g. 2,3,5-7; CUDA_VISIBLE_DEVICES, else all, when null.",
    )
    device_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None,
        description="Memory of each device in GiB, which estimates are compared with; a real run asks the device when null.",
    )
    host_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="Main memory of each machine in GiB; a real run reads the control group's limit when null."
    )
    actor: MegatronRole = Field(MegatronRole(), description="The trained student.")
    rollout: EngineRole = Field(EngineRole(), description="Engines that serve the student.")
    judge: EngineRole = Field(EngineRole(), description="Engines that serve the judge; 0 devices for an external judge.")
    teacher: MegatronRole = Field(MegatronRole(), description="The frozen teacher.")

    @field_validator("allowed_devices", mode="before")
    @classmethod
    def _devices(cls, value: Any) -> Any:
        return parse_devices(value)


class Loss(Section):
    """The objective of docs/method.md."""

    w_rl: Annotated[float, Field(ge=0)] = Field(1.0, description="Weight of the GRPO term; 0 costs nothing.")
    w_opd: Annotated[float, Field(ge=0)] = Field(1.0, description="Weight of the OPD term; 0 costs nothing: no teacher.")
    subset: Subset = Field("student", description="Support of the OPD term.")
    selection: Selection = Field("sequence_optimal", description="How k*, the candidate that teaches a position, is chosen.")
    divergence: Divergence = Field("reverse_kl", description="What the OPD term measures between student and teacher.")
    k: Annotated[int, Field(ge=1, le=64)] = Field(4, description="K: ids of the top-K.")
    max_candidates: PositiveInt = Field(3, description="Hints kept per sample, shortest first.")
    diff_clip: float = Field(1.0, description="c: bound of |teacher - student| log-prob differences; off when <= 0.")
    eps_clip: Annotated[float, Field(ge=0, lt=1)] = Field(0.2, description="Lower clip of the ratio.")
    eps_clip_high: Annotated[float, Field(ge=0)] = Field(0.28, description="Upper clip of the ratio.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description="Bound of the loss at negative advantages; off when null."
    )
    opd_on_rl_only: Literal["skip", "anchor"] = Field("skip", description="Whether the un-hinted teacher pulls RL-only samples.")
    tail: Literal["none", "bin"] = Field("none", description="bin adds the remaining probability as one more bin.")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Scoring temperature of student and teacher alike.")
    entropy_coef: float = Field(0.0, description="Weight of the entropy bonus.")
    kl_coef: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight of KL(cur, ref); the reference is the starting student."
    )


class Optimizer(Section):
    """Megatron's Adam."""

    lr: Annotated[float, Field(gt=0)] = Field(1e-5, description="Constant learning rate.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.98, description="Decay of the mean of squared gradients.")
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, description="Added to the root of the second mean.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.1, description="Decoupled weight decay.")
    clip_grad: Annotated[float, Field(ge=0)] = Field(1.0, description="Bound of the gradient's norm; off when 0.")


class Train(Section):
    """The loop."""

    steps: PositiveInt = Field(100, description="Optimizer steps of the whole run.")
    batch_size: PositiveInt = Field(16, description="Samples of one optimizer step.")
    max_tokens_per_device: PositiveInt = Field(32768, description="Token budget of a micro-batch.")
    recompute: bool = Field(True, description="Full uniform activation recomputation.")
    output_layer: Literal["whole", "chunked"] = Field(
        "whole",
        description="Whether a micro-batch's logits are held whole, or a chunk of rows at a time: the same gradient, in less"
        " memory where micro-batches have many rows. Where no old pass is made, the chunks are computed twice.",
    )
    dtype: Literal["bf16", "fp16", "fp32"] = Field("bf16", description="Dtype of parameters and activations.")
    save_every: PositiveInt = Field(100, description="Steps between checkpoints; the last step and a stop save too.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest checkpoints kept.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of everything random in the run.")
    loader: Literal["own", "megatron_bridge"] = Field(
        "own", description="What reads student.hf into the trainer: our own rules, or megatron-bridge where it is installed."
    )


class Rollout(Section):
    """How replies are sampled and what becomes of them."""

    engine: Literal["sglang", "embedded"] = Field("sglang", description="Engine that serves the student.")
    engine_python: PathText | None = Field(
        None, description="Python that has SGLang, where that lives in an environment of its own; this one when null."
    )
    engine_flags: Flags = Field((), description="Further flags of SGLang's server, e.g. [--mem-fraction-static, '0.8'].")
    context_length: PositiveInt = Field(32768, description="Most tokens of prompt and reply together.")
    max_response_tokens: PositiveInt = Field(8192, description="Most tokens of a reply.")
    temperature: Annotated[float, Field(gt=0)] = Field(0.6, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Sampling filter; 1 is off.")
    top_k: int = Field(-1, description="Sampling filter; -1 is off.")
    max_staleness: Annotated[int, Field(ge=0)] = Field(8, description="Weight versions a sample may lag before it is dropped.")
    session_idle_s: Annotated[float, Field(gt=0)] = Field(1800.0, description="Seconds until an idle session is closed.")
    on_length: Literal["drop", "negative", "keep"] = Field("drop", description="What a reply cut at its length becomes.")
    thinking: bool = Field(True, description="Passed to the chat template as enable_thinking.")
    hint_placement: Literal["last_user", "system", "message"] = Field(
        "last_user",
        description="Where a candidate holds its hint: at the end of the last user message; at the end of the system message,"
        " which is made where there is none (candidates then share no longer prefix); or in a user message of its own right"
        " behind the last one.",
    )
    teacher_context_length: PositiveInt | None = Field(
        None,
        description="Most tokens of a candidate, hint and reply included; never more than the teacher's positions, which hold"
        " when null. A longer candidate is left out, the others stay.",
    )


class Judge(Section):
    """Who reads the next states."""

    kind: Literal["engine", "openai", "scripted"] = Field(
        "engine",
        description="engine: ours, on partition.judge; openai: base_url; scripted: a rule-based judge for demonstrations.",
    )
    model: str | None = Field(
        None, description="HF folder of the judge's model (engine; the student's when null), or model name (openai)."
    )
    engine_flags: Flags = Field((), description="Further flags of SGLang's server (engine).")
    base_url: str | None = Field(None, description="OpenAI-compatible address (openai).")
    api_key_env: EnvName | None = Field(None, description="Name of the environment variable that holds the key (openai).")
    votes: PositiveInt = Field(3, description="Verdict votes and hint votes of a turn, each.")
    temperature: Annotated[float, Field(ge=0)] = Field(0.6, description="Sampling temperature of votes.")
    max_tokens: PositiveInt = Field(1024, description="Most tokens of a vote.")
    timeout_s: Annotated[float, Field(gt=0)] = Field(120.0, description="Seconds until a vote counts as none.")
    guards: bool = Field(
        False,
        description="Let structured evidence override the verdict: a tool result that reports an error, a call repeated in vain.",
    )
    useless_hints: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="scripted: share of hint sets that hold a hint which asks for nothing."
    )
    only_useless: bool = Field(False, description="scripted: every hint asks for nothing.")
    unparsable: Annotated[float, Field(ge=0, le=1)] = Field(0.05, description="scripted: share of votes that cannot be parsed.")


class Proxy(Section):
    """The OpenAI-compatible door."""

    host: str = Field("127.0.0.1", description="Address to listen on; others than loopback need api_key_env.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(30000, description="Port; 0 picks a free one.")
    api_key_env: EnvName | None = Field(
        None, description="Name of the environment variable that holds the key clients must send."
    )
    max_waiting: PositiveInt = Field(256, description="Requests that may wait while weights change; more get 503.")


class Users(Section):
    """Simulated users that talk to the proxy (for demonstrations and tests)."""

    preference: Literal["capitals", "brackets", "lines"] = Field("capitals", description="The style these users want.")
    concurrency: PositiveInt = Field(16, description="Users that talk at the same time.")
    eval_tasks: PositiveInt = Field(100, description="Held-out tasks of one preference reading.")
    eval_every: PositiveInt = Field(10, description="Steps between readings.")
    stop_after_held: Annotated[int, Field(ge=0)] = Field(
        0, description="Readings in a row at target_rate after which the run is done; 0 goes on to train.steps."
    )
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.8, description="Rate at which the preference counts as held.")


class Config(Section):
    """One run."""

    description: str = Field("", description="What the profile is for.")
    student: ModelSource
    teacher: ModelSource | None = Field(None, description="Defaults to the student's starting weights.")
    partition: Partition = Partition()
    loss: Loss = Loss()
    optimizer: Optimizer = Optimizer()
    train: Train = Train()
    rollout: Rollout = Rollout()
    judge: Judge = Judge()
    proxy: Proxy = Proxy()
    users: Users | None = Field(None, description="Simulated users; absent when real clients talk to the proxy.")
