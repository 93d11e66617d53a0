"""Registers every model: each module of ``models`` and ``polyfills`` does so as it is imported."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

from . import models, polyfills
from .variables.builder import register_late

_LATE = {  # imported when a program's function of one of these modules is met first
    "models.torch.flexible_attention": ("torch.nn.attention.flex_attention",),
    "models.torch.distributed.collectives": (
        "torch.distributed.distributed_c10d",
        "torch.distributed._functional_collectives",
    ),
    "models.torch.seeds": ("torch.random",),
    "polyfills.ctc_losses": (),  # by the model that uses it: torch takes long to define its operators
}
_OPTIONAL = {
    "models.libraries.numpy_draws": "numpy",
    "models.libraries.numpy_floats": "numpy",
    "models.libraries.numpy_values": "numpy",
}  # with the package that they are about


def register_all() -> None:
    for package in (models, polyfills):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name.removeprefix(f"{__package__}.")
            if name not in _LATE and find_spec(_OPTIONAL.get(name, "torch")):
                importlib.import_module(module.name)
    for name, modules in _LATE.items():
        register_late(f"{__package__}.{name}", *modules)
