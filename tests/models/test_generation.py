"""Text is generated through a compiled ``forward``: three compilations serve all lengths of its cache."""

from __future__ import annotations

import pytest
import torch
import weft

from benchmarks.models import MODELS


@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", {}), ("llama", {"num_beams": 3}), ("gpt2", {"do_sample": True})],
    ids=str,
)
def test_cache_grows_without_compilations(name: str, options: dict[str, object]) -> None:
    model = MODELS[name].build(False)
    prompt = torch.randint(3, 90, (2, 7))
    request = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0, **options}
    torch.manual_seed(0)
    expected = model.generate(prompt, **request)
    log = weft.CompileLog()
    model.forward = weft.compile(model.forward, fullgraph=True)
    with weft.observe(log):
        for _ in range(2):
            torch.manual_seed(0)
            assert torch.equal(model.generate(prompt, **request), expected)
    assert len(log.graphs) == 3  # the prompt; the first token; all further ones
    assert all(report.eager_reason is None for report in log.graphs)
