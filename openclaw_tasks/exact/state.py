"""The state that training changes and a snapshot holds: one registry of every part of it.

Model with buffers, optimizer, scaler, and the two counters `step` and `applied`. The learning rate is
no state: it is a pure function of `applied`. Snapshots are taken at step boundaries only, where no
gradient is half summed and `apply` is not under way.

What breaks the guarantee: state outside these parts (attributes of modules or of the optimizer that
are neither parameters, buffers nor optimizer state), and an optimizer that reads the clock or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openclaw_tasks.errors import DamagedError, RecipeError, RunError
from openclaw_tasks.exact.buffers import buffer_shapes, buffers_of
from openclaw_tasks.exact.codecs import Codec
from openclaw_tasks.exact.layout import FlatLayout, name_order, unique_parameters
from openclaw_tasks.exact.optimizer_state import (
    CapturedOptimizer,
    capture_optimizer,
    prepare_optimizer,
    refuse_unfit_optimizer,
)
from openclaw_tasks.exact.plain import Json, decode_plain, encode_plain
from openclaw_tasks.exact.record import Buffer, max_record_bytes, pack_presence
from openclaw_tasks.exact.snapshot import (
    FORMAT,
    Snapshot,
    counters_of,
    digest_state,
    digest_weights,
)
from openclaw_tasks.exact.tensor_bytes import StoredTensor, dtype_name, pack_tensors, stored_of, tensor_of, tensor_parts

Schedule = Callable[[int], float]


class TrainState:
    """Model, optimizer and counters of one run in one process; `apply` is the only way forward.

    `gradient` is the flat float32 vector that a record is decoded into. `clip_norm` bounds the mean
    gradient's global norm; None turns clipping off. `schedule(applied)` is the factor on each group's
    first learning rate, which is kept as `initial_lr`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layout: FlatLayout,
        codec: Codec,
        clip_norm: float | None,
        schedule: Schedule,
    ) -> None:
        """Raises RecipeError for a model or optimizer whose state cannot be kept exactly."""
        self.model = model
        self.optimizer = optimizer
        self.layout = layout
        self.codec = codec
        self.clip_norm = clip_norm
        self.schedule = schedule
        self.step = 0
        self.applied = 0
        self.scaler: dict[str, Any] | None = None
        self._parameters = unique_parameters(model)
        self._names: dict[Tensor, str] = {p: name for name, p in self._parameters.items()}
        device = next(iter(self._parameters.values())).device
        self.gradient = torch.zeros(layout.numel, dtype=torch.float32, device=device)
        self._refuse_unfit(layout)
        for group in optimizer.param_groups:
            lr = group["lr"]
            group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)
        try:
            self._captured()
        except RunError as error:
            raise RecipeError(str(error)) from error
        self._views = layout.views(self.gradient)
        trained = [self._parameters[entry.name] for entry in layout.entries]
        # The gradient in the parameter's own dtype and strides, where a view of the flat one has others.
        self._casts = [
            None if p.dtype == torch.float32 and p.is_contiguous() else torch.empty_like(p, requires_grad=False)
            for p in trained
        ]
        self._trained = trained

    def _refuse_unfit(self, layout: FlatLayout) -> None:
        if layout != FlatLayout.of(self.model):
            raise RecipeError("the layout is not the model's: parameters were added, frozen or reshaped since")
        for name, parameter in self._parameters.items():
            if parameter.device != self.gradient.device:
                raise RecipeError(f"parameter {name!r} lies on {parameter.device}, others on another device")
        for name, module in self.model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                raise RecipeError(f"module {name!r} keeps extra state outside its buffers; register a buffer")
        refuse_unfit_optimizer(self.optimizer, self._names)
        if any("lr" not in group for group in self.optimizer.param_groups):
            raise RecipeError(f"{type(self.optimizer).__name__} has a group without lr, which schedule() sets")

    # Gradients and learning rate: what training and `apply` need.

    def collect_gradients(self, flat: Tensor) -> bytes:
        """Move the parameters' gradients into `flat`, float32 of `layout.numel`; returns the presence mask.

        Entries without a gradient become zero, the padding is left as it is (make it zero once), and
        every `.grad` is None afterwards, so that the next backward adds to nothing.
        """
        flags: list[bool] = []
        for parameter, view in zip(self._trained, self.layout.views(flat), strict=True):
            grad = parameter.grad
            flags.append(grad is not None)
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad.to_dense() if grad.layout != torch.strided else grad)
        self.drop_gradients()
        return pack_presence(flags)

    def drop_gradients(self) -> None:
        """Make every parameter's `.grad` None."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def place_gradients(self, present: list[bool]) -> None:
        """Point each parameter's `.grad` at its part of `gradient`; None where it has none."""
        self.drop_gradients()
        for parameter, view, cast, has in zip(self._trained, self._views, self._casts, present, strict=True):
            if has:
                parameter.grad = view if cast is None else cast.copy_(view)

    def set_learning_rates(self) -> None:
        """Each group's lr = its initial_lr * schedule(applied)."""
        factor = float(self.schedule(self.applied))
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial_lr"] * factor)
            else:
                group["lr"] = group["initial_lr"] * factor

    def max_record_bytes(self) -> int:
        """Bytes that no record of this state exceeds."""
        payload = self.codec.encoded_bytes(self.layout.numel)
        return max_record_bytes(payload, len(self.layout.entries), buffer_shapes(self.model))

    # The state as a whole.

    def weights(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers, live, in name order; of tied names only the smallest."""
        named = {**self._parameters, **buffers_of(self.model, persistent_only=True)}
        return {name: named[name].detach() for name in sorted(named, key=name_order)}

    def _captured(self) -> CapturedOptimizer:
        return capture_optimizer(self.optimizer, self._names, self.gradient)

    def _non_persistent(self) -> dict[str, Tensor]:
        kept = buffers_of(self.model, persistent_only=True)
        return {name: buffer for name, buffer in buffers_of(self.model).items() if name not in kept}

    def _plain(self, captured: CapturedOptimizer) -> dict[str, Json]:
        return {
            "format": FORMAT,
            "layout": self.layout.digest(),
            "non_persistent": [*self._non_persistent()],
            "optimizer": captured.plain,
            "scaler": encode_plain(self.scaler, "scaler"),
        }

    def learned_tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """The live tensors that updates change: {"params": ..., "optimizer": ...}, each by its name."""
        return {"params": self._parameters, "optimizer": self._captured().tensors}

    def size_bytes(self) -> int:
        """Bytes of all parameters, buffers and optimizer tensors: what a full checkpoint holds."""
        tensors = (self._parameters, buffers_of(self.model), self._captured().tensors)
        return sum(t.numel() * t.element_size() for part in tensors for t in part.values())

    def snapshot(self) -> Snapshot:
        """The state now, copied once; later steps do not change it.

        Raises RunError for optimizer state that cannot be kept exactly.
        """
        captured = self._captured()
        objects: dict[str, Buffer] = {name: pack_tensors(part) for name, part in self._objects(captured).items()}
        return Snapshot(self.step, self.applied, objects, self._plain(captured))

    def live_parts(self) -> tuple[dict[str, list[Buffer]], dict[str, Json]]:
        """A snapshot's objects and plain values without the copy: each object as buffers that follow each other.

        They are views of the live tensors: done with before the next step. Raises as `snapshot`.
        """
        captured = self._captured()
        return {name: tensor_parts(part) for name, part in self._objects(captured).items()}, self._plain(captured)

    def _objects(self, captured: CapturedOptimizer) -> dict[str, Mapping[str, Tensor]]:
        return {"params": self._parameters, "buffers": buffers_of(self.model), "optimizer": captured.tensors}

    def restore(self, snapshot: Snapshot) -> None:
        """Become the snapshot, by copies; tied parameters stay tied.

        Everything is checked first. Raises RunError, with the state untouched, when a tensor or a
        setting is missing, extra, retyped or reshaped; DamagedError when the bytes cannot be read.
        """
        if snapshot.plain.get("format") != FORMAT:
            raise DamagedError(f"the snapshot of step {snapshot.step} has an unknown format")
        buffers = buffers_of(self.model)
        copies = [
            *_matched("parameter", self._parameters, snapshot.tensors("params")),
            *_matched("buffer", buffers, snapshot.tensors("buffers")),
        ]
        if snapshot.non_persistent_names() != self._non_persistent().keys():
            raise RunError(f"other buffers were persistent at step {snapshot.step} than are in the recipe now")
        scaler = decode_plain(snapshot.plain.get("scaler"))
        if scaler is not None and not isinstance(scaler, dict):
            raise DamagedError(f"the scaler state of step {snapshot.step} is no dict")
        prepared = prepare_optimizer(
            self.optimizer, self._names, snapshot.plain.get("optimizer"), snapshot.tensors("optimizer")
        )
        self.drop_gradients()
        with torch.no_grad():
            for live, stored in copies:
                live.copy_(stored)
        prepared.install(self.optimizer)
        self.scaler = scaler
        self.step, self.applied = snapshot.step, snapshot.applied

    def digests(self) -> tuple[str, str]:
        """(weights_digest, state_digest); each byte is hashed once, from the live tensors."""
        captured = self._captured()
        weights = digest_weights(_stored(self.weights()))
        counters = counters_of(self.step, self.applied, self._plain(captured))
        return weights, digest_state(weights, _stored(self._non_persistent()), _stored(captured.tensors), counters)

    def weights_digest(self) -> str:
        """SHA-256 over what `weights` gives: name, dtype, shape, bytes of each."""
        return digest_weights(_stored(self.weights()))

    def state_digest(self) -> str:
        """The weights' digest with non-persistent buffers, optimizer, scaler, step and applied."""
        return self.digests()[1]


def _stored(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, StoredTensor]]:
    """In name order; one at a time, so that of a device's tensors one copy is alive."""
    return ((name, stored_of(tensors[name])) for name in sorted(tensors, key=name_order))


def _matched(
    kind: str, live: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(live, stored) pairs by name. Raises RunError for the first that does not fit."""
    if live.keys() != stored.keys():
        missing, extra = sorted(live.keys() - stored.keys()), sorted(stored.keys() - live.keys())
        raise RunError(f"{kind}s differ from the stored ones: not stored {missing}, not in the recipe {extra}")
    for name, tensor in live.items():
        found = stored[name]
        if (dtype_name(tensor.dtype), tuple(tensor.shape)) != (found.dtype, found.shape):
            raise RunError(
                f"{kind} {name!r} is stored as {found.dtype} {list(found.shape)} and is "
                f"{dtype_name(tensor.dtype)} {list(tensor.shape)} in the recipe"
            )
        yield tensor, tensor_of(found)
