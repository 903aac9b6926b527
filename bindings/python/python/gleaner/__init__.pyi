from typing import Any, Optional

import numpy

from gleaner import errors as errors
from gleaner._gradients import Gradients as Gradients, Update as Update
from gleaner._handle import Handle as Handle
from gleaner._health import Finding as Finding, Health as Health
from gleaner._late_sgd import late_sgd_step as late_sgd_step
from gleaner._method import MethodLike
from gleaner._native import Method as Method, __version__ as __version__
from gleaner._session import Session as Session, Traffic as Traffic
from gleaner.errors import (
    Cancelled as Cancelled,
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    Error as Error,
    ForkedError as ForkedError,
    JobFailed as JobFailed,
    JoinError as JoinError,
    LayoutError as LayoutError,
    MethodError as MethodError,
    OutOfMemory as OutOfMemory,
    SessionLeft as SessionLeft,
    UnsupportedError as UnsupportedError,
)

def session() -> Session: ...
def all_reduce(
    array: Any,
    *,
    name: Optional[str] = None,
    method: MethodLike = "ring",
    density: Optional[float] = None,
    op: str = "mean",
    out: Optional[Any] = None,
    **options: Any,
) -> numpy.ndarray[Any, Any]: ...
def all_reduce_async(
    array: Any,
    *,
    name: Optional[str] = None,
    method: MethodLike = "ring",
    density: Optional[float] = None,
    op: str = "mean",
    out: Optional[Any] = None,
    **options: Any,
) -> Handle: ...
