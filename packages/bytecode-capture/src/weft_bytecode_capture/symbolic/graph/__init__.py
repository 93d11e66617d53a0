"""The FX graph under construction."""

from .builder import GraphBuilder as GraphBuilder
