"""Arrays on a GPU, of any library that speaks DLPack: where their values lie."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from gleaner.errors import UnsupportedError

_CUDA = 2
_FLOAT = 2
_BFLOAT = 4
_DTYPES = {(_FLOAT, 32): "float32", (_FLOAT, 16): "float16", (_BFLOAT, 16): "bfloat16"}

# CUDA's default stream, as DLPack numbers it and as the driver does: a producer orders its work before what comes on that stream.
_DEFAULT_STREAM = 1
DEFAULT_STREAM = 0
# The producer orders nothing: an event says when the values are there.
_NO_STREAM = -1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Lent(NamedTuple):
    """Values on a device, lent for as long as the capsule lives."""

    address: int
    entries: int
    dtype: str
    capsule: Any


def is_on_device(array: Any) -> bool:
    """Whether an array lies on a CUDA device."""
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _CUDA


def lend(array: Any, what: str, by_event: bool = False) -> Lent:
    """Where the values of an array on a device lie, one after the other; in the order of the default stream, or an event says when.

    Raises:
        UnsupportedError: another type than float32, float16 and bfloat16, or values that are not one after the other, or an array that its
            library does not lend.
    """
    try:
        capsule = array.__dlpack__(stream=_NO_STREAM if by_event else _DEFAULT_STREAM)
    except (BufferError, RuntimeError) as error:
        # Older versions of PyTorch raise the latter for a tensor that requires a gradient, and all do for what fails on a device.
        if not isinstance(error, BufferError) and not getattr(array, "requires_grad", False):
            raise
        raise UnsupportedError(f"{what} cannot be lent: {error}") from error
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise UnsupportedError(f"{what} is of an unknown type; expected float32, float16 or bfloat16")
    shape = [tensor.shape[i] for i in range(tensor.dimensions)]
    count = 1
    for i in reversed(range(tensor.dimensions)):
        if tensor.strides and shape[i] > 1 and tensor.strides[i] != count:
            raise UnsupportedError(f"the values of {what} are not one after the other; make it contiguous")
        count *= shape[i]
    return Lent((tensor.data or 0) + tensor.byte_offset, count, dtype, capsule)
