"""Models of transformers with attention written out: all of it is found, results and gradients stay.

In the graph, as what the library has a call for; in the schedule, whatever is done to scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
import weft_functionalize
import weft_loop_ir
from weft_codegen_triton import TritonCodegen

transformers = pytest.importorskip("transformers")

SMALL = {"attn_implementation": "eager", "vocab_size": 90, "hidden_size": 32}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
GROUPED = {**SMALL, **LAYERS, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}

MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("Bert", {**SMALL, **LAYERS}, 2),
    "distilbert": (
        "DistilBert",
        {**SMALL, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "dropout": 0.0},
        2,
    ),
    "electra": ("Electra", {**SMALL, **LAYERS, "embedding_size": 32}, 2),
    "gpt2": ("GPT2", {**SMALL, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}, 2),
    "gpt_neox": ("GPTNeoX", {**SMALL, **LAYERS}, 2),
    "opt": ("OPT", {**SMALL, **LAYERS, "ffn_dim": 32, "word_embed_proj_dim": 32}, 2),
    "bloom": ("Bloom", {**SMALL, "n_layer": 2, "n_head": 4}, 2),
    "llama": ("Llama", GROUPED, 2),
    "mistral": ("Mistral", GROUPED, 2),
    "mistral, with a window": ("Mistral", {**GROUPED, "sliding_window": 3}, 2),
    "mpt, its biases are of another size": (
        "Mpt",
        {**SMALL, "d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2},
        0,
    ),
    "gemma2, its scores are capped": ("Gemma2", {**GROUPED, "sliding_window": 3}, 0),
    "t5": (
        "T5",
        {**SMALL, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_model": 32, "d_ff": 32},
        6,
    ),
}
"""The name in transformers, the configuration, and how often attention is found."""


class Found:
    """A backend that runs the functional graph after the pass, by operators; ``count`` is of its calls.

    ``kernels`` are the attentions of the schedule of the graph before it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.kernels: list[weft_loop_ir.AttentionKernel] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        functional = weft_functionalize.functionalize(graph, inputs)
        module = functional.graph_module
        options = TritonCodegen().schedule_options
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(module), options)
        weft_loop_ir.fuse_attention(schedule, lambda a: bool(self.kernels.append(a) or True))  # type: ignore[func-returns-value]
        self.count += weft_loop_ir.use_library_attention(module.graph, differentiated=False)
        module.graph.lint()
        module.recompile()
        count = len(module.graph.find_nodes(op="placeholder"))

        def program(*given: Any) -> Any:
            rest = iter(given)
            values = [functional.lifted.get(k, None) for k in range(count)]
            return module(*(next(rest) if v is None else v for v in values))

        return weft_functionalize.wrap(functional, program)


def model_and_inputs(
    name: str, is_padded: bool = True
) -> tuple[torch.nn.Module, dict[str, Any], int]:
    family, options, count = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**options)
    model = getattr(transformers, f"{family}Model")(config).eval()
    tokens = torch.randint(3, 90, (2, 7))
    mask = torch.ones_like(tokens)
    if is_padded:
        mask[0, 5:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if family == "T5":
        inputs["decoder_input_ids"] = torch.randint(3, 90, (2, 5))
    return model, inputs, count


@pytest.mark.parametrize("name", MODELS)
def test_all_attention_is_found(name: str) -> None:
    """In schedules those of Gemma2 and MPT too, which the library has no call for."""
    model, inputs, count = model_and_inputs(name)
    found = Found()
    compiled = weft.compile(model, backend=found)
    with torch.no_grad():
        result, expected = compiled(**inputs)[0], model(**inputs)[0]
    assert found.count == count
    assert len(found.kernels) == count or (count == 0 and len(found.kernels) == 2)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert result.stride() == expected.stride()


WINDOWS = {
    "mistral, with a window": [("-2", "0"), ("-2", "0")],
    "gemma2, its scores are capped": [("-2", "0"), ("None", "0")],
}
"""The first and the last key that a query sees in each layer, counted from the query."""


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_bound_the_keys(name: str) -> None:
    model, inputs, _ = model_and_inputs(name, is_padded=False)
    del inputs["attention_mask"]
    found = Found()
    with torch.no_grad():
        weft.compile(model, backend=found)(**inputs)
    bounds = [a.bounds for a in found.kernels]
    assert [(str(b.first), str(b.last)) for b in bounds if b is not None] == WINDOWS[name]
