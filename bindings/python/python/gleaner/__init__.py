"""Gleaner: data-parallel training over slow networks.

Workers exchange the entries of their gradients that matter and gather the rest as residuals, so that nothing is lost.

For PyTorch see `gleaner.torch`: `gleaner.torch.register(ddp_model)` makes Gleaner the communication hook of
DistributedDataParallel. For NumPy arrays:

>>> import gleaner, numpy
>>> gleaner.all_reduce(numpy.array([1.0, 2.0]))
array([1., 2.])
"""

from __future__ import annotations

from typing import Any

from gleaner import errors
from gleaner._health import Finding, Health
from gleaner._membership import Traffic
from gleaner._native import Method, __version__
from gleaner.errors import (
    Cancelled,
    CheckpointError,
    ConfigError,
    Error,
    ForkedError,
    JobFailed,
    JoinError,
    LayoutError,
    MethodError,
    OutOfMemory,
    SessionLeft,
    UnsupportedError,
)

__all__ = [
    "Cancelled",
    "CheckpointError",
    "ConfigError",
    "Error",
    "Finding",
    "ForkedError",
    "Gradients",
    "Handle",
    "Health",
    "JobFailed",
    "JoinError",
    "LayoutError",
    "Method",
    "MethodError",
    "OutOfMemory",
    "Session",
    "SessionLeft",
    "Traffic",
    "UnsupportedError",
    "Update",
    "__version__",
    "all_reduce",
    "all_reduce_async",
    "errors",
    "late_sgd_step",
    "session",
]

# What needs NumPy, which a program that uses PyTorch alone may not have.
_OF_NUMPY = {
    "Gradients": "gleaner._gradients",
    "Update": "gleaner._gradients",
    "Handle": "gleaner._handle",
    "Session": "gleaner._session",
    "late_sgd_step": "gleaner._late_sgd",
}


def __getattr__(name: str) -> Any:
    if name in _OF_NUMPY:
        import importlib

        return getattr(importlib.import_module(_OF_NUMPY[name]), name)
    raise AttributeError(f"module 'gleaner' has no attribute '{name}'")


def session() -> "Any":
    """The `Session` of this process. The first call joins the job that the environment describes.

    Raises:
        ConfigError: an environment that is incomplete or contradicts itself.
        JoinError: workers that do not come together within the timeout.
    """
    from gleaner import _membership

    return _membership.default()


def all_reduce(array: Any, **arguments: Any) -> Any:
    """`Session.all_reduce` of the session of this process: the mean of an array over all ranks, or another reduction of it."""
    return session().all_reduce(array, **arguments)


def all_reduce_async(array: Any, **arguments: Any) -> Any:
    """`Session.all_reduce_async` of the session of this process: a handle to wait for, or to await in asyncio."""
    return session().all_reduce_async(array, **arguments)
