"""Methods as callers name them."""

from __future__ import annotations

from typing import Any, Optional, Union

from gleaner import _native
from gleaner.errors import MethodError

Method = _native.Method
MethodLike = Union[str, Method]


def as_method(
    method: MethodLike, density: Optional[float] = None, k: Optional[int] = None, **options: Any
) -> Method:
    """The method of a name, with options; or the one that is given.

    Raises:
        MethodError: no such name or option, a density that is not in (0, 1], or options beside a method that has its own.
    """
    if isinstance(method, Method):
        if density is not None or k is not None or options:
            raise MethodError(
                f"the method {method} has its own options; expected none beside it, or the method's name instead"
            )
        return method
    made = Method(method, density=density, k=k, **options)
    if made.name != "auto" and not made.is_sparse and (density is not None or k is not None):
        raise MethodError(
            f"{method} delivers every entry in every step, so it has neither density nor k; leave it out, or choose a sparse "
            "method such as spardl"
        )
    return made
