"""NumPy arrays as the native half takes them."""

from __future__ import annotations

from typing import Any

import numpy

from gleaner.errors import LayoutError, UnsupportedError

# bfloat16 is that of the package ml_dtypes.
TYPES = ("float32", "float64", "bfloat16", "float16")


def contiguous(array: Any, what: str) -> "numpy.ndarray[Any, Any]":
    """The array with its values one after the other: itself if they are.

    Raises:
        UnsupportedError: values of another type.
    """
    array = numpy.asarray(array)
    if array.dtype.name not in TYPES:
        raise UnsupportedError(f"{what} is of {array.dtype.name}; expected {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    if not array.dtype.isnative:
        raise UnsupportedError(f"{what} has the bytes of its values in the other order; expected those of this machine")
    # That one makes an array of one dimension of a single value.
    return numpy.ascontiguousarray(array).reshape(array.shape)


def address(array: "numpy.ndarray[Any, Any]") -> int:
    """Where its values are."""
    return int(array.__array_interface__["data"][0])


def writable(array: Any, like: "numpy.ndarray[Any, Any]", what: str) -> "numpy.ndarray[Any, Any]":
    """An array that a result can be written to.

    Raises:
        LayoutError: another shape or type, gaps between its values, or an array that may not be written to.
    """
    fits = isinstance(array, numpy.ndarray) and array.shape == like.shape and array.dtype == like.dtype
    if not fits or not array.flags.c_contiguous or not array.flags.writeable:
        raise LayoutError(
            f"{what} cannot take the result; expected a contiguous array of shape {like.shape} and type {like.dtype.name} that may be "
            "written to"
        )
    result: "numpy.ndarray[Any, Any]" = array
    return result
