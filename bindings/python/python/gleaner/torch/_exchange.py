"""What the hook and the Synchronizer share: the exchange of the gradients of named parameters, its state and its groups."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from gleaner import _health, _native
from gleaner._membership import Membership
from gleaner._method import MethodLike, as_method
from gleaner.errors import MethodError
from gleaner.torch import _momentum
from gleaner.torch._device import OnDevice
from gleaner.torch._sessions import names_of
from gleaner.torch._state import load_state, state_of
from gleaner.torch._tensors import Staging


class Exchange:
    """Gradients of parameters, exchanged with the ranks of a session.

    Attributes:
        session: the session of the ranks.
        skipped: the rank for whose gradients the last step was left out, or None.
    """

    def __init__(
        self,
        parameters: Dict[str, torch.Tensor],
        method: _native.Method,
        session: Membership,
        scaler: Any,
        merge: str,
        steady_after: int,
        device: Optional[OnDevice],
    ) -> None:
        self.session = session
        self.skipped: Optional[int] = None
        self._method = method
        self._names = names_of(parameters)
        self._scaler = scaler
        self._device = device
        self._staging = Staging()
        # Backpropagation comes to the last parameters first.
        layout = [(name, parameter.numel()) for name, parameter in reversed(parameters.items())]
        native = None if device is None else device.native
        self.gradients: _native.Gradients = session.native.gradients([layout], method, merge, steady_after, native)

    def state_dict(self) -> Dict[str, Any]:
        """What this rank has not delivered yet, and what the method has learnt. Save it on every rank, beside the model's state and between
        steps."""
        return state_of(self.gradients, self.session.rank, self.session.world_size)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a `state_dict`. All ranks call it together.

        Raises:
            CheckpointError: a state of another model, method, step or run, here or on another rank. Nothing has changed then.
        """
        load_state(self.gradients, state, self.session.rank, self.session.world_size)

    def health(self, momentum: float = 0.0, *, optimizer: Optional[torch.optim.Optimizer] = None) -> _health.Health:
        """What waits on this rank and how long, and what in that slows a training with this momentum or optimiser. It begins
        again with other groups and after `load_state_dict`.

        Args:
            momentum: that of the optimiser, from 0 to below 1; 0 where it counts how long entries have waited, and beside momentum correction.
            optimizer: the optimiser, in place of its momentum, which is read from it: of Adam β₁, and of `gleaner.torch.SGD` none.

        Raises:
            MethodError: a momentum that is not from 0 to below 1, or both arguments.
        """
        if optimizer is None:
            return _health.of(self.gradients, momentum)
        if momentum != 0.0:
            raise MethodError(f"health was given momentum={momentum} and an optimiser; expected one of the two")
        late = _momentum.of(optimizer, self._method)
        if late is None:
            return _health.of(self.gradients, 0.0)
        health = _health.of(self.gradients, late.share)
        findings = [found._replace(sentence=late.sentence) if found.name == "momentum" else found for found in health.findings]
        return health._replace(findings=findings)

    @property
    def groups(self) -> Optional[List[List[str]]]:
        """The names of the parameters that travel together, once they were planned."""
        return self.gradients.groups()

    @property
    def expected(self) -> Optional[Tuple[float, float]]:
        """What a step is expected to take by the plan, in seconds, and the share of its exchange that is hidden."""
        return self.gradients.expected()


def method_and_merge(
    method: MethodLike, density: Optional[float], scaler: Any, merge: str, options: Dict[str, Any]
) -> Tuple[_native.Method, str]:
    """The method and the merging strategy for what a caller gave.

    Raises:
        MethodError: no such method, option or density.
    """
    made = as_method(method, density, **options)
    if scaler is not None:
        made = made.skipping()
    if merge == "optimal" and options.get("clip_local") is not None:
        # The norm of the whole gradient decides before any of it is exchanged.
        merge = "single"
    return made, merge
