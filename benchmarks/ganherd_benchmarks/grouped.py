"""Run N copies of a plain module as one: members folded into channels, grouped convolutions, batched products.

This is how HFTA fuses, and how people fuse by hand. Values have the shape [N, B, …] and lie in memory as [B, N, …], so that
folding the members into the channels, and back, moves nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from ganherd.nets.common.spectral import Spectral, divide
from ganherd_benchmarks.plain import RivalWork, update

Tensors = dict[str, Tensor]

_BY_ELEMENT = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)
_BY_CHANNEL = (nn.Upsample, nn.AvgPool2d, nn.MaxPool2d)


def fold(x: Tensor) -> Tensor:
    """Return [N, B, C, …] as [B, N * C, …]."""
    return x.transpose(0, 1).flatten(1, 2)


def unfold(x: Tensor, members: int) -> Tensor:
    """Return [B, N * C, …] as a view [N, B, C, …]."""
    result: Tensor = x.unflatten(1, (members, -1)).transpose(0, 1)
    return result


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children())


class GroupedNet:
    """The members' modules as one function of inputs [N, B, …]."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        self.members = len(members)
        self.params, self.buffers = stack_module_state(list(members))
        self._graph = _Tracer().trace(members[0])
        self._children = dict(members[0].named_modules())

    def __call__(self, *inputs: Tensor) -> Tensor:
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        for node in self._graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = (self.params | self.buffers)[str(node.target)]
            elif node.op == "output":
                break
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                run = self._module if node.op == "call_module" else self._function
                values[node] = run(node, args, kwargs)
        out: Tensor = values[node.args[0]]
        return out

    def _module(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        child, prefix = self._children[str(node.target)], f"{node.target}."
        params, buffers = (
            {k.removeprefix(prefix): v for k, v in part.items() if k.startswith(prefix)}
            for part in (self.params, self.buffers)
        )
        if isinstance(child, _BY_ELEMENT):
            return child(args[0])
        if isinstance(child, _BY_CHANNEL):
            return unfold(child(fold(args[0])), self.members)
        if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
            return self._batch_norm(child, args[0], params, buffers)
        if isinstance(child, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            weight = params["weight"]
            if isinstance(child, Spectral):
                weight, u = divide(weight, buffers["u"], child.training)
                buffers["u"].copy_(u)
            return self._weighted(child, args[0], weight, params.get("bias"))

        def call(own: Tensors, *args: Any) -> Any:
            return functional_call(child, own, args, kwargs)

        return vmap(call, randomness="different")({**params, **buffers}, *args)

    def _weighted(self, child: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(child, nn.Linear):
            turned = weight.transpose(1, 2)
            return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)
        groups = self.members * child.groups
        flat, shift = weight.flatten(0, 1), None if bias is None else bias.flatten()
        if type(child) is nn.ConvTranspose2d:
            more: dict[str, Any] = {"padding": child.padding, "output_padding": child.output_padding}
            y = F.conv_transpose2d(fold(x), flat, shift, child.stride, groups=groups, dilation=child.dilation, **more)
        else:
            assert child.padding_mode == "zeros"
            y = F.conv2d(fold(x), flat, shift, child.stride, child.padding, child.dilation, groups)
        return unfold(y, self.members)

    def _batch_norm(self, child: Any, x: Tensor, params: Tensors, buffers: Tensors) -> Tensor:
        """Normalise by channel, so that folded members have separate statistics."""
        mean, var = buffers["running_mean"].flatten(), buffers["running_var"].flatten()  # views: they move in place
        weight, bias = params["weight"].flatten(), params["bias"].flatten()
        y = F.batch_norm(fold(x), mean, var, weight, bias, child.training, child.momentum, child.eps)
        buffers["num_batches_tracked"].add_(int(child.training))
        return unfold(y, self.members)

    def _function(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Map what a forward does between its layers over the members; shapes are those of the first member."""
        function: Any = node.target
        if node.op == "call_method":
            function = operator.methodcaller(str(node.target), *args[1:], **kwargs)
            args, kwargs = args[:1], {}
        dims = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, tuple(args))
        if all(dim is None for dim in tree_leaves(dims)):
            return function(*args, **kwargs)
        if node.target in (getattr, "size", "dim"):
            return function(args[0][0], *args[1:])
        return vmap(lambda *own: function(*own, **kwargs), in_dims=dims)(*args)


class VmappedNet:
    """The members' modules as one function of inputs [N, B, …], through `torch.func.vmap`, as its tutorial shows it."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        self.params, self.buffers = stack_module_state(list(members))
        self._module = members[0]

    def __call__(self, *inputs: Tensor) -> Tensor:
        def call(params: Tensors, buffers: Tensors, *own: Tensor) -> Any:
            return functional_call(self._module, (params, buffers), own)

        out: Tensor = vmap(call, randomness="different")(self.params, self.buffers, *inputs)
        return out


class GroupedHerd:
    """Train all members in one step: gradients of the sum of their losses, one Adam over the stacked parameters."""

    def __init__(self, work: RivalWork, members: int, net: Callable[[list[nn.Module]], Any] = GroupedNet) -> None:
        """Build the members; `net` stacks the modules of all members."""
        self._work, self._members = work, members
        optim = work.recipe.optim
        self.g, self.d = (
            net([make().to(work.device, work.dtype) for _ in range(members)]) for make in (work.make_g, work.make_d)
        )
        self._g_params, self._d_params = list(self.g.params.values()), list(self.d.params.values())
        self._adam_g = work.adam(self._g_params, optim.lr_g)
        self._adam_d = work.adam(self._d_params, optim.lr_d)

    def step(self) -> None:
        work, n, batch = self._work, self._members, self._work.recipe.train.batch
        with work.precisely():
            with torch.no_grad():
                fake = self.g(work.noise(n, batch))
                real = work.real(batch, n).transpose(0, 1)  # [N, B, C, H, W], drawn as it should lie
            loss = work.loss.d(self._judge(real), self._judge(fake))
            if work.penalised:
                loss = loss + work.penalty(self._judge, real, fake.to(real.dtype))
        update(self._adam_d, self._d_params, loss.sum(), work.recipe.loss.clip if work.loss.clip else None)
        with work.precisely():
            loss = work.loss.g(self._judge(self.g(work.noise(n, batch))))
        update(self._adam_g, self._g_params, loss.sum())

    def _judge(self, x: Tensor) -> Tensor:
        """Logits [N, B]."""
        logits: Tensor = self.d(x)
        return logits.flatten(1).to(self._work.dtype)
