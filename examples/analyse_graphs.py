"""Graph analysis with the capture stage alone: only weft_bytecode_capture is imported.

Prints the graphs of a function, the guards under which they hold, and where and why it breaks.
"""

import time

import torch
import weft_bytecode_capture


def normalise(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = (x - x.mean()) * scale
    time.sleep(0.01)  # what a graph cannot hold: it breaks here
    return y / y.std()


def main() -> None:
    result = weft_bytecode_capture.capture(normalise)(torch.randn(8), 2.0)
    print(result)
    print(f"{len(result.graphs)} graphs, {len(result.guards)} guards, {len(result.breaks)} breaks")


if __name__ == "__main__":
    main()
