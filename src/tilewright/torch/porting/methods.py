"""Methods that a ported module has of its own.

They are bound methods or functions in its ``__dict__``. Code that ``torch.compile`` made checks at
each call whether the model is as it was. Some versions pass over a module with such methods as long
as its ``__dict__`` is the same. Into anything else that is called, such as a `functools.partial`,
they look at each call, which takes the host about a microsecond for each module.

They also check, in Python, that a bound method's module is the module that has it. So a layer that
is called in compiled code has a function (`apart`), which takes the layer's parameters from a dict.

Python pickles a bound method by its name in the class, where ours is not. So the module's state has
`Pickled` in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

DATA, USUAL, _STATE = "_tilewright_data", "_tilewright_usual", "__getstate__"
NAMES = "forward", _STATE, DATA, USUAL
"""What `bound` puts into a module's ``__dict__``."""


def bound(module: nn.Module, forward: Callable[..., Any], *data: Any) -> Mapping[str, Any]:
    """What a module's ``__dict__`` gets, so that `forward`, which is given the module first, is the
    module's.

    data: what `data_of` gives it. With some, it has `usual` too.
    """
    found = {"forward": MethodType(forward, module), _STATE: MethodType(_state, module)}
    own = {DATA: data, USUAL: type(module).forward}
    return {**found, **own} if data else found


def apart(
    module: nn.Module, forward: Callable[..., Any], compiled: Callable[..., Any]
) -> Mapping[str, Any]:
    """As `bound`, where compiled code calls `compiled`, which is given the module's parameters by
    name in place of the module, and may return None: then it calls `forward` too."""
    method = _Apart(forward, module, compiled).over(module._parameters, module)
    return {"forward": method, _STATE: MethodType(_state, module)}


def usual(module: nn.Module, *given: Any, **named: Any) -> Any:
    """The forward of the module's class, for compiled code, which would look into the class too."""
    return getattr(module, USUAL)(module, *given, **named)


def data_of(module: nn.Module) -> tuple[Any, ...]:
    found: tuple[Any, ...] = module.__dict__[DATA]
    return found


def function(method: Any) -> Any:
    """The function of a method of ours, bound, `apart` or `Pickled`; None for anything else, also
    for what wraps one of ours and was given its attributes (`functools.wraps`)."""
    ours = getattr(method, "itself", method) is method
    return getattr(method, "__func__", None) if ours else None


def beside(module: nn.Module) -> list[str]:
    """Names of what `bound` put into a module's ``__dict__`` beside its forward."""
    own = vars(module)
    state = [_STATE] if function(own.get(_STATE)) is _state else []
    return [*state, *(name for name in (DATA, USUAL) if name in own)]


class Pickled:
    """A bound method of a module that can be pickled with the module, and called. A deep copy is a
    bound method."""

    def __init__(self, function: Callable[..., Any], module: nn.Module) -> None:
        self.__func__, self.__self__ = function, module

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.__func__(self.__self__, *given, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodType:
        return MethodType(self.__func__, copy.deepcopy(self.__self__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pickled, (self.__func__, self.__self__)


class _Apart(Pickled):
    """A method of `apart`. A deep copy is one over the parameters of its own module."""

    def __init__(
        self, function: Callable[..., Any], module: nn.Module, compiled: Callable[..., Any]
    ) -> None:
        super().__init__(function, module)
        self.compiled = compiled

    def over(self, parameters: dict[str, Any], module: nn.Module) -> Any:
        """The method of a module with these parameters."""
        usual, compiled = self.__func__, self.compiled

        def forward(*given: Any, **named: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                made = compiled(parameters, *given, **named)
                if made is not None:
                    return made
            return usual(module, *given, **named)

        method: Any = forward
        method.__func__, method.pickled, method.itself = usual, self, method
        return method

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module, parameters = self.__self__, self.__self__._parameters
        made = copy.deepcopy(module, memo)
        return _Apart(self.__func__, made, self.compiled).over(
            copy.deepcopy(parameters, memo), made
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _Apart, (self.__func__, self.__self__, self.compiled)


class _OfItsClass:
    """The forward of a class, which is found there again."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.kind.forward(*given, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.kind.forward

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.kind, "forward")


def _pickled(module: nn.Module, name: str, value: Any) -> Any:
    """What is pickled for a method of ours; None for anything else."""
    if name == USUAL:
        return _OfItsClass(type(module))
    made = getattr(value, "pickled", value)
    ours = name in ("forward", _STATE) and function(value) is not None
    if not ours or getattr(made, "__self__", None) is not module:
        return None
    return Pickled(value.__func__, module) if type(made) is MethodType else made


def _state(module: nn.Module) -> Any:
    """The state of a module that is pickled or copied."""
    state = getattr(type(module), _STATE, None)
    found = vars(module) if state is None else state(module)
    if type(found) is not dict:
        return found
    others = {name: _pickled(module, name, found[name]) for name in NAMES if name in found}
    return {**found, **{name: one for name, one in others.items() if one is not None}}
