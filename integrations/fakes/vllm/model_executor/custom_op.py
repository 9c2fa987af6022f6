"""How vLLM makes other classes in place of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

op_registry_oot: dict[str, type] = {}


class PluggableLayer(nn.Module):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, _decorated_layer_cls: Any = None, name: str | None = None) -> Any:
        op_registry_oot[name or cls.__name__] = _decorated_layer_cls
        return _decorated_layer_cls


class CustomOp(nn.Module):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
        op_registry_oot[name or cls.__name__] = _decorated_op_cls
        return _decorated_op_cls
