"""Ranks that fill a model through a stand-in for megatron-bridge, which knows what the real one reads and what it leaves."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch

from openclaw_core.errors import UserError
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model, transformer_config
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.weights import fingerprint, load_weights

LAYOUTS = {"one": ParallelSizes(), "tp2": ParallelSizes(tensor=2), "pp2": ParallelSizes(pipeline=2)}
FUSED = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}


class Provider(SimpleNamespace):
    """A provider with defaults of its own."""

    def finalize(self) -> None:
        """Sets what returns says, as a provider may that doesn't take a setting."""
        self.__dict__.update(self.returns)


class AutoBridge:
    """Copies the weights of answers, by the names that bridges map; forgets the names given."""

    answers: ClassVar[dict[str, torch.Tensor]] = {}
    forgets: tuple[str, ...] = ()
    returns: ClassVar[dict[str, object]] = {}
    reads: ClassVar[dict[str, object]] = {}
    fails: ClassVar[tuple[int, ...]] = ()
    providers: ClassVar[list[Provider]] = []

    @classmethod
    def from_hf_pretrained(cls, path: str, trust_remote_code: bool) -> AutoBridge:
        assert not trust_remote_code
        bridge = cls()
        bridge.arch = architecture_from_hf(path)
        return bridge

    def to_megatron_provider(self, load_weights: bool) -> Provider:
        assert not load_weights
        if torch.distributed.get_rank() in self.fails:
            raise ValueError("no such provider")
        arch = self.arch
        config = transformer_config(arch, ParallelSizes(), torch.bfloat16, recompute=False)
        own = {
            "hidden_dropout": 0.1,
            "attention_softmax_in_fp32": False,
            "masked_softmax_fusion": True,
            "apply_rope_fusion": True,
        }
        stated = {"rotary_base": arch.rope_theta, "share_embeddings_and_output_weights": arch.tied, "vocab_size": arch.vocab}
        made = Provider(**{**vars(config), **own, **stated, **self.reads}, returns=self.returns)
        self.providers.append(made)
        return made

    def load_hf_weights(self, models: list[torch.nn.Module]) -> None:
        for name, parameter in models[0].named_parameters():
            plain = next((name.replace(fused, own) for fused, own in FUSED.items() if fused in name), name)
            if plain != name:
                kind = type(models[0].get_submodule(name.rpartition(".")[0])).__name__
                assert kind == "TELayerNormColumnParallelLinear", kind
            elif not name.endswith(self.forgets or ("-",)):
                assert "input_layernorm" not in name, "bridges don't map the norms of plain layers"
            if name == "output_layer.weight" and self.arch.tied:
                continue
            if not name.endswith(self.forgets or ("-",)):
                answer = self.answers[plain]
                alone = models[0].config.tensor_model_parallel_size == 1
                assert len(parameter) == (self.arch.vocab if alone and len(answer) > self.arch.vocab else len(answer)), name
                parameter.data.copy_(answer[: len(parameter)])


def install() -> None:
    module = ModuleType("megatron.bridge")
    module.__spec__ = ModuleSpec("megatron.bridge", None)
    module.AutoBridge = AutoBridge
    sys.modules["megatron.bridge"] = module


def load(rank: int, ranks: int, folder: Path, meet) -> None:
    source, told = folder / "hf", {}
    arch = architecture_from_hf(source)
    for name, sizes in LAYOUTS.items():
        world = sizes.model_ranks
        if rank >= world:
            continue
        device = parallel.start(meet(name, world), sizes, seed=1)

        def built(sizes=sizes, device=device):
            return build_model(arch, sizes, torch.float32, device=device, recompute=True)

        own = built()
        load_weights(own, source)
        if name == "one":
            told["absent"] = refused(built, source)
        install()
        AutoBridge.answers = {key: value.detach().clone() for key, value in own.named_parameters()}
        model = built()
        load_weights(model, source, "megatron_bridge")
        assert fingerprint(model) == fingerprint(own), name
        assert [key for key, _ in model.named_parameters()] == [key for key, _ in own.named_parameters()]
        if name == "one":
            given = vars(AutoBridge.providers[-1])
            told["given"] = {key: str(given[key]) for key in GIVEN}
            told["forgotten"] = refused(built, source, forgets=("linear_fc2.weight",))
            told["default"] = refused(built, source, returns={"recompute_granularity": None})
            told["other"] = refused(built, source, reads={"rotary_base": 10000})
            (folder / "told.json").write_text(json.dumps(told))
        if name == "tp2":
            # Each of these would wait for the other for ever.
            assert "can't load" in (said := refused(built, source, fails=(1,))), said
            assert "no such provider" in said
            empty = "output_layer.weight" if not arch.tied else "embedding.word_embeddings.weight"
            said = refused(built, source, forgets=(empty,) if rank else ())
            assert f"{empty} wasn't filled" in said, said
        parallel.stop()


GIVEN = ("hidden_dropout", "attention_softmax_in_fp32", "masked_softmax_fusion", "apply_rope_fusion", "recompute_granularity")


def refused(built, source: Path, **changes) -> str:
    before = {key: getattr(AutoBridge, key) for key in changes}
    for key, value in changes.items():
        setattr(AutoBridge, key, value)
    try:
        load_weights(built(), source, "megatron_bridge")
    except UserError as error:
        return str(error)
    finally:
        for key, value in before.items():
            setattr(AutoBridge, key, value)
    return ""
