"""Which session the workers of a process group share."""

from __future__ import annotations

import os
import weakref
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist

from gleaner import _membership, _starting
from gleaner._membership import Membership

# One for each group, for as long as the group is there.
_of_groups: "weakref.WeakKeyDictionary[Any, Membership]" = weakref.WeakKeyDictionary()


def session_of(group: Optional[dist.ProcessGroup]) -> Membership:
    """The session of a process group's ranks, with the same numbers; without a group that of the environment.

    Under `gleaner launch` the launcher says where the others are. Otherwise the ranks exchange that over the group.

    Raises:
        ConfigError: workers on several hosts without a secret file.
        JoinError: workers that do not come together within the timeout.
    """
    from gleaner.torch._process_group import ProcessGroup

    if isinstance(group, ProcessGroup):
        return group.session
    if group is None or _is_launched(group):
        return _membership.default()
    session = _of_groups.get(group)
    if session is None or session.native.is_left():
        session = Membership(_starting.join_through(group.rank(), group.size(), lambda text: _tell(group, text)))
        _of_groups[group] = session
    return session


def _is_launched(group: dist.ProcessGroup) -> bool:
    """Whether `gleaner launch` has started these ranks, and all of them are in the group."""
    same_rank = os.environ.get("GLEANER_RANK") == str(group.rank())
    return same_rank and os.environ.get("GLEANER_WORLD_SIZE") == str(group.size())


def _tell(group: dist.ProcessGroup, text: Optional[str]) -> str:
    """Rank 0's text, on every rank of the group."""
    texts: List[Optional[str]] = [text]
    first = dist.get_global_rank(group, 0)
    dist.broadcast_object_list(texts, src=first, group=group)
    return str(texts[0])


def through_store(store: "torch._C._distributed_c10d.Store", rank: int, world_size: int) -> Membership:
    """A session of ranks that share a store."""

    # torchrun's store outlives the workers that it restarts.
    key = f"gleaner/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def broadcast(text: Optional[str]) -> str:
        if text is not None:
            store.set(key, text)
        return bytes(store.get(key)).decode()

    return Membership(_starting.join_through(rank, world_size, broadcast))


def default_group() -> Optional[dist.ProcessGroup]:
    """The default process group, if there is one."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.group.WORLD


def names_of(parameters: Dict[str, torch.Tensor]) -> Dict[int, str]:
    """Names by the identity of the parameter: comparing tensors compares their values."""
    return {id(parameter): name for name, parameter in parameters.items()}
