"""Buffers in records, and values that are not finite."""

from __future__ import annotations

import pytest
import torch
from exact_models import TinyNet, make_model, make_state, trained
from torch import nn

from openclaw_tasks.errors import RunError
from openclaw_tasks.exact.buffers import buffers_of, changed_buffers, copy_buffers, restore_buffers
from openclaw_tasks.exact.finite import has_non_finite, non_finite_names


def test_a_state_that_is_not_finite_is_seen_before_it_is_kept() -> None:
    """mlfoundations/open_lm#7: NaN weights are saved over the good ones."""
    state = trained(2)
    assert not has_non_finite(state)
    assert not has_non_finite(state.snapshot())
    with torch.no_grad():
        state.model.get_parameter("inner.bias")[3] = torch.nan
    for found in (state, state.snapshot()):
        assert has_non_finite(found)
        assert non_finite_names(found) == ["inner.bias"]


def test_moments_and_running_statistics_count_but_masks_do_not() -> None:
    state = trained(1)
    parameter = state.optimizer.param_groups[0]["params"][0]
    state.optimizer.state[parameter]["exp_avg"].view(-1)[1] = torch.inf
    state.model.get_buffer("norm.running_mean")[0] = torch.nan
    expected = ["state/embed.weight/exp_avg", "norm.running_mean"]
    assert non_finite_names(state) == expected
    assert non_finite_names(state.snapshot()) == expected


def test_changed_buffers_are_found_by_their_bits() -> None:
    state = make_state()
    model = state.model
    assert isinstance(model, TinyNet)
    before = copy_buffers(model)
    assert changed_buffers(before, model) == ()
    model.calls += 1
    model.mask[2, 0] = -0.0
    model.norm.get_buffer("running_mean").fill_(torch.nan)
    changes = changed_buffers(before, model)
    assert [(c.name, c.dtype, c.shape, len(c.data)) for c in changes] == [
        ("calls", "I64", (), 8),
        ("mask", "F32", (3, 3), 36),
        ("norm.running_mean", "F32", (24,), 96),
    ]
    unchanged_nan = copy_buffers(model)
    assert changed_buffers(unchanged_nan, model) == ()
    restore_buffers(model, before)
    assert changed_buffers(before, model) == ()


def test_a_buffer_that_changes_its_shape_or_leaves_is_refused_by_name() -> None:
    model = make_model()
    before = copy_buffers(model)
    model.mask = torch.zeros(2, 2)
    with pytest.raises(RunError, match=r"'mask' is F32 \[2, 2\] in the model and F32 \[3, 3\] elsewhere"):
        changed_buffers(before, model)
    with pytest.raises(RunError, match="'mask'"):
        restore_buffers(model, before)
    del model.mask
    with pytest.raises(RunError, match="came or went within a step: mask"):
        changed_buffers(before, model)


def test_tied_buffers_stand_under_their_smallest_persistent_name() -> None:
    model = nn.Module()
    shared = torch.zeros(2)
    model.register_buffer("a", shared, persistent=False)
    model.register_buffer("c", shared)
    model.register_buffer("b", shared)
    assert list(buffers_of(model)) == ["b"]
    assert list(buffers_of(model, persistent_only=True)) == ["b"]
