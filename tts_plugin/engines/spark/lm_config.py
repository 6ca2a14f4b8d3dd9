"""LmConfig: what LLM/config.json says of the language model, and the tensors that follow from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tts_plugin.engines.spark.model_files import Shape
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

Layout = dict[str, Shape]
Count = Annotated[int, Field(ge=1)]


class _Published(BaseModel):
    # files of others: they hold more keys than are read here
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Rope(_Published):
    rope_theta: Annotated[float, Field(gt=0)]
    rope_type: Literal["default"] = "default"


class LmConfig(_Published):
    """LLM/config.json: what of a Qwen2 decides its shapes, its end token and its numbers."""

    model_type: Literal["qwen2"]
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    vocab_size: Count
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int]
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    max_position_embeddings: Count = 32_768
    rope_theta: Annotated[float, Field(gt=0)] = 1_000_000.0
    rope_parameters: _Rope | None = None

    @property
    def theta(self) -> float:
        """The base of the rotary angles, which newer files keep in a section of its own."""
        return self.rope_parameters.rope_theta if self.rope_parameters else self.rope_theta

    @classmethod
    def read(cls, path: Path) -> LmConfig:
        """ConfigError names the first key that is wrong."""
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{shown(path)}: {_said(error)}") from error

    def layout(self) -> Layout:
        """Key -> shape of LLM/model.safetensors."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shared = hidden // self.num_attention_heads * self.num_key_value_heads  # keys and values
        tensors: Layout = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            block = f"model.layers.{layer}"
            for name, width in (("q", hidden), ("k", shared), ("v", shared)):
                tensors[f"{block}.self_attn.{name}_proj.weight"] = (width, hidden)
                tensors[f"{block}.self_attn.{name}_proj.bias"] = (width,)
            tensors[f"{block}.self_attn.o_proj.weight"] = (hidden, hidden)
            tensors[f"{block}.mlp.gate_proj.weight"] = (inner, hidden)
            tensors[f"{block}.mlp.up_proj.weight"] = (inner, hidden)
            tensors[f"{block}.mlp.down_proj.weight"] = (hidden, inner)
            tensors[f"{block}.input_layernorm.weight"] = (hidden,)
            tensors[f"{block}.post_attention_layernorm.weight"] = (hidden,)
        tensors["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            tensors["lm_head.weight"] = (self.vocab_size, hidden)
        return tensors


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"not JSON: {error}"
