"""Methods that a ported module has of its own.

They are bound methods in its ``__dict__``. Code that ``torch.compile`` made checks at each call
whether the model is as it was. Some versions pass over a module with bound methods as long as its
``__dict__`` is the same. Into anything else that is called, such as a `functools.partial`, they
look at each call, which takes the host about a microsecond for each module.

Python pickles a bound method by its name in the class, where ours is not. So the module's state has
`Pickled` in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

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
    own = {DATA: data, USUAL: MethodType(type(module).forward, module)}
    return {**found, **own} if data else found


def usual(module: nn.Module, *given: Any, **named: Any) -> Any:
    """The forward of the module's class, for compiled code, which would look into the class too."""
    return getattr(module, USUAL)(*given, **named)


def data_of(module: nn.Module) -> tuple[Any, ...]:
    found: tuple[Any, ...] = module.__dict__[DATA]
    return found


def function(method: Any) -> Any:
    """The function of a method, bound or `Pickled`; None for anything else."""
    return getattr(method, "__func__", None)


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


class _OfItsClass(Pickled):
    """That of the class, which is found there again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, "forward")


_PICKLED = {"forward": Pickled, _STATE: Pickled, USUAL: _OfItsClass}


def _state(module: nn.Module) -> Any:
    """The state of a module that is pickled or copied."""
    state = getattr(type(module), _STATE, None)
    found = vars(module) if state is None else state(module)
    if type(found) is not dict:
        return found
    pickled = {
        name: kind(found[name].__func__, module)
        for name, kind in _PICKLED.items()
        if type(found.get(name)) is MethodType and found[name].__self__ is module
    }
    return {**found, **pickled}
