"""``weft minify FILE``: the smallest part of a graph on which a stage still fails, or still is inaccurate."""

from .reduce import Reduced as Reduced
from .reduce import reduce_graph as reduce_graph
from .stages import StageFault as StageFault
from .stages import first_failure as first_failure
from .stages import first_inaccuracy as first_inaccuracy

__all__ = ["Reduced", "StageFault", "first_failure", "first_inaccuracy", "reduce_graph"]
