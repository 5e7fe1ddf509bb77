"""What a random module may do in addition to its layers: sharing, control flow, buffers, freezing and hooks."""

from __future__ import annotations

from promises import random_module_layers  # noqa: F401 - its ingredients come first, so that a seed keeps its module
from promises.random_module_parts import IMAGES, ROWS, Draft, on

# What only one member at a time can do, so that a module with it is not fused.
ALONE = {
    "full backward hook", "gradient hook", "own autograd function", "buffer data", "max_norm", "spectral norm",
    "classic spectral norm",
}  # fmt: skip


# -- sharing and flow -------------------------------------------------------------------------------------------------


@on(ROWS, IMAGES)
def layer_used_twice(d: Draft) -> None:
    own = d.any_layer()
    d.run(f"h = {own}(torch.tanh({own}(h)))")


@on(ROWS)
def shared_weight(d: Draft) -> None:
    one, two = d.linear(d.channels), d.linear(d.channels)
    d.made.append(f"{two}.weight = {one}.weight")
    d.run(f"h = {two}(torch.tanh({one}(h)))")


@on(ROWS)
def tied_weight(d: Draft) -> None:
    out = d.random.randint(2, 5)
    own = d.linear(out)
    d.run(f"h = torch.tanh({own}(h)) @ {own}.weight")


@on(ROWS, IMAGES)
def sequence(d: Draft) -> None:
    one, two = d.any_layer(), d.any_layer()
    own = d.layer(f"nn.Sequential({one}, nn.LeakyReLU(0.2), {two})", "s")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES)
def list_of_layers(d: Draft) -> None:
    own = d.layer(f"nn.ModuleList([{d.any_layer()}, {d.any_layer()}])", "s")
    d.run(f"for layer in {own}:", "    h = torch.tanh(layer(h)) + h")


@on(ROWS, IMAGES)
def inner_module(d: Draft) -> None:
    d.run(f"h = {d.layer(f'Inner({d.any_layer()})', 'i')}(h)")


@on(ROWS, IMAGES)
def flow_by_shape(d: Draft) -> None:
    d.run(
        f"if h.shape[1] > {d.random.randint(1, 6)}:",
        f"    h = torch.tanh({d.any_layer()}(h))",
        "else:",
        "    h = 0.5 * h",
    )


@on(ROWS, IMAGES)
def flow_by_mode(d: Draft) -> None:
    d.run("if self.training:", f"    h = h + {d.any_layer()}(h)", "else:", "    h = h * 2")


@on(ROWS, IMAGES)
def flow_by_grad_mode(d: Draft) -> None:
    d.run("if torch.is_grad_enabled():", "    h = 1.5 * h")


# -- what a module does in addition to layers -----------------------------------------------------------------------------


def _buffer(d: Draft) -> str:
    d.number += 1
    d.made.append(f"self.register_buffer('b{d.number}', torch.{d.random.choice(['zeros', 'ones'])}({d.channels}))")
    return f"self.b{d.number}"


def _mean(d: Draft) -> str:
    return "h.detach().mean((0, 2, 3))" if d.is_image else "h.detach().mean(0)"


def _with_buffer(d: Draft, *updates: str) -> None:
    """Moves a buffer in one of these ways (`B`: the buffer, `M`: what it follows), and reads it before or after that."""
    own = _buffer(d)
    update = d.random.choice(updates).replace("B", own).replace("M", _mean(d))
    read = f"h = h + 0.3 * {own}{'[:, None, None]' if d.is_image else ''}.clone()"
    d.run(*d.random.choice([(update, read), (read, update)]))


@on(ROWS, IMAGES, name="buffer in place")
def _buffer_in_place(d: Draft) -> None:
    _with_buffer(
        d, "B.copy_(0.9 * B + 0.1 * M)", "B.lerp_(M, 0.1)", "B.add_(0.5 * M)", "B.mul_(0.9).add_(M)", "B[0] = M[0]"
    )


@on(ROWS, IMAGES, name="buffer +=")
def _buffer_added(d: Draft) -> None:
    _with_buffer(d, "B += M", "B *= 0.9", "B -= 0.1")


@on(ROWS, IMAGES, name="buffer assigned")
def _buffer_assigned(d: Draft) -> None:
    _with_buffer(d, "B = 0.9 * B + M", "B = M", "B = torch.maximum(B, M)")


@on(ROWS, IMAGES, name="buffer data")
def _buffer_data(d: Draft) -> None:
    _with_buffer(d, "B.data = B + M", "B.data += M", "B.data.mul_(0.5)")


@on(ROWS, IMAGES, name="frozen layer")
def _frozen_layer(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())}.requires_grad_(False)")
    d.run(f"h = torch.tanh({own}(h))")


@on(ROWS, IMAGES, name="frozen parameter")
def _frozen_parameter(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())}.bias = None")
    d.made.append(f"{own}.weight.requires_grad = False")
    d.run(f"h = h + {own}(h)")


@on(ROWS, IMAGES, name="no_grad")
def _no_grad(d: Draft) -> None:
    own = d.any_layer()
    d.run(
        "with torch.no_grad():",
        *d.random.choice([("    s = h.std() + 0.5",), (f"    s = 1 + {own}(h).abs().mean()",)]),
        "h = h / s",
    )


@on(ROWS, IMAGES, name="forward hook")
def _forward_hook(d: Draft) -> None:
    own = d.any_layer()
    d.made.append(
        f"{own}.register_forward_hook(lambda m, a, o: {d.random.choice(['o * 2', 'o + a[0]', 'torch.tanh(o)'])})"
    )
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="forward pre-hook")
def _pre_hook(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())}.register_forward_pre_hook(lambda m, a: (a[0] * 2,))")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="full backward hook")
def _backward_hook(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())}.register_full_backward_hook(halved)")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="gradient hook")
def _gradient_hook(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())}.weight.register_hook(lambda g: g * {d.random.choice(['0', '0.5', '-1'])})")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="replaced forward")
def _replaced_forward(d: Draft) -> None:
    own = d.any_layer()
    d.made.append(f"{own}.forward = doubled({own}.forward)")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="own autograd function")
def _own_function(d: Draft) -> None:
    d.run(f"h = {d.random.choice(['Reversed', 'Rounded'])}.apply(h)")


@on(ROWS, IMAGES, name="checkpoint")
def _checkpoint(d: Draft) -> None:
    d.run(f"h = torch.utils.checkpoint.checkpoint({d.any_layer()}, h, use_reentrant=False)")


@on(ROWS, IMAGES, name="train() overridden")
def _train_overridden(d: Draft) -> None:
    norm = d.layer(f"nn.BatchNorm{2 if d.is_image else 1}d({d.channels})")
    if not d.methods:
        d.methods += ["def train(self, mode=True):", "    super().train(mode)"]
        d.methods += ["    for name in self.still:", "        getattr(self, name).eval()", "    return self"]
        d.made.insert(0, "self.still = []")
    d.made.append(f"self.still.append('{norm.removeprefix('self.')}')")
    d.run(f"h = {norm}(h)")
