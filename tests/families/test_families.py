"""The sweep's own parts: tiny configurations, inputs that eager takes, judgement by float64."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.families.catalogue import families
from tests.families.checking import check
from tests.families.judging import Distances, apart
from tests.families.recipes import RECIPES
from tests.families.report import case_of, table
from tests.families.vision import missing, vision_recipes


def test_every_configuration_has_a_model() -> None:
    names = families()
    assert len({family.kind for family in names.values()}) > 500
    assert names["bert/BertForMaskedLM"].labels == "tokens"


@pytest.mark.parametrize("name", ["bert/BertModel", "whisper/WhisperModel", "torch.nn/GRU"])
def test_a_model_is_right(name) -> None:
    model, calls = case_of(name)
    assert sum(p.numel() for p in model.parameters()) < 3_000_000
    sizes = {next(iter(call.values())).shape for call in calls}
    assert len(sizes) == 3
    record = check(name, model, calls[:1], "inference", "eager")
    assert (record.outcome, record.graphs, record.fallbacks) == ("right", [1], [])
    assert "| inference | 1 | 1 |" in table([record.as_json()])


def test_a_wrong_result_is_found() -> None:
    def wrong(graph_module, example_inputs):
        return lambda *inputs: tuple(x * 1.001 for x in graph_module(*inputs))

    model, calls = RECIPES["torch.nn/Linear"]()
    record = check("linear", model, calls, "inference", wrong)
    assert record.outcome == "wrong" and "from float64" in record.detail


def test_what_eager_is_off_by_at_moved_states_counts_as_rounding() -> None:
    here, off, far = torch.tensor([0.9]), torch.tensor([1.0]), torch.tensor([2.0])
    still = [Distances(0.0, 0.0)] * 7
    assert "from float64" in apart(off, here, here)
    assert "from float64" in apart(off, here, here, still)
    assert not apart(off, here, here, [*still, Distances(0.0, 0.1)])
    assert not apart(off, here, here, [*still, Distances(0.0, 0.0, 0.1)])
    assert "from float64" in apart(far, here, here, [*still, Distances(0.0, 0.1, 0.1)])


def test_what_is_off_at_most_states_is_no_jump() -> None:
    here, off = torch.tensor([0.9]), torch.tensor([0.91])
    jump = Distances(0.01, 0.1, 0.1)
    assert not apart(off, here, here, [jump] * 4 + [Distances(0.0, 0.0)] * 4)
    assert "at most states" in apart(off, here, here, [jump] + [Distances(0.01, 0.0)] * 7)


class _IllConditioned(torch.nn.Module):
    """A batch norm over two images: where these are nearly alike gradients are of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(
                torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
                for _ in range(12)
            )
        )

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("error", [0.0, 0.02])
def test_an_error_is_found_in_an_ill_conditioned_model(error) -> None:
    def planted(graph_module, example_inputs):
        def run(*inputs):
            # Rounding at the beginning, which grows, and the error at the end, as of a formula.
            moved = [
                x * (1 + 1e-7 * torch.sin(1e4 * x.detach())) if x.is_floating_point() else x
                for x in inputs
            ]
            result, *others = graph_module(*moved)
            return result * (1 + error), *others

        return run

    torch.manual_seed(3)
    x = torch.randn(1, 8) + 1e-3 * torch.randn(3, 8)
    record = check("ill", _IllConditioned(), [{"x": x}], "training", planted)
    assert record.outcome == ("wrong" if error else "right"), record.detail


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_other_libraries_are_swept_or_named_as_missing(library) -> None:
    names = [name for name in vision_recipes() if name.startswith(f"{library}/")]
    told = [line for line in missing() if library in line]
    assert bool(names) is not bool(told)
    if names:
        model, calls = case_of("timm/test_resnet" if library == "timm" else "torchvision/resnet18")
        record = check(library, model, calls[:1], "inference", "eager")
        assert (record.outcome, record.graphs, record.fallbacks) == ("right", [1], [])


@pytest.mark.parametrize("name", ["blt/BltForCausalLM", "d_fine/DFineForObjectDetection"])
def test_a_written_out_family_is_in_the_catalogue_and_has_inputs(name) -> None:
    assert name in families()
    model, calls = case_of(name)
    assert len(calls) == 3 and sum(p.numel() for p in model.parameters()) < 1_000_000
    assert model(**calls[1]) is not None
