"""What the tests have shown of each model type. tests/checkpoint/test_support.py holds this against what they really run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verified:
    """loaded: layouts in which megatron-core loaded a conversion of ours and computed transformers' logits; saved: layouts in
    which megatron-core wrote a checkpoint that converted back bit by bit; compared: the one at which --verify=logits was run.
    Every type here has a bitwise round trip."""

    models: str
    loaded: tuple[str, ...]
    saved: tuple[str, ...]
    compared: str


DENSE_LAYOUTS = ("TP 1", "TP 2", "PP 2")
MOE_LAYOUTS = (*DENSE_LAYOUTS, "EP 2")
VERIFIED: dict[str, Verified] = {
    "qwen3": Verified("Qwen3 dense, FP8 blocks too", DENSE_LAYOUTS, DENSE_LAYOUTS, "TP 1"),
    "qwen2": Verified("Qwen2, Qwen2.5", DENSE_LAYOUTS, DENSE_LAYOUTS, "TP 1"),
    "llama": Verified("Llama 3", DENSE_LAYOUTS, DENSE_LAYOUTS, "TP 2"),
    "qwen3_moe": Verified("Qwen3 MoE (30B-A3B, 235B-A22B)", MOE_LAYOUTS, MOE_LAYOUTS, "TP 2"),
    "qwen2_moe": Verified("Qwen1.5-MoE, Qwen2-57B-A14B", MOE_LAYOUTS, MOE_LAYOUTS, "TP 1"),
    "deepseek_v3": Verified("DeepSeek-V3, R1", MOE_LAYOUTS, MOE_LAYOUTS, "TP 2"),
    "qwen3_vl": Verified("text tower of Qwen3-VL dense; vision tensors carried", DENSE_LAYOUTS, DENSE_LAYOUTS, "TP 2"),
    "qwen3_vl_moe": Verified("text tower of Qwen3-VL MoE; vision tensors carried", MOE_LAYOUTS, MOE_LAYOUTS, "TP 1"),
}
