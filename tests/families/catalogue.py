"""Which models there are: every family of transformers with its main head, and torch's own modules."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

TASKS = {
    "MASKED_LM": "tokens",
    "CAUSAL_LM": "tokens",
    "SEQ_TO_SEQ_CAUSAL_LM": "tokens",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "SPEECH_SEQ_2_SEQ": "tokens",
    "IMAGE_CLASSIFICATION": "classes",
    "OBJECT_DETECTION": "none",
    "SEMANTIC_SEGMENTATION": "none",
    "UNIVERSAL_SEGMENTATION": "none",
    "VIDEO_CLASSIFICATION": "classes",
    "AUDIO_CLASSIFICATION": "classes",
    "CTC": "none",
    "SEQUENCE_CLASSIFICATION": "classes",
    "DEPTH_ESTIMATION": "none",
    "TIME_SERIES_PREDICTION": "none",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "none",
    "MASK_GENERATION": "none",
    "KEYPOINT_DETECTION": "none",
    "IMAGE_TO_IMAGE": "none",
    "MULTIMODAL_LM": "none",
    "QUESTION_ANSWERING": "none",
    "PRETRAINING": "none",
}
"""Tasks, the first that a family has is its main one, and the labels that its loss takes."""


@dataclass(frozen=True)
class Family:
    """A configuration's name in the library, a class of models that takes it, and the loss's labels."""

    kind: str
    model: str
    labels: str = "none"

    def __str__(self) -> str:
        return f"{self.kind}/{self.model}"


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@functools.cache
def families() -> dict[str, Family]:
    """The base model and the model of the main task of every configuration, by name."""
    found: list[Family] = []
    base = modeling_auto.MODEL_MAPPING_NAMES
    tables = {task: getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in TASKS}
    for kind in CONFIG_MAPPING_NAMES:
        heads = ((t, _names(names[kind])[0]) for t, names in tables.items() if kind in names)
        task, head = next(heads, ("", ""))
        if kind in base and _names(base[kind])[0] != head:
            found.append(Family(kind, _names(base[kind])[0]))
        if head:
            found.append(Family(kind, head, TASKS[task]))
    return {str(family): family for family in found}
