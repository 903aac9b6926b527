"""What a rank has not delivered yet, as a dictionary that torch.save and torch.distributed.checkpoint can write."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, List

from gleaner import _native
from gleaner.errors import CheckpointError

# Each rank has an entry of its own, so that torch.distributed.checkpoint does not take those of all ranks for copies of one.
_RANK = "rank {} of {}"

# The parameters in the order in which they become ready: groups that are the same have the same bits.
_ORDER = "order"


def state_of(gradients: _native.Gradients, rank: int, world_size: int) -> Dict[str, Any]:
    """Residuals, velocities, what the method has learnt and the step. Call it between steps.

    Raises:
        CheckpointError: a call in the middle of a step.
    """
    with tempfile.TemporaryDirectory(prefix="gleaner-") as folder:
        path = os.path.join(folder, "state")
        gradients.save(path)
        with open(path, "rb") as file:
            content = file.read()
    return {_RANK.format(rank, world_size): content, _ORDER: "\n".join(gradients.order() or [])}


def load_state(gradients: _native.Gradients, state: Dict[str, Any], rank: int, world_size: int) -> None:
    """Goes on from such a dictionary, together with all ranks.

    Each rank gives what it saved itself, or what all ranks saved, in one dictionary: then there may have been more of them or fewer.

    Raises:
        CheckpointError: a state of another job, here or on another rank. Nothing has changed then.
    """
    own = state.get(_RANK.format(rank, world_size))
    if state.get(_ORDER):
        gradients.adopt(state[_ORDER].split("\n"))
    with tempfile.TemporaryDirectory(prefix="gleaner-") as folder:

        def put(number: int, content: bytes) -> str:
            path = os.path.join(folder, str(number))
            # Only this user can enter the folder.
            with open(path, "wb") as file:
                file.write(bytes(content))
            return path

        if own is not None:
            gradients.load(put(rank, own))
            return
        parts = _parts(state)
        if parts:
            gradients.load_from([put(number, part) for number, part in enumerate(parts)])
            return
        # All ranks are notified: this one's file is missing.
        missing = os.path.join(folder, "missing")
        try:
            gradients.load(missing)
        except CheckpointError as error:
            raise CheckpointError(
                f"the state has no entry '{_RANK.format(rank, world_size)}', only {sorted(state)}; load what this rank saved, or the "
                "entries of all ranks that saved in one dictionary"
            ) from error


def _parts(state: Dict[str, Any]) -> List[bytes]:
    """What all ranks of a job have saved, in their order; nothing if one is missing."""
    for key in state:
        words = key.split()
        if len(words) == 4 and words[0] == "rank" and words[2] == "of" and words[3].isdigit():
            keys = [_RANK.format(rank, words[3]) for rank in range(int(words[3]))]
            return [state[key] for key in keys] if all(key in state for key in keys) else []
    return []
