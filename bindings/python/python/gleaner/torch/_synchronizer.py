"""Gradients that are exchanged while the backward pass goes on, without DistributedDataParallel."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch

from gleaner import _native
from gleaner._membership import Membership
from gleaner._method import MethodLike
from gleaner.errors import Error, JobFailed, LayoutError, OutOfMemory
from gleaner.torch import _device, _momentum, _refusals
from gleaner.torch._exchange import Exchange, method_and_merge
from gleaner.torch._sessions import default_group, session_of
from gleaner.torch._tensors import memory

Parameters = Union[Iterable[torch.Tensor], Iterable[Tuple[str, torch.Tensor]]]


class Synchronizer(Exchange):
    """Exchanges the gradients of parameters as soon as the backward pass has finished each of them.

        sync = gleaner.torch.Synchronizer(model.named_parameters(), density=0.01)
        for inputs, targets in data:
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            sync.step(optimizer)

    Which parameters travel together follows from what the first steps are measured to take.
    """

    def __init__(
        self,
        parameters: Parameters,
        method: MethodLike = "spardl",
        *,
        density: Optional[float] = None,
        session: Optional[Membership] = None,
        scaler: Any = None,
        merge: str = "optimal",
        broadcast: bool = True,
        **options: Any,
    ) -> None:
        """All ranks call it together, with the same parameters in the same order.

        Args:
            parameters: what `model.named_parameters()` or `model.parameters()` gives. Those that need no gradient are left out.
            method: a `gleaner.Method` or its name.
            density: the share of entries that is selected in each step, by default 0.05, and at least 256 entries of each group, with values of 4 bits.
            session: by default that of the default process group's ranks, or else of the environment.
            scaler: the GradScaler that scales the loss, if there is one.
            merge: how parameters are merged into groups: a strategy such as `optimal`, `threshold/65536` or `single`.
            broadcast: whether all ranks start with the parameters of rank 0.
            options: those of `gleaner.Method`.

        Raises:
            UnsupportedError: a parameter that cannot be exchanged, by its name.
            MethodError: an invalid method, density or strategy.
            JobFailed: ranks whose parameters or methods differ: the text names the first difference.
        """
        self._parameters = _named(parameters)
        _refusals.refuse_parameters(self._parameters)
        made, merge = method_and_merge(method, density, scaler, merge, options)
        joined = session_of(default_group()) if session is None else session
        super().__init__(self._parameters, made, joined, scaler, merge, 0, _device.of(self._parameters, made))
        self._given: Dict[str, bool] = {}
        self._is_paused = False
        self._has_warned = False
        self._step_scale: Optional[float] = None
        if broadcast:
            self._broadcast()
        self._accumulators: List[Any] = []
        self._hooks = [self._on_finished(parameter) for parameter in self._parameters.values()]

    def _on_finished(self, parameter: torch.Tensor) -> Any:
        """Has `_finished` called once the backward pass has added up the gradient of a parameter."""
        register: Any = getattr(parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            return register(self._finished)
        # Before PyTorch 2.1: a hook on the node that adds the gradient up, which lives no longer than a reference to it.
        view: Any = parameter.expand_as(parameter)
        node = view.grad_fn.next_functions[0][0]
        self._accumulators.append(node)
        return node.register_hook(lambda *_: self._finished(parameter))

    def _broadcast(self) -> None:
        """Gives all ranks the parameters of rank 0."""
        values = [parameter.detach().reshape(-1).to("cpu") for parameter in self._parameters.values()]
        for dtype in sorted({part.dtype for part in values}, key=str):
            same = [(p, v) for p, v in zip(self._parameters.values(), values) if v.dtype == dtype]
            flat: Any = torch.cat([part for _, part in same])
            self.session.native.broadcast(flat.data_ptr(), flat.numel() * flat.element_size(), 0)
            for (parameter, part), new in zip(same, flat.split([part.numel() for _, part in same])):
                parameter.data.copy_(new.view(parameter.shape))

    def _finished(self, parameter: torch.Tensor) -> None:
        """The backward pass has finished the gradient of a parameter."""
        if self._is_paused:
            return
        name = self._names[id(parameter)]
        if name in self._given:
            raise LayoutError(
                f"the gradient of '{name}' was finished twice in one step; call step() or wait() between two backward passes, or make all but "
                "the last in `with sync.no_sync():`"
            )
        if parameter.grad is None:
            return
        with contextlib.suppress(OutOfMemory):
            # `wait` hands over what was not given, and raises it if memory is missing still.
            self._hand_over(name, parameter.grad)

    def _hand_over(self, name: str, gradient: torch.Tensor) -> None:
        try:
            _refusals.refuse_gradient(name, gradient)
            scale = self._scale()
            if self._device is not None:
                self._device.hand_over(self.gradients, name, gradient, scale)
                self._given[name] = True
                return
            if scale == 1.0:
                values = self._staging.values(name, gradient)
            else:
                values = self._staging.copy(name, gradient, 1.0 / scale)
            self.gradients.ready(name, *memory(values, 0, values.numel()))
        except (JobFailed, OutOfMemory):
            raise
        except Error as error:
            # The step cannot be completed, and the others wait for it.
            self.session.abort(f"{type(error).__name__}: {error}")
            raise
        self._given[name] = True

    def _scale(self) -> float:
        """The scale of this step's loss; on a device it takes waiting for it, once."""
        if self._step_scale is None:
            self._step_scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        return self._step_scale

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in it add up gradients here, and exchange nothing: those of the next pass outside are their sum."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def wait(self) -> bool:
        """Waits for the update of this step, and writes it to the gradients of the parameters: the mean over the ranks of what was selected.

        A parameter without a gradient counts as one of zeros, and stays without one if nothing was delivered for it.

        Returns:
            Whether there is an update. False if all ranks left the step out, because the gradients of one were not finite.

        Raises:
            OutOfMemory: this rank's GPU has not enough memory for a gradient: free memory, and call it again. Or a rank's had not enough to select:
                the step is undone on all ranks, its gradients wait for the next one, and are zero here.
            JobFailed: the job has failed.
        """
        for name, parameter in self._parameters.items():
            if name not in self._given:
                # Accumulated in no_sync() and not handed over since, or of a parameter that the model did not use.
                gradient = parameter.grad
                zeros = torch.zeros(parameter.shape, device=parameter.device) if gradient is None else gradient
                self._hand_over(name, zeros)
        self._given.clear()
        scale, self._step_scale = self._scale(), None
        try:
            update = self.gradients.wait()
        except OutOfMemory:
            if self._device is not None:
                self._device.free_cached()
            # What they were waits in the residuals.
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            raise
        skipped = update.skipped
        self.skipped = None if skipped is None else skipped[0]
        for name, parameter in self._parameters.items():
            if skipped is not None:
                # A GradScaler finds it on every rank alike, leaves the step out and lowers the scale.
                if self._scaler is not None and parameter.grad is not None:
                    parameter.grad.fill_(math.inf)
                continue
            self._deliver(update, name, parameter, scale)
        return skipped is None

    def _deliver(self, update: _native.Update, name: str, parameter: torch.Tensor, scale: float) -> None:
        gradient = parameter.grad
        if gradient is None:
            mean = torch.empty(parameter.numel(), device=parameter.device if self._device else "cpu")
            if self._device is not None:
                self._device.deliver(update, name, mean, 1.0)
            else:
                update.copy_to(name, *memory(mean, 0, mean.numel()))
            if bool(mean.any()):
                parameter.grad = mean.mul_(scale).view(parameter.shape).to(parameter)
            return
        if self._device is not None:
            self._device.deliver(update, name, gradient, scale)
            return
        values = self._staging.values(name, gradient)
        update.copy_to(name, *memory(values, 0, values.numel()))
        if scale != 1.0:
            values.mul_(scale)
        self._staging.give_back(values, gradient)

    def step(self, optimizer: torch.optim.Optimizer, *arguments: Any) -> bool:
        """`wait`, and then the optimiser's step, by the scaler if there is one; none for a step that all ranks left out.

        To clip gradients by their norm, call `wait`, clip, and the optimiser's step yourself. Warns once of a momentum that takes entries for new
        ones that have waited: that of `torch.optim.SGD`, or the β₁ of Adam, with a sparse method and without momentum correction.

        Args:
            optimizer: of these parameters, in any groups.
            arguments: what the optimiser's step takes.

        Returns:
            Whether there was an update.

        Raises:
            LayoutError: the optimiser has a parameter that is not exchanged.
            OutOfMemory: as `wait`; the optimiser makes no step.
            JobFailed: the job has failed.
        """
        self._check(optimizer)
        late = None if self._has_warned else _momentum.of(optimizer, self._method)
        if late is not None:
            self._has_warned = True
            warnings.warn(late.sentence, stacklevel=2)
        is_update = self.wait()
        if self._scaler is not None:
            self._scaler.step(optimizer, *arguments)
        elif is_update:
            optimizer.step(*arguments)
        return is_update

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._names:
                    error = LayoutError(
                        f"the optimiser has a parameter of shape {tuple(parameter.shape)} that is not exchanged; make the Synchronizer of all "
                        "parameters that are trained, after the last change of the model"
                    )
                    self.session.abort(str(error))
                    raise error

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._accumulators.clear()


def _named(parameters: Parameters) -> Dict[str, torch.Tensor]:
    """Parameters by name: their own, or their position."""
    named: Dict[str, torch.Tensor] = {}
    for position, item in enumerate(parameters):
        name, parameter = item if isinstance(item, tuple) else (str(position), item)
        if name in named:
            raise LayoutError(f"two parameters are named '{name}'; every parameter needs a name of its own")
        if parameter.requires_grad:
            named[name] = parameter
    if not named:
        raise LayoutError("no parameter needs a gradient; make the Synchronizer of parameters that are trained")
    return named
