"""Gradients that stay on the GPU on which they are computed: only the entries that are exchanged leave it."""

from __future__ import annotations

import warnings
from typing import Dict, Optional

import torch

from gleaner import _native
from gleaner.errors import OutOfMemory, UnsupportedError


class OnDevice:
    """Hands gradients over where they lie, in the order of PyTorch's present stream, and has means written there.

    No call waits for the device, unless memory is missing there. What Gleaner reads and writes is ordered with the stream, so that the caching allocator may give the memory
    of a gradient to others as soon as the program is done with it.
    """

    def __init__(self, device: torch.device, native: _native.Device) -> None:
        self._device = device
        self.native = native

    def hand_over(self, gradients: _native.Gradients, name: str, gradient: torch.Tensor, scale: float) -> None:
        """The gradient of a parameter, divided by a scale, is ready. Where memory is missing, that which PyTorch holds is freed, once."""
        values = gradient.detach().contiguous()
        if scale != 1.0:
            values = values.float().mul(1.0 / scale)
        try:
            self._ready(gradients, name, values)
        except OutOfMemory:
            self.free_cached()
            self._ready(gradients, name, values)

    def _ready(self, gradients: _native.Gradients, name: str, values: torch.Tensor) -> None:
        gradients.ready_on_device(name, values.data_ptr(), values.numel(), _dtype(values), self._stream())

    def free_cached(self) -> None:
        """Frees the memory of the device that PyTorch holds for tensors to come, where Gleaner lacks some."""
        torch.cuda.empty_cache()

    def deliver(self, update: _native.Update, name: str, into: torch.Tensor, scale: float) -> None:
        """Writes the mean of a parameter, times a scale, to a tensor."""
        into = into.detach()
        if scale == 1.0 and into.is_contiguous():
            self._copy(update, name, into)
            return
        mean = torch.empty(into.numel(), dtype=torch.float32, device=self._device)
        self._copy(update, name, mean)
        into.copy_(mean.mul_(scale).view(into.shape))

    def _copy(self, update: _native.Update, name: str, into: torch.Tensor) -> None:
        update.copy_to_device(name, into.data_ptr(), into.numel(), _dtype(into), self._stream())

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)


def of(parameters: Dict[str, torch.Tensor], method: _native.Method) -> Optional[OnDevice]:
    """The device of all parameters, if it is one and Gleaner can use it: otherwise gradients pass through main memory."""
    devices = {parameter.device for parameter in parameters.values()}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        warnings.warn(f"gradients pass through main memory: the parameters are on several devices, {names}", stacklevel=4)
        return None
    device = devices.pop()
    # What changes gradients before they are accumulated is done in main memory.
    if device.type != "cuda" or torch.version.cuda is None or method.corrects:
        return None
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    try:
        return OnDevice(device, _native.Device(ordinal))
    except UnsupportedError as error:
        warnings.warn(f"gradients pass through main memory: {error}", stacklevel=4)
        return None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")
