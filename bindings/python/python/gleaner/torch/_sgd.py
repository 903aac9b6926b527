"""Stochastic gradient descent for gradients whose entries come late."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Optional, Union

import torch

from gleaner.errors import MethodError

Parameters = Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]]]


class SGD(torch.optim.Optimizer):
    """`torch.optim.SGD` whose momentum counts the steps that entries have waited in residuals.

    With a sparse method an entry comes once in w steps, as the sum of what came meanwhile, and most of that is overdue: momentum would
    have applied it already. The share (1 - momentum ** w) / (w * (1 - momentum)) of it goes into the velocity, and the rest is applied at once,
    with all that it amounts to, 1 / (1 - momentum). Where an entry comes in every step this is `torch.optim.SGD`, to the last bit.

        optimizer = gleaner.torch.SGD(model.parameters(), lr=0.1, momentum=0.9)

    An entry has come where the gradient is not 0. With a dense method, whose entries of 0 have not waited, use `torch.optim.SGD`. A row of an
    embedding that no example has used is taken as if it had waited, and steps at once when it is used.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        """As `torch.optim.SGD`, without `dampening`, `maximize`, `foreach`, `differentiable` and `fused`.

        Args:
            params: parameters, or groups of them, which may have options of their own.
            lr: the learning rate, at least 0.
            momentum: how much of the last velocity the next one keeps, from 0 to below 1.
            weight_decay: how strongly parameters are pulled towards zero, at least 0.
            nesterov: whether a step looks ahead along the new velocity.

        Raises:
            MethodError: an option out of its range.
        """
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov))
        for group in self.param_groups:
            _check("lr", group["lr"], "a number from 0 on", group["lr"] >= 0.0)
            _check("momentum", group["momentum"], "a number from 0 to below 1", 0.0 <= group["momentum"] < 1.0)
            _check("weight_decay", group["weight_decay"], "a number from 0 on", group["weight_decay"] >= 0.0)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Steps along the gradients that the parameters have.

        Args:
            closure: computes the loss again, and the gradients with it.

        Returns:
            What the closure returns, if there is one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._step(parameter, parameter.grad, group)
        return loss

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on from what `state_dict` of this class or of `torch.optim.SGD` gave.

        Args:
            state_dict: the state.
        """
        super().load_state_dict(state_dict)
        # PyTorch has rounded the steps waited to the type of the parameter.
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters):
            waited = state_dict["state"].get(number, {}).get("waited")
            if waited is not None:
                self.state[parameter]["waited"] = waited.to(parameter.device, torch.float32, copy=True)

    def _step(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Dict[str, Any]) -> None:
        momentum, state = group["momentum"], self.state[parameter]
        # A state of torch.optim.SGD has no steps waited, and no velocity without momentum.
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        if "waited" not in state:
            # Steps since an entry last came.
            state["waited"] = torch.zeros_like(parameter, dtype=torch.float32)
        velocity, waited = state["momentum_buffer"], state["waited"]
        steps = waited + 1
        share = (1 - momentum**steps) / (steps * (1 - momentum))
        share = torch.where(waited == 0, torch.ones_like(share), share).to(gradient.dtype)
        timely = gradient * share
        overdue = gradient * (1 - share) / (1 - momentum)
        state["waited"] = torch.where(gradient == 0, steps, torch.zeros_like(steps))
        if group["weight_decay"] != 0:
            timely = timely.add(parameter, alpha=group["weight_decay"])
        velocity.mul_(momentum).add_(timely)
        ahead = timely.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        parameter.add_(ahead + overdue, alpha=-group["lr"])


def _check(option: str, found: float, expected: str, fits: bool) -> None:
    if not fits:
        raise MethodError(f"{option}: expected {expected}, found {found}")
