"""A worker's membership in a job, for NumPy arrays."""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy

from gleaner import _arrays, _native
from gleaner._gradients import Gradients
from gleaner._handle import Handle
from gleaner._membership import Traffic
from gleaner._method import MethodLike, as_method
from gleaner._together import Together

Array = Any
Layout = Mapping[str, int]

__all__ = ["Session", "Traffic"]


class Session(Together):
    """A worker's membership in a job.

    All ranks make the same calls in the same order. Calls that wait for other ranks release the interpreter's lock, and Ctrl-C
    interrupts them. A session is left by `leave`, at the end of a `with` block, or when the interpreter ends; where a `with` block or
    the program ends by an exception, the job ends on all ranks, with the exception's text.

    >>> import gleaner, numpy
    >>> session = gleaner.Session.join()
    >>> session.all_reduce(numpy.array([1.0, 2.0]))
    array([1., 2.])
    """

    def __init__(self, native: _native.Session) -> None:
        super().__init__(native)
        self._reducers: Dict[Tuple[Any, ...], _native.Reducer] = {}
        self._lock = threading.Lock()

    def all_reduce(
        self,
        array: Array,
        *,
        name: Optional[str] = None,
        method: MethodLike = "ring",
        density: Optional[float] = None,
        op: str = "mean",
        out: Optional[Array] = None,
        **options: Any,
    ) -> "numpy.ndarray[Any, Any]":
        """The mean of an array over all ranks, or another reduction of it.

        Args:
            array: of float32, float64, float16 or (with ml_dtypes) bfloat16, of any shape; the same on all ranks.
            name: what is reduced, for errors. A sparse method keeps a residual for each name, shape and type.
            method: a `Method`, or its name: `ring` delivers every entry, `spardl` at a density of 0.01 those that matter.
            density: the share of entries that a sparse method selects in a step, by default 0.05; float32 values then have 4 bits.
            op: mean, sum, max, min or product. The last three are for methods that deliver every entry.
            out: where the result goes, of the array's shape and type; may be the array itself.
            options: those of `Method`.

        Returns:
            An array of the same shape and type, with the same bits on every rank. Zeros for a step that was left out.

        Raises:
            JobFailed: the job has failed, for instance because a rank gave another shape.
            MethodError: an invalid method.
            UnsupportedError: an array of another type.
        """
        handle = self.all_reduce_async(
            array, name=name, method=method, density=density, op=op, out=out, **options
        )
        return handle.wait()

    def all_reduce_async(
        self,
        array: Array,
        *,
        name: Optional[str] = None,
        method: MethodLike = "ring",
        density: Optional[float] = None,
        op: str = "mean",
        out: Optional[Array] = None,
        **options: Any,
    ) -> Handle:
        """Starts what `all_reduce` does, and does not wait for it. The array is free when this returns.

        Returns:
            A handle to wait for, or to await in asyncio. Several of different names may be under way at once; one of the same name
            begins when the last one is over.
        """
        values = _arrays.contiguous(array, name or "the array")
        into = None if out is None else _arrays.writable(out, values, name or "the array")
        made = as_method(method, density, **options)
        reducer, label = self._reducer(values, name, made, op)
        native = reducer.start(_arrays.address(values), values.size)
        workers = self.world_size if op == "sum" else None
        return Handle(native, label, values.shape, values.dtype, workers, into)

    def residual(
        self,
        like: Array,
        *,
        name: Optional[str] = None,
        method: MethodLike = "ring",
        density: Optional[float] = None,
        op: str = "mean",
        **options: Any,
    ) -> "numpy.ndarray[Any, Any]":
        """What waits on this rank for a later `all_reduce` with these arguments, entry by entry."""
        values = _arrays.contiguous(like, name or "the array")
        reducer, _ = self._reducer(values, name, as_method(method, density, **options), op)
        residual = numpy.empty_like(values)
        reducer.residual(_arrays.address(residual), residual.size)
        return residual

    def _reducer(
        self, values: "numpy.ndarray[Any, Any]", name: Optional[str], method: _native.Method, op: str
    ) -> Tuple[_native.Reducer, str]:
        kind = values.dtype.name
        label = name or f"{kind}[{values.size}]"
        # Mean and sum are one reduction, whose result is read in two ways.
        key = (label, values.size, kind, str(method), method.skips, "sum" if op == "mean" else op)
        with self._lock:
            reducer = self._reducers.get(key)
            if reducer is None:
                reducer = self.native.reducer(label, values.size, method, kind, op)
                self._reducers[key] = reducer
        return reducer, label

    def gradients(
        self,
        layout: Union[Layout, Sequence[Layout]],
        method: MethodLike = "spardl",
        *,
        density: Optional[float] = None,
        k: Optional[int] = None,
        merge: Optional[str] = None,
        device: Optional[int] = None,
        **options: Any,
    ) -> Gradients:
        """Agrees with all ranks on the parameters of a model, and starts to synchronise their gradients.

        Args:
            layout: the number of entries of each parameter by name; or a list of such groups, each of which is exchanged by itself.
            method: a `Method` or its name.
            density, k: the share of entries that is selected in a step, or how many; by default a density of 0.05, and at
                least 256 entries of each group, with values of 4 bits.
            merge: a merging strategy such as `optimal`: groups follow from what steps are measured to take.
            device: the number of the CUDA device on which gradients are computed: their residuals stay there.
            options: those of `Method`.

        Raises:
            JobFailed: ranks whose parameters or method differ: the text names the first difference.
            UnsupportedError: no such device: the text says why.
        """
        on = None if device is None else _native.Device(device)
        groups = [layout] if isinstance(layout, Mapping) else list(layout)
        native = self.native.gradients(
            [list(group.items()) for group in groups],
            as_method(method, density, k, **options),
            merge,
            device=on,
        )
        return Gradients(native, dict(item for group in groups for item in group.items()))

    def leave(self) -> None:
        self._reducers.clear()
        super().leave()

    def abort(self, reason: str) -> None:
        self._reducers.clear()
        super().abort(reason)
