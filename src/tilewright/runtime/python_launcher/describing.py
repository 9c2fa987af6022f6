"""A cached call, described and launched on torch's stream: `describe.h`; `call` of `launcher.c`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime.python_launcher.launching import (
    NOT_KNOWN,
    UNSUITABLE,
    Launch,
    launch,
    overlap,
    slot,
)

Torch = tuple[Any, Any, Any, Any, Any, Any]
"""What torch is asked by; see `call` of launcher.c."""


def describe(op: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A key that differs for calls that differ, and the operands' addresses."""
    key: list[Any] = [op]
    addresses = []
    for tensor in tensors:
        address = tensor.data_ptr()
        addresses.append(address)
        key += (
            alignment(address),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.get_device(),
        )
    return tuple(key), tuple(addresses)


def alignment(address: int) -> int:
    """Bytes that an address is a multiple of, 0 for 16 and more."""
    low = address & 15
    return low & -low


def call(
    torch: Torch,
    known: Mapping[Any, Launch],
    op: Any,
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> int:
    """A cached call, whole."""
    try:
        key, addresses = describe(op, tensors)
    except AttributeError:  # not torch's tensors: the caller sorts it out
        return NOT_KNOWN
    found = known.get(key)
    if found is None or not _may_launch(found, torch, tensors, scalars):
        return NOT_KNOWN
    code = launch_here(found, torch, addresses, scalars)
    if code == 0:
        note_writes(torch, [tensors[place] for place in written(found)])
    return code


def written(launch: Launch) -> list[int]:
    """Places of the operands that a launch writes."""
    return [place for place, (_, written) in enumerate(launch.operands) if written]


def note_writes(torch: Torch, written: Sequence[Any]) -> None:
    """See launcher.c."""
    for array in written:
        torch[4](getattr(array, "arrays", (array,)))


def _may_launch(
    found: Launch,
    torch: Torch,
    tensors: Sequence[Any],
    scalars: tuple[Any, ...],
) -> bool:
    _, current_device, grad_enabled, *_ = torch
    if scalars and len(scalars) != len(found.optional):
        return False
    if grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return current_device is None or current_device() == found.device


def launch_here(
    found: Launch,
    torch: Torch,
    addresses: tuple[int, ...],
    scalars: tuple[Any, ...],
) -> int:
    """See launcher.c."""
    stream = torch[0](found.device)
    workspaces = kept_workspaces(found, torch, stream)
    if workspaces is None:
        return NOT_KNOWN
    scalars = scalars or (None,) * len(found.optional)
    code = launch(found, stream, addresses, workspaces, scalars, False)
    return NOT_KNOWN if code == UNSUITABLE else code


def kept_workspaces(found: Launch, torch: Torch, stream: int) -> tuple[int, int] | None:
    """The addresses of a launch's buffers; None if there are none that it may use."""
    if not found.kept_zero and not found.scratch:
        return 0, 0
    kept = found.workspaces.get(slot(stream))
    if kept is None or kept[0] != stream or torch[3]():
        return None
    return kept[1:]


def lacking(found: Launch, torch: Torch, addresses: tuple[int, ...]) -> bool:
    """Whether a launch could not be queued as it is."""
    stream = torch[0](found.device)
    workspaces = kept_workspaces(found, torch, stream)
    if workspaces is None:
        return True
    at = (*addresses, *workspaces)
    return (
        overlap(found, addresses)
        or any(step.lacks_handle(stream) for step in found.steps)
        or any(
            at[source] + offset not in known
            for (_, source, offset), known in zip(found.descriptors, found.maps, strict=True)
        )
    )
