"""Tiny configurations of a library's own classes, by rules on the names of attributes.

No rule asks which model it is; what a class needs besides stands in :data:`CHANGES`.  Where the tiny one does
not fit together, a shallow one keeps every width and has fewer layers, tokens and pixels only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

VOCABULARY = 300
LAYERS = 2
LEVELS = ("tiny", "shallow")

Rule = Callable[[int, dict[str, Any]], int]


def _most(limit: int) -> Rule:
    return lambda value, _: min(value, limit)


def _key_value_heads(value: int, siblings: dict[str, Any]) -> int:
    """As many as there are heads, one, or half of them, as the default has it."""
    heads = siblings.get("num_attention_heads") or siblings.get("n_head") or value
    return min(value, 4) if value == heads else min(value, 2)


def _image_size(value: int, siblings: dict[str, Any]) -> int:
    patch = siblings.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) and patch else patch
    wanted = 4 * patch if isinstance(patch, int) and patch >= 8 else 64
    if "window_size" in siblings:  # the last stage's shall be as large as a window
        wanted = 224
    return min(value, wanted)


DEPTHS: tuple[tuple[str, Rule], ...] = (
    (r"((num|n)_)?(\w+_)?layers?|num_\w*blocks?|(\w+_)?depth", _most(LAYERS)),
    (r"num_stages", lambda value, _: value),
    (r"first_k_dense_replace|num_nextn_predict_layers", _most(1)),
    (r"(\w+_)?vocab_size|vocabulary_size", _most(VOCABULARY)),
    (r"(image|input_image|pretrain_image)_size", _image_size),
    (r"(max_position_embeddings|n_positions|max_seq_len|max_target_positions)", _most(128)),
    (r"max_source_positions", _most(32)),
    (r"num_(local_|routed_)?experts|n_routed_experts", _most(8)),
    (r"n_words", _most(VOCABULARY)),
    (r"attn_layer_(offset|period)", lambda value, siblings: min(value, 1 if value % 2 else 2)),
)
"""What makes a configuration shallow: fewer layers, tokens, pixels and experts."""

WIDTHS: tuple[tuple[str, Rule], ...] = (
    (
        (
            r"hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim|model_dim|projection_dim|embedding_size|"
            r"(text_|vision_|audio_|out_|output_|decoder_|encoder_|fusion_|projector_|cross_attention_|projection_)"
            r"hidden_size|word_embed_proj_dim|encoder_hidden_dim|decoder_hidden_dim|text_embed_dim|output_dim|"
            r"cross_attention_dim|pooler_hidden_size|pooler_output_size|audio_embed_dim|vision_embed_dim|lru_width|"
            r"(text_|vision_|audio_)d_model|text_hidden_dim|hidden_dims|proj_dim|projector_dim|shared_dim"
        ),
        _most(64),
    ),
    (
        r"intermediate_size|(\w+_)?ffn_dim|d_ff|n_inner|mlp_dim|dim_ff|\w+_intermediate_size|inner_dim|ffn_hidden_size",
        _most(96),
    ),
    (r"moe_(\w+_)?intermediate_size|expert_ffn_size", _most(32)),
    (r"(num_)?(key_value|kv)_heads|num_global_key_value_heads|n_kv_heads", _key_value_heads),
    (
        r"(num_|n_|\w+_)?(attention_|attn_)?heads?|encoder_attention_heads|decoder_attention_heads",
        _most(4),
    ),
    (
        r"head_dim|head_size|d_kv|v_head_dim|qk_head_dim|global_head_dim|\w+_attention_head_dim",
        _most(16),
    ),
    (r"linear_(key|value)_head_dim|kv_lora_rank|q_lora_rank|index_head_dim", _most(16)),
    (r"qk_(rope|nope)_head_dim|rotary_dim", _most(8)),
    (r"linear_num_key_heads|index_n_heads", _most(2)),
    (r"linear_num_value_heads", _most(4)),
    (r"index_topk", _most(4)),
    (r"num_experts_per_tok|n_group|num_queries|moe_topk|top_k_experts|moe_k", _most(2)),
    (r"topk_group", _most(1)),
    (r"sliding_window|attention_window|attention_chunk_size", _most(8)),
    (r"emb_dim", _most(64)),
    (r"mamba_(n|num)_heads|n_mamba_heads", _most(8)),
    (r"num_heads", lambda value, siblings: min(value, 8 if "expand" in siblings else 4)),
    (r"mamba_(d_head|head_dim|headdim)", _most(16)),
    (r"mamba_d_ssm", _most(128)),
)
"""What makes it narrow too; the last pattern of both tables that fits a name decides."""

PLAIN = {"mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False}
"""Attributes that draw random numbers beside dropouts, of which every one is 0."""

DERIVED = frozenset({"id2label", "label2id"})
"""What a configuration makes itself."""

CHANGES: dict[str, dict[str, Any]] = {
    "Dots1Config": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "JambaConfig": {"attn_layer_offset": 1},
    "LongcatFlashConfig": {"zero_expert_num": 4, "expert_ffn_hidden_size": 32, "head_dim": 8},
    "HunYuanDenseV1Config": {"head_dim": 16},
    "HunYuanMoEV1Config": {"head_dim": 16, "num_experts": 8, "moe_topk": 2},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "AriaConfig": {"projector_patch_to_query_dict": {16: 4}},
    "Qwen3OmniMoeThinkerConfig": {"vision_start_token_id": 290, "audio_start_token_id": 291},
    "DbrxConfig": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8},
    "Zamba2Config": {"attention_hidden_size": 128, "attention_head_dim": 32},
    "GraniteMoeHybridConfig": {"layer_types": ["mamba", "attention"]},
    "BambaConfig": {"attn_layer_indices": [1]},
    "DeepseekV3Config": {"head_dim": 8},
    "FalconH1Config": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_ssm": 128,
        "mamba_n_groups": 1,
    },
    "RwkvConfig": {"attention_hidden_size": 64},
    "InformerConfig": {"prediction_length": 4, "context_length": 12},
    "AutoformerConfig": {"prediction_length": 4, "context_length": 12},
    "TimeSeriesTransformerConfig": {"prediction_length": 4, "context_length": 12},
    "RecurrentGemmaConfig": {"num_hidden_layers": 3},
    "Gemma3nTextConfig": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 300,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "JanusConfig": {"vq_config.base_channels": 32, "vq_config.embed_dim": 8},
    "RTDetrConfig": {"backbone_config.embedding_size": 64, "num_queries": 20},
    "RTDetrV2Config": {"backbone_config.embedding_size": 64, "num_queries": 20},
    "Glm4vMoeConfig": {"text_config.rope_parameters.mrope_section": [2, 1, 1]},
}
"""What single classes need besides, by dotted names: they have no default, or one that rules do not tell."""

INDICES = re.compile(r"\w*(indexes|indices|_layer_ids|_layers|_idxs)")


def tiny(config_class: Any, level: str) -> Any:
    """A small configuration of a class; ``level`` is one of :data:`LEVELS`."""
    rules = DEPTHS if level == "shallow" else (*DEPTHS, *WIDTHS)
    values = config_class().to_dict()
    shrunken = _shrunken(values, rules)
    for name in ("transformers_version", "architectures", "model_type"):
        shrunken.pop(name, None)
    for name, value in CHANGES.get(config_class.__name__, {}).items():
        _change(shrunken, name.split("."), value)
    return config_class(**shrunken)


def _change(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _shrunken(values: dict[str, Any], rules: tuple[tuple[str, Rule], ...]) -> dict[str, Any]:
    layers = {v for k, v in values.items() if isinstance(v, int) and re.search(r"layers?$", str(k))}
    vocabulary = min(_integer(values.get("vocab_size")) or VOCABULARY, VOCABULARY)
    taken = iter(range(vocabulary - 1, 0, -1))
    ids: dict[int, int] = {}
    staged = any(name in values for name in ("depths", "layer_depths", "block_sizes"))
    if staged and "num_heads" in values:  # widths follow from the first stage's
        rules = DEPTHS
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name in DERIVED or not isinstance(name, str) or (name.isdigit() and int(name) >= LAYERS):
            continue
        if name in PLAIN:
            result[name] = PLAIN[name]
        elif isinstance(value, dict):
            result[name] = _shrunken(value, rules)
        elif isinstance(value, float) and "drop" in name:
            result[name] = 0.0
        elif re.fullmatch(r"\w*token_(id|index)|(image|audio|video)_\w*id", name):
            result[name] = _token(value, vocabulary, ids, taken)
        elif isinstance(value, (list, tuple)) and value:
            result[name] = _shrunken_list(name, list(value), values, layers, rules)
        elif _integer(value) is not None and value > 0 and not (staged and name == "num_layers"):
            result[name] = _by_rules(name, value, values, rules)
        else:
            result[name] = value
    if rules is not DEPTHS and ("mrope_section" in result or "rope_theta" in result):
        result["mrope_section"] = _parts_of(result.get("mrope_section") or [16, 24, 24])
    _name_stages(result)
    if "hidden_size" in result and "head_dim" in result and result["head_dim"] is None:
        del result["head_dim"]
    return result


def _parts_of(sections: list[int]) -> list[int]:
    """Sections of an eighth of a head, as heads of 128 become 16."""
    smaller = [part // 8 for part in sections]
    smaller[-1] += sum(sections) // 8 - sum(smaller)
    return smaller


def _name_stages(values: dict[str, Any]) -> None:
    """As many stages as a backbone gives, where each is a layer and there are fewer now."""
    stages, layers = values.get("out_features"), values.get("num_hidden_layers")
    if not stages or layers is None or "depths" in values or "hidden_sizes" in values:
        return
    if not all(re.fullmatch(r"stage\d+", stage) for stage in stages):
        return
    values["num_hidden_layers"] = depth = max(LAYERS, len(stages))
    values["out_indices"] = list(range(depth - len(stages) + 1, depth + 1))
    values["out_features"] = [f"stage{i}" for i in values["out_indices"]]


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _by_rules(name: str, value: int, siblings: dict[str, Any], rules: Any) -> int:
    fitting = [rule for pattern, rule in rules if re.fullmatch(pattern, name)]
    return fitting[-1](value, siblings) if fitting else value


def _token(value: Any, vocabulary: int, ids: dict[int, int], taken: Any) -> Any:
    """An id inside the vocabulary, another for each one there was."""
    if isinstance(value, list):
        return [_token(part, vocabulary, ids, taken) for part in value]
    if _integer(value) is None or value < vocabulary:
        return value
    if value not in ids:
        ids[value] = next(taken)
    return ids[value]


def _shrunken_list(
    name: str, value: list[Any], siblings: dict[str, Any], layers: set[int], rules: Any
) -> list[Any]:
    if name == "image_size":
        return [_image_size(part, siblings) for part in value]
    if re.fullmatch(r"\w*depths", name):
        return [min(part, 1) if isinstance(part, int) else part for part in value]
    if INDICES.fullmatch(name) and all(_integer(part) is not None for part in value):
        kept = sorted({part if part < LAYERS else part % LAYERS for part in value})
        return value if name == "out_indices" else kept
    if len(value) in layers and len(value) > 4:  # one a layer: of two kinds where there are
        other = next((part for part in value if part != value[0]), value[-1])
        return [value[0], other]
    return [_shrunken(part, rules) if isinstance(part, dict) else part for part in value]
