"""The flat layout is a pure function of the model's names and shapes."""

from __future__ import annotations

import pytest
import torch
from exact_models import make_model
from torch import nn

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.exact.layout import ALIGNMENT, Entry, FlatLayout, unique_parameters


def model_of(**parameters: nn.Parameter) -> nn.Module:
    model = nn.Module()
    for name, parameter in parameters.items():
        model.register_parameter(name, parameter)
    return model


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype))


def test_entries_follow_the_utf8_bytes_of_names_without_gaps() -> None:
    model = model_of(é=ones(2), z=ones(3, 4), Z=ones(5), a=ones())
    assert FlatLayout.of(model).entries == (
        Entry("Z", (5,), 0, 5, "F32"),
        Entry("a", (), 5, 1, "F32"),
        Entry("z", (3, 4), 6, 12, "F32"),
        Entry("é", (2,), 18, 2, "F32"),
    )


def test_the_order_of_definition_does_not_matter() -> None:
    one = FlatLayout.of(model_of(a=ones(2), b=ones(3)))
    other = FlatLayout.of(model_of(b=ones(3), a=ones(2)))
    assert one == other
    assert one.digest() == other.digest()


def test_the_digest_sees_names_shapes_and_dtypes() -> None:
    models = [
        model_of(a=ones(2)),
        model_of(b=ones(2)),
        model_of(a=ones(2, 1)),
        model_of(a=ones(2, dtype=torch.bfloat16)),
    ]
    assert len({FlatLayout.of(model).digest() for model in models}) == 4


def test_tied_parameters_lie_there_once_under_the_smallest_name() -> None:
    """huggingface/accelerate#1204: tied weights written twice."""
    names = [entry.name for entry in FlatLayout.of(make_model()).entries]
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_frozen_parameters_are_no_entries_but_are_parameters() -> None:
    model = make_model()
    assert not any(entry.name.startswith("frozen") for entry in FlatLayout.of(model).entries)
    assert "frozen.weight" in unique_parameters(model)


def test_numel_is_padded_to_the_alignment() -> None:
    assert FlatLayout.of(model_of(a=ones(ALIGNMENT))).numel == ALIGNMENT
    assert FlatLayout.of(model_of(a=ones(ALIGNMENT + 1))).numel == 2 * ALIGNMENT


def test_slices_are_near_equal_and_may_be_empty() -> None:
    layout = FlatLayout.of(model_of(a=ones(5 * ALIGNMENT)))
    assert layout.slices(2) == ((0, 2 * ALIGNMENT), (2 * ALIGNMENT, 5 * ALIGNMENT))
    assert sum(start == stop for start, stop in layout.slices(8)) == 3


def test_views_share_the_flat_memory() -> None:
    layout = FlatLayout.of(model_of(a=ones(2, 3), b=ones(4)))
    flat = torch.zeros(layout.numel)
    first, second = layout.views(flat)
    first.fill_(1)
    second.fill_(2)
    assert flat[:11].tolist() == [1] * 6 + [2] * 4 + [0]


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(RecipeError, match="no parameter to train"):
        FlatLayout.of(nn.Linear(2, 2).requires_grad_(False))


def test_a_complex_parameter_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="'a' is complex"):
        FlatLayout.of(model_of(a=ones(2, dtype=torch.complex64)))


def test_a_parameter_without_a_shape_is_refused_by_name() -> None:
    model = nn.Module()
    model.register_parameter("lazy", nn.UninitializedParameter())
    with pytest.raises(RecipeError, match="'lazy' has no shape yet"):
        FlatLayout.of(model)
