"""Which models of transformers there are: of every family the main head, then all its other classes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import transformers
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


OTHER_HEADS = (
    (r"\w+For(Masked|Causal|Conditional|Pre[Tt]raining)\w*|\w+LMHeadModel", "tokens"),
    (r"\w+For(Sequence|Image|Video|Audio|Images?AndText)Classification", "classes"),
    (r"\w+For(Token|AudioFrame)Classification", "places"),
    (r"\w+ForQuestionAnswering", "answers"),
    (r"\w+ForMultipleChoice", "choices"),
)
"""Labels of the heads beside the main one, by the names of their classes; the others have none."""

NO_MODEL = re.compile(r"Pre[Tt]rained(?!\w*For)|(Layer|Output|Session|Cache|Router|MLP|Block)$")
"""Names of what modules of models export besides."""


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
    """By name: of every configuration the base model and the main task's, then every other class."""
    found = [family for pair in _of_configurations() for family in pair if family is not None]
    found += _others({family.model for family in found})
    return {str(family): family for family in found}


def main_families() -> list[str]:
    """A name for each configuration: its main head's, or its base model's where it has no head."""
    return [str(head or base) for base, head in _of_configurations() if head or base]


def _of_configurations() -> Iterator[tuple[Family | None, Family | None]]:
    """Of every configuration the base model, where that is another class, and the main task's head."""
    base = modeling_auto.MODEL_MAPPING_NAMES
    tables = {task: getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in TASKS}
    for kind in CONFIG_MAPPING_NAMES:
        heads = ((t, _names(names[kind])[0]) for t, names in tables.items() if kind in names)
        task, head = next(heads, ("", ""))
        alone = kind in base and _names(base[kind])[0] != head
        yield (
            Family(kind, _names(base[kind])[0]) if alone else None,
            Family(kind, head, TASKS[task]) if head else None,
        )


def _others(known: set[str]) -> list[Family]:
    """The classes that the library exports besides, under the names of their folders."""
    found = []
    for name, module in transformers._class_to_module.items():
        folder = re.fullmatch(r"models\.(\w+)\.modeling_\w+", module)
        if folder is None or folder[1] == "auto" or name in known or NO_MODEL.search(name):
            continue
        labels = next((kind for text, kind in OTHER_HEADS if re.fullmatch(text, name)), "none")
        found.append(Family(folder[1], name, labels))
    return found
