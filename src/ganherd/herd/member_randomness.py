"""Let random functions inside a plain module, such as dropout and `randn`, draw from a member's own random stream.

A member is one GAN of the herd. All of its draws depend on its key alone; see `herd.rng`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ganherd.herd import rng
from ganherd.herd.checks.module_copies import calling_line, calling_net
from ganherd.util.errors import UserError

DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d"}
_LIKE = {"randn_like": "normal", "rand_like": "uniform"}
_NEW = {"randn": "normal", "rand": "uniform"}
_IN_PLACE = {"normal_": "normal", "uniform_": "uniform"}
# Function -> number of axes of an input without a batch axis, [C, …]. dropout2d always takes 3 axes as [B, C, L].
_WITHOUT_BATCH = {"dropout1d": 2, "dropout3d": 4}
_REFUSED = {
    "alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_", "multinomial", "normal", "randint", "randint_like",
    "randperm", "poisson", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "rrelu", "gumbel_softmax",
}  # fmt: skip
# Names of the arguments of those refused functions that draw nothing with some settings, and are allowed then.
_ARGUMENTS = {
    "alpha_dropout": ("input", "p", "training"),
    "feature_alpha_dropout": ("input", "p", "training"),
    "rrelu": ("input", "lower", "upper", "training"),
}
# Names of functions and methods that draw random numbers.
DRAWS = DROPOUTS | _LIKE.keys() | _NEW.keys() | _IN_PLACE.keys() | _REFUSED


class _Draw(torch.autograd.Function):
    """Draw random numbers of a shape with the key of one member, a scalar tensor.

    Under `vmap`, the rule `vmap` gets the keys of all members and draws for all of them at once.
    """

    @staticmethod
    def forward(member_key: Tensor, call: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
        return _Draw._rows(member_key.reshape(1), call, shape, kind, dtype)[0]

    @staticmethod
    def _rows(member_keys: Tensor, call: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
        if member_keys.is_cuda:
            return rng.draw(rng.device_keys(member_keys, call), shape, kind, dtype)
        return rng.draw(rng.keys(member_keys.numpy(), call), shape, kind, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        return (None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], member_key: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return _Draw._rows(member_key.movedim(in_dims[0], 0), *rest), 0


class MemberRandomness(TorchFunctionMode):
    """Let dropout, `randn`, `rand`, … draw from a member's own random stream while this mode is active.

    Other random functions, and draws from a generator of the user, raise `UserError`.
    """

    def __init__(self, member_key: Tensor, calls: Iterator[int] | None = None) -> None:
        """Take the key of a member.

        Args:
            member_key: A scalar tensor int64; under `vmap` it is batched over the members.
            calls: Yields the number of each draw, in the order in which they happen; None: 1, 2, …
        """
        super().__init__()
        self._key, self._calls = member_key, count(1) if calls is None else calls

    def _draw(self, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        """Return random numbers of this shape, `normal` or `uniform` (kind), with the key of the next draw."""
        arguments = (self._key, next(self._calls), tuple(shape), kind, dtype)
        if not torch._C._are_functorch_transforms_active():
            # Nothing is differentiated: `apply` would only read the signature once more.
            return _Draw.forward(*arguments)
        drawn: Tensor = _Draw.apply(*arguments)  # type: ignore[no-untyped-call]
        return drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise UserError(
                f"{calling_net()} draws random numbers from its own generator, with {name}{calling_line()}, but each "
                "member has its own stream. Draw fixed numbers in the constructor and register them as a buffer, or leave "
                "generator out to draw from the member's stream."
            )
        if name in DROPOUTS:
            return self._dropout(name, *args, **kwargs)
        if name in _LIKE:
            like = args[0] if args else kwargs["input"]
            given = {option: value for option, value in kwargs.items() if value is not None}
            return self._new(like.shape, _LIKE[name], {"dtype": like.dtype} | given)
        if name in _NEW:
            sizes = kwargs.get("size") or (args[0] if args and isinstance(args[0], Sequence) else args)
            return self._new(tuple(sizes), _NEW[name], kwargs)
        if name in _IN_PLACE:
            return self._in_place(name, *args, **kwargs)
        if name in _ARGUMENTS and _draws_nothing(name, args, kwargs):
            return func(*args, **kwargs)
        raise UserError(
            f"{calling_net()} draws random numbers with {name}{calling_line()}, which cannot draw from each member's own "
            "stream; use randn, rand, randn_like, rand_like, normal_, uniform_ or dropout instead"
        )

    def _new(self, shape: Sequence[int], kind: str, options: dict[str, Any]) -> Tensor:
        """Return a new tensor of random numbers; `options` are those of `torch.randn`, e.g. `dtype` and `out`."""
        out, dtype = options.get("out"), options.get("dtype")
        drawn = self._draw(shape, kind, dtype or (torch.get_default_dtype() if out is None else out.dtype))
        if out is not None:
            drawn = (out if out.shape == drawn.shape else out.resize_(drawn.shape)).copy_(drawn)
        if not options.get("requires_grad"):
            return drawn
        if torch._C._functorch.is_batchedtensor(drawn):
            raise RuntimeError(
                "its forward pass creates a leaf that requires gradients, which has no meaning under vmap"
            )
        return drawn.requires_grad_()

    def _dropout(
        self, name: str, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **more: bool
    ) -> Tensor:
        """Run one of PyTorch's dropout functions, by name; those with a dimension in their name drop whole channels."""
        x = input
        if not more.get("train", training) or p == 0.0:  # torch.dropout names the argument `train`
            return x
        axes = 1 if x.dim() == _WITHOUT_BATCH.get(name) else 2  # of what is dropped as a whole: samples and channels
        shape = x.shape if name == "dropout" else x.shape[:axes] + (1,) * (x.dim() - axes)
        mask = (self._draw(shape, "uniform", torch.float32) >= p).to(x.dtype)
        scale = mask / (1.0 - p) if p < 1.0 else mask
        return x.mul_(scale) if inplace else x * scale

    def _in_place(self, name: str, x: Tensor, *args: float, **kwargs: Any) -> Tensor:
        """Fill x in place as `normal_` (arguments mean, std) or `uniform_` (arguments from, to) does, and return it."""
        first, second = (("mean", "std"), ("from", "to"))[name == "uniform_"]
        a = args[0] if args else kwargs.get(first, 0.0)
        b = args[1] if len(args) > 1 else kwargs.get(second, 1.0)
        drawn = self._draw(x.shape, _IN_PLACE[name], x.dtype)
        return x.copy_(drawn * b + a if name == "normal_" else drawn * (b - a) + a)


def _draws_nothing(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a function of `_ARGUMENTS` draws nothing with these arguments: not in training mode, or p is 0.

    >>> _draws_nothing("rrelu", (torch.ones(2), 0.1, 0.3), {}), _draws_nothing("alpha_dropout", (), {"p": 0.0, "training": True})
    (True, True)
    >>> _draws_nothing("alpha_dropout", (torch.ones(2), 0.1, True), {})
    False
    """
    options = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
    training = options.get("training", options.get("train", False))
    return not training or options.get("p") == 0.0
