"""The models that tests and benchmarks share, by name."""

from .case import ModelCase as ModelCase
from .plain import PLAIN_MODELS
from .transformer_library import TRANSFORMER_LIBRARY_MODELS

MODELS: dict[str, ModelCase] = {
    case.name: case for case in (*TRANSFORMER_LIBRARY_MODELS, *PLAIN_MODELS)
}
