"""Tensors as the native half takes them: float32 values in main memory, one after the other."""

from __future__ import annotations

from typing import Any, Dict, Hashable, Tuple

import torch

# Gradients are exchanged as float32. Narrower ones fit into it; the residual keeps what rounding the mean takes away of no entry.
EXCHANGED = (torch.float32, torch.bfloat16, torch.float16)


class Staging:
    """Where gradients pass through that are not float32 in main memory: buffers that are kept from step to step.

    A tensor that is float32 in main memory, with its values one after the other, is used as it is, without a copy.
    """

    def __init__(self) -> None:
        self._buffers: Dict[Hashable, torch.Tensor] = {}

    def values(self, key: Hashable, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor, one after the other: its own memory if they are there already.

        What is on a device is copied through pinned memory, and is there when this returns.
        """
        tensor = tensor.detach()
        if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous():
            return tensor.view(-1)
        buffer = self._buffer(key, tensor)
        buffer.view(tensor.shape).copy_(tensor, non_blocking=True)
        if tensor.device.type != "cpu":
            _synchronise(tensor.device)
        return buffer

    def give_back(self, values: torch.Tensor, tensor: torch.Tensor) -> None:
        """Writes values to the tensor from which they came, rounded to its type."""
        tensor = tensor.detach()
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values.view(tensor.shape), non_blocking=True)

    def copy(self, key: Hashable, tensor: torch.Tensor, scale: float) -> torch.Tensor:
        """The values of a tensor times a number, in a buffer of their own."""
        buffer = self._buffer(key, tensor)
        buffer.view(tensor.shape).copy_(tensor.detach(), non_blocking=True)
        if tensor.device.type != "cpu":
            _synchronise(tensor.device)
        return buffer.mul_(scale)

    def _buffer(self, key: Hashable, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() != tensor.numel():
            is_pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.numel(), dtype=torch.float32, pin_memory=is_pinned)
            self._buffers[key] = buffer
        return buffer


def _synchronise(device: torch.device) -> None:
    """Waits until what was asked of a device's present stream is done."""
    module: Any = getattr(torch, device.type)
    module.current_stream(device).synchronize()


def memory(values: torch.Tensor, offset: int, count: int) -> Tuple[int, int]:
    """Where so many of the values are, from this one on. They are float32."""
    if values.dtype != torch.float32 or values.device.type != "cpu" or not values.is_contiguous():
        raise AssertionError(f"{values.dtype} values on {values.device} were to be lent to the native half")
    if offset < 0 or offset + count > values.numel():
        raise AssertionError(f"values {offset} to {offset + count} of {values.numel()}")
    return values.data_ptr() + 4 * offset, count
