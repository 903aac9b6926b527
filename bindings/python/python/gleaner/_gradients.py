"""Gradients of NumPy arrays that go in parameter by parameter."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import numpy

from gleaner import _arrays, _dlpack, _health, _native
from gleaner.errors import LayoutError, OutOfMemory, UnsupportedError

Path = Union[str, "os.PathLike[str]"]


class Update:
    """The same update on every rank: for each parameter the mean over the ranks of what was selected."""

    def __init__(self, native: _native.Update, layout: Mapping[str, int]) -> None:
        self._native = native
        self._layout = layout

    @property
    def step(self) -> int:
        """The step that it belongs to, from 0."""
        return self._native.step

    @property
    def entries(self) -> int:
        """How many entries of all parameters are not zero."""
        return self._native.entries

    @property
    def skipped(self) -> Optional[int]:
        """The rank for whose values all ranks left the step out: nothing was delivered then. None if it was not."""
        skipped = self._native.skipped
        return None if skipped is None else skipped[0]

    def values(self, parameter: str) -> "numpy.ndarray[Any, Any]":
        """The mean of a parameter, entry by entry: float32, with zeros where nothing was delivered.

        Raises:
            LayoutError: no such parameter.
        """
        values = numpy.empty(self._layout.get(parameter, 0), numpy.float32)
        self._native.copy_to(parameter, _arrays.address(values), values.size)
        return values

    def copy_to(self, parameter: str, array: Any) -> None:
        """Writes the mean of a parameter to an array on the gradients' device, of any library that speaks DLPack, in place and in the order of
        CUDA's default stream. Only the entries cross over.

        Raises:
            LayoutError: no such parameter, or an array with another number of entries.
            UnsupportedError: an array in main memory, of another type or not contiguous.
        """
        if not _dlpack.is_on_device(array):
            raise UnsupportedError(f"the array for '{parameter}' lies in main memory; expected one on a GPU, or take values()")
        into = _dlpack.lend(array, f"the array for '{parameter}'")
        self._native.copy_to_device(parameter, into.address, into.entries, into.dtype, _dlpack.DEFAULT_STREAM)

    def add_to(self, parameter: str, array: "numpy.ndarray[Any, Any]", scale: float) -> None:
        """`array += scale * mean`: what plain gradient descent does with a negative learning rate.

        Raises:
            LayoutError: no such parameter, or an array with another number of entries.
        """
        values = self.values(parameter)
        if array.size != values.size:
            raise LayoutError(f"the array for '{parameter}' has {array.size} entries; the layout says {values.size}")
        array += numpy.asarray(scale, array.dtype) * values.reshape(array.shape)

    def digest(self) -> int:
        """A number of 64 bits that is the same on two ranks if their updates are, bit by bit."""
        return self._native.digest()


class Gradients:
    """Gradients go in parameter by parameter, and the same update comes out on every rank.

    A group of parameters is exchanged from the moment that its last one is ready, while the program goes on.
    """

    def __init__(self, native: _native.Gradients, layout: Dict[str, int]) -> None:
        self.native = native
        self._layout = layout
        # What is read on a device until the update is there.
        self._lent: List[_dlpack.Lent] = []

    def ready(self, parameter: str, gradient: Any, event: Optional[int] = None) -> None:
        """The gradient of a parameter is ready: float32, of any shape with as many entries as the layout says. The array is free when this
        returns. One on the GPU of these gradients may also be of float16 or bfloat16, and of any library that speaks DLPack; it is read where
        it lies, and not to be written to before `wait` returns.

        Args:
            parameter: its name.
            gradient: its gradient.
            event: the handle of a recorded CUDA event after which a gradient on the GPU is there, such as `torch.cuda.Event.cuda_event`; without
                it, it is read in the order of CUDA's default stream.

        Raises:
            OutOfMemory: the GPU has not enough memory: the gradient counts as not given.
            UnsupportedError: another type, or an event for an array in main memory.
            LayoutError: a parameter that the layout does not have or that was given before in this step, or another length.
            Error: memory or an event that is not the GPU's, or cannot be used now: the gradient counts as not given.
            JobFailed: values that are not finite, or a job that has failed.
        """
        if _dlpack.is_on_device(gradient):
            lent = _dlpack.lend(gradient, f"the gradient of '{parameter}'", event is not None)
            if event is None:
                self.native.ready_on_device(parameter, lent.address, lent.entries, lent.dtype, _dlpack.DEFAULT_STREAM)
            else:
                self.native.ready_after_event(parameter, lent.address, lent.entries, lent.dtype, event)
            self._lent.append(lent)
            return
        if event is not None:
            raise UnsupportedError(f"the gradient of '{parameter}' is in main memory and has a CUDA event; expected none")
        values = _arrays.contiguous(gradient, f"the gradient of '{parameter}'")
        if values.dtype != numpy.float32:
            raise UnsupportedError(f"the gradient of '{parameter}' is of {values.dtype.name}; expected float32")
        self.native.ready(parameter, _arrays.address(values), values.size)

    def wait(self) -> Update:
        """Waits for the update of this step and commits it: residuals change for all groups or for none.

        Raises:
            LayoutError: parameters whose gradients are missing.
            OutOfMemory: a rank's GPU had not enough memory: the step is undone on all ranks, and its gradients wait for the next one.
            JobFailed: the job has failed.
        """
        try:
            update = Update(self.native.wait(), self._layout)
        except OutOfMemory:
            # The step is over.
            self._lent.clear()
            raise
        self._lent.clear()
        return update

    @property
    def step(self) -> int:
        """The number of the present step, from 0."""
        return self.native.step()

    def health(self, momentum: float = 0.0) -> _health.Health:
        """What waits on this rank and how long, and what in that slows a training whose optimiser has this momentum. It begins
        again with other groups and after `load`.

        Raises:
            MethodError: a momentum that is not from 0 to below 1.
        """
        return _health.of(self.native, momentum)

    @property
    def groups(self) -> Optional[List[List[str]]]:
        """The names of each group's parameters, once a merging strategy has planned them."""
        return self.native.groups()

    def save(self, path: Path) -> None:
        """Writes residuals, what the method has learnt and the step to a file. Call it between steps, on every rank with a path of its own.

        Raises:
            CheckpointError: a file that cannot be written.
        """
        self.native.save(os.fspath(path))

    def load(self, path: Union[Path, Sequence[Path]]) -> None:
        """Goes on from what `save` wrote, bit by bit; all ranks call it together, each with its own file. A list has the files of all ranks of
        a job with another number of workers, in the order of the ranks.

        Raises:
            CheckpointError: files that are missing, damaged or of another job, here or on another rank. Nothing has changed then.
        """
        if isinstance(path, (str, os.PathLike)):
            self.native.load(os.fspath(path))
        else:
            self.native.load_from([os.fspath(each) for each in path])
