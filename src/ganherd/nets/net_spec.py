"""An entry of the catalog of nets: class, settings, and data that it fits. Importing this imports no PyTorch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

_WIDEST = 1 << 20  # largest width or depth: no memory holds a wider layer


@dataclass(frozen=True)
class Setting:
    """One setting of a net: its type, its default and its meaning."""

    type: Literal["int", "float", "bool", "str", "ints"]  # ints: a list of whole numbers
    default: Any
    about: str  # its meaning, for users
    choices: tuple[str, ...] = ()  # the allowed values, if it is text
    minimum: float = -math.inf  # the smallest allowed number
    below: float = math.inf  # numbers must be less than this
    optional: bool = False  # True: a recipe that is written out lists it only if it was given
    per_member: bool = False  # True: it may be a list with a value for each member

    def check(self, value: Any) -> Any:
        """Return the value if the setting allows it; numbers in text become floats.

        Raises:
            ValueError: Its message states what the value must be.

        >>> Setting("int", 128, "width", minimum=1).check(64)
        64
        """
        if self.per_member and isinstance(value, list) and value:
            return [replace(self, per_member=False).check(one) for one in value]
        if self.type == "bool":
            if not isinstance(value, bool):
                raise ValueError("must be true or false")
            return value
        if self.type == "str":
            if value not in self.choices:
                raise ValueError(f"must be one of {', '.join(self.choices)}")
            return value
        if self.type == "ints":
            numbers = value if isinstance(value, list | tuple) else []
            if not numbers or any(type(number) is not int or number < self.minimum for number in numbers):
                raise ValueError(f"must be a list of whole numbers of at least {self.minimum:g}, such as [256, 256]")
            if max(numbers) > _WIDEST:
                raise ValueError(f"must have numbers of at most {_WIDEST:,}")
            return list(numbers)
        if self.type == "int":
            if type(value) is not int or value < self.minimum:
                raise ValueError(f"must be a whole number of at least {self.minimum:g}")
            if value > _WIDEST:
                raise ValueError(f"must be at most {_WIDEST:,}")
            return value
        try:  # YAML reads 1e-5 as text
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.minimum <= number < self.below:
            upper = "" if self.below == math.inf else f" and below {self.below:g}"
            lists = ", or a list of such numbers, one for each member" if self.per_member else ""
            raise ValueError(f"must be a number of at least {self.minimum:g}{upper}{lists}")
        return number


@dataclass(frozen=True)
class NetSpec:
    """A net that a recipe can name: its class, one line about it, and its settings."""

    target: Any  # a class derived from torch.nn.Module, or `package.module:Class`, which is imported when it is built
    about: str = ""
    settings: Mapping[str, Setting] | type[BaseModel] = field(default_factory=dict)  # a model for a net of a user's
    images_only: bool = False  # True: samples must be images
    sizes: tuple[int, ...] = ()  # heights (= widths) of images that it is made for; (): any size
    labelled: bool = False  # it takes or predicts the label, so it is built for a number of classes
    class_head: bool = False  # with the setting `label`, a discriminator has an output for each class

    @classmethod
    def adopt(
        cls, name: str, target: Any, *, about: str = "", settings: type[BaseModel] | None = None, **facts: Any
    ) -> NetSpec:
        """Check a net that a user registers, and return its entry (see `ganherd.register.net`)."""
        if not (inspect.isclass(target) and callable(getattr(target, "forward", None))):
            raise UserError(f"the net {name} must be a class derived from torch.nn.Module, with a forward.")
        return cls(target, about or (inspect.getdoc(target) or "").partition("\n")[0], settings or {}, **facts)
