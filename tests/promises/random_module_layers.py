"""Layers, shapes, sums and products that a random module may have."""

from __future__ import annotations

import math

from promises.random_module_parts import CLASSES, IMAGES, ROWS, Draft, on


@on(ROWS)
def linear(d: Draft) -> None:
    out = d.random.randint(2, 7)
    d.run(f"h = {d.linear(out)}(h)")
    d.shape = (out,)


@on(ROWS)
def functional_linear(d: Draft) -> None:
    out = d.random.randint(2, 6)
    weight = d.layer(f"nn.Parameter(torch.randn({out}, {d.channels}) * 0.4)", "w")
    d.run(d.random.choice([f"h = F.linear(h, {weight})", f"h = h @ {weight}.t()"]))
    d.shape = (out,)


@on(IMAGES)
def convolution(d: Draft) -> None:
    _, height, width = d.shape
    out, kernel = d.random.randint(1, 3) * 2, d.random.choice([1, 3])
    stride = d.random.choice([1, 1, 2]) if min(height, width) >= 4 else 1
    groups = 2 if d.channels % 2 == 0 and d.random.random() < 0.2 else 1
    mode = (
        d.random.choice(["zeros", "zeros", "reflect", "circular"])
        if kernel == 3 and min(height, width) > 1
        else "zeros"
    )
    bias = d.random.random() < 0.7
    conv = f"nn.Conv2d({d.channels}, {out}, {kernel}, {stride}, {kernel // 2}, groups={groups}, bias={bias}, padding_mode='{mode}')"
    d.run(f"h = {d.layer(conv)}(h)")
    d.shape = (out, (height - 1) // stride + 1, (width - 1) // stride + 1)


@on(IMAGES)
def functional_convolution(d: Draft) -> None:
    out = d.random.randint(1, 4)
    weight = d.layer(f"nn.Parameter(torch.randn({out}, {d.channels}, 3, 3) * 0.2)", "w")
    d.run(f"h = F.conv2d(h, {weight}, padding=1)")
    d.shape = (out, *d.shape[1:])


@on(IMAGES)
def transposed_convolution(d: Draft) -> None:
    out = d.random.randint(1, 4)
    if d.shape[1] > 4:
        d.run(f"h = {d.layer(f'nn.ConvTranspose2d({d.channels}, {out}, 3, padding=1)')}(h)")
        d.shape = (out, *d.shape[1:])
    else:
        d.run(f"h = {d.layer(f'nn.ConvTranspose2d({d.channels}, {out}, 4, 2, 1)')}(h)")
        d.shape = (out, 2 * d.shape[1], 2 * d.shape[2])


@on(ROWS, IMAGES)
def batch_norm(d: Draft) -> None:
    kind = "nn.BatchNorm2d" if d.is_image else "nn.BatchNorm1d"
    settings = d.random.choice(
        ["", ", affine=False", ", momentum=None", ", track_running_stats=False", ", eps=0.1", ", momentum=0.3"]
    )
    d.run(f"h = {d.layer(f'{kind}({d.channels}{settings})')}(h)")


@on(ROWS, IMAGES)
def batch_norm_in_eval(d: Draft) -> None:
    norm = d.layer(f"nn.BatchNorm{2 if d.is_image else 1}d({d.channels})")
    d.made.append(f"{norm}.eval()")
    d.run(f"h = {norm}(h)")


@on(ROWS, IMAGES)
def group_norm(d: Draft) -> None:
    groups = 2 if d.channels % 2 == 0 and d.channels > 2 else 1
    d.run(f"h = {d.layer(f'nn.GroupNorm({groups}, {d.channels}, eps=0.01)')}(h)")


@on(ROWS, IMAGES)
def layer_norm(d: Draft) -> None:
    shape = list(d.shape)
    if d.random.random() < 0.5:
        d.run(f"h = {d.layer(f'nn.LayerNorm({shape}, eps=0.01)')}(h)")
    else:
        d.run(f"h = F.layer_norm(h, {shape}, eps=0.01)")


@on(IMAGES)
def instance_norm(d: Draft) -> None:
    if d.shape[1] * d.shape[2] > 1:
        settings = d.random.choice(["", "affine=True", "track_running_stats=True"])
        d.run(f"h = {d.layer(f'nn.InstanceNorm2d({d.channels}, eps=0.01, {settings})')}(h)")


@on(ROWS, IMAGES)
def activation(d: Draft) -> None:
    layers = [
        "nn.ReLU()",
        "nn.LeakyReLU(0.2)",
        "nn.Tanh()",
        "nn.Sigmoid()",
        "nn.ELU()",
        "nn.SiLU()",
        "nn.GELU()",
        "nn.Softplus()",
    ]
    layers += [
        "nn.PReLU()",
        "nn.Mish()",
        "nn.Hardtanh()",
        "nn.Softsign()",
        "nn.ReLU(inplace=True)",
        "nn.LeakyReLU(0.1, inplace=True)",
    ]
    calls = [
        "torch.relu(h)",
        "F.leaky_relu(h, 0.2)",
        "torch.tanh(h)",
        "h.sigmoid()",
        "F.gelu(h)",
        "torch.sin(h)",
        "h.clamp(-1, 1)",
    ]
    calls += [
        "F.softmax(h, dim=1)",
        "torch.where(h > 0, h, 0.1 * h)",
        "h * torch.sigmoid(h)",
        "h.abs().add(1).log()",
        "-h.exp().clamp(max=5.0)",
    ]
    if d.random.random() < 0.5:
        layer = d.random.choice(layers)
        product = bool(d.used) and d.used[-1].endswith(
            ("linear", "convolution")
        )  # whose gradient does not need its output
        d.run(f"h = {d.layer(layer)}({'h' if product or 'inplace' not in layer else 'h.clone()'})")
    else:
        d.run(f"h = {d.random.choice(calls)}")


@on(ROWS, IMAGES)
def dropout(d: Draft) -> None:
    two = d.is_image and d.random.random() < 0.5
    if d.random.random() < 0.6:
        d.run(f"h = {d.layer('nn.Dropout2d(0.3)' if two else 'nn.Dropout(0.4)')}(h)")
    else:
        d.run(f"h = F.dropout{'2d' if two else ''}(h, 0.3, self.training)")


@on(IMAGES)
def pooling(d: Draft) -> None:
    _, height, width = d.shape
    if min(height, width) < 2:
        return
    d.run(f"h = {d.layer(d.random.choice(['nn.AvgPool2d(2)', 'nn.MaxPool2d(2)']))}(h)")
    d.shape = (d.channels, height // 2, width // 2)


@on(IMAGES)
def adaptive_pooling(d: Draft) -> None:
    d.run(
        "h = F.adaptive_avg_pool2d(h, 2)" if d.random.random() < 0.5 else f"h = {d.layer('nn.AdaptiveAvgPool2d(2)')}(h)"
    )
    d.shape = (d.channels, 2, 2)


@on(IMAGES)
def upsampling(d: Draft) -> None:
    if d.shape[1] > 4:
        return
    mode = d.random.choice(["nearest", "bilinear"])
    up = f"nn.Upsample(scale_factor=2, mode='{mode}')"
    d.run(
        f"h = {d.layer(up)}(h)" if d.random.random() < 0.6 else f"h = F.interpolate(h, scale_factor=2, mode='{mode}')"
    )
    d.shape = (d.channels, 2 * d.shape[1], 2 * d.shape[2])


@on(IMAGES)
def pixel_shuffle(d: Draft) -> None:
    if d.shape[1] > 4:
        d.run(
            f"h = {d.layer('nn.PixelUnshuffle(2)')}(h)" if d.shape[1] % 2 == 0 and d.shape[2] % 2 == 0 else "h = h * 1"
        )
        if d.shape[1] % 2 == 0 and d.shape[2] % 2 == 0:
            d.shape = (4 * d.channels, d.shape[1] // 2, d.shape[2] // 2)
    elif d.channels % 4 == 0:
        d.run(f"h = {d.layer('nn.PixelShuffle(2)')}(h)")
        d.shape = (d.channels // 4, 2 * d.shape[1], 2 * d.shape[2])


@on(IMAGES)
def attention(d: Draft) -> None:
    q, k, v = (d.layer(f"nn.Conv2d({d.channels}, {d.channels}, 1)") for _ in range(3))
    d.run(f"q, k, v = (part(h).flatten(2) for part in ({q}, {k}, {v}))  # [B, C, L]")
    way = d.random.randrange(3)
    if way == 0:
        d.run(f"a = torch.softmax(torch.bmm(q.transpose(1, 2), k) / {math.sqrt(d.channels):.4f}, dim=-1)")
        d.run("h = h + torch.bmm(v, a.transpose(1, 2)).reshape(h.shape)")
    elif way == 1:
        d.run(
            "a = (q.transpose(1, 2) @ k).softmax(-1)",
            "h = h + 0.5 * (a @ v.transpose(1, 2)).transpose(1, 2).view_as(h)",
        )
    else:
        d.run("o = F.scaled_dot_product_attention(q.mT, k.mT, v.mT)", "h = h + o.mT.reshape(h.shape)")


@on(ROWS, name="embedding by label")
def _embedding_by_label(d: Draft) -> None:
    if d.labelled:
        d.run(f"h = h + {d.layer(f'nn.Embedding({CLASSES}, {d.channels})')}(y)")


@on(ROWS, name="embedding by activation")
def _embedding_by_activation(d: Draft) -> None:
    d.run(f"h = h + {d.layer(f'nn.Embedding(2, {d.channels})')}((h[:, 0] > 0.05).long())")


@on(ROWS, name="padding_idx")
def _padding(d: Draft) -> None:
    d.run(f"h = h + {d.layer(f'nn.Embedding(2, {d.channels}, padding_idx=0)')}((h[:, 0] > 0.05).long())")


@on(ROWS, name="max_norm")
def _max_norm(d: Draft) -> None:
    d.run(f"h = h + {d.layer(f'nn.Embedding(2, {d.channels}, max_norm=0.5)')}((h[:, 0] > 0.05).long())")


@on(ROWS, IMAGES, name="spectral norm")
def _spectral(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())} = nn.utils.parametrizations.spectral_norm({own})")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="classic spectral norm")
def _classic_spectral(d: Draft) -> None:
    d.made.append(f"nn.utils.spectral_norm({(own := d.any_layer())})")
    d.run(f"h = {own}(h)")


@on(ROWS, IMAGES, name="weight norm")
def _weight_norm(d: Draft) -> None:
    d.made.append(f"{(own := d.any_layer())} = nn.utils.parametrizations.weight_norm({own})")
    d.run(f"h = {own}(h)")


# -- shapes, sums and products ----------------------------------------------------------------------------------------


@on(ROWS)
def to_image(d: Draft) -> None:
    side, channels = d.random.choice([(2, 2), (2, 4), (4, 1), (4, 2)])
    d.run(f"h = {d.linear(channels * side * side)}(h)")
    shape = (channels, side, side)
    unflatten = d.layer(f"nn.Unflatten(1, {shape})")
    d.run(d.random.choice([f"h = h.view(-1, *{shape})", f"h = h.unflatten(1, {shape})", f"h = {unflatten}(h)"]))
    d.shape = shape


@on(IMAGES)
def to_rows(d: Draft) -> None:
    flatten = d.layer("nn.Flatten()")
    way = d.random.choice(
        [
            "h.flatten(1)",
            "h.reshape(h.size(0), -1)",
            "h.mean((2, 3))",
            "h.sum(dim=[2, 3])",
            "h.amax((2, 3))",
            f"{flatten}(h)",
        ]
    )
    d.run(f"h = {way}")
    d.shape = (d.channels if "2, 3" in way else math.prod(d.shape),)


@on(ROWS, IMAGES)
def residual(d: Draft) -> None:
    one, two = d.any_layer(), d.any_layer()
    d.run(f"h = {d.random.choice(['h', '0.5 * h'])} + {two}(torch.relu({one}(h)))")


@on(ROWS, IMAGES)
def concatenation(d: Draft) -> None:
    d.run(f"h = torch.cat([h, torch.tanh({d.any_layer()}(h))], {d.random.choice(['dim=1', '1'])})")
    d.shape = (2 * d.channels, *d.shape[1:])


@on(ROWS, IMAGES)
def gate(d: Draft) -> None:
    if d.channels % 2 == 0:
        d.run(
            d.random.choice(["a, b = h.chunk(2, 1)", "a, b = torch.split(h, h.shape[1] // 2, dim=1)"]),
            "h = a * torch.sigmoid(b)",
        )
        d.shape = (d.channels // 2, *d.shape[1:])


@on(ROWS, IMAGES)
def statistics_over_the_batch(d: Draft) -> None:
    ways = [
        "h = h - h.mean(0)",
        "h = h / (h.std(0, keepdim=True) + 0.5)",
        "h = h + h.std(0).mean()",
        "h = h - h.mean(1, keepdim=True)",
    ]
    d.run(d.random.choice([*ways, "h = h / (1 + h.flatten(1).norm(dim=1).mean())", "h = torch.roll(h, 1, 0) + h"]))


@on(ROWS)
def sums_along_rows(d: Draft) -> None:
    ways = [
        "h = torch.cumsum(h, 1)",
        "h = h.sort(1).values",
        "h = h.flip(1)",
        "h = torch.einsum('bi,bj->bi', h, h) * 0.1",
        "h = h[:, torch.arange(h.shape[1] - 1, -1, -1)]",
    ]
    d.run(
        d.random.choice(
            [*ways, "h = h - torch.logsumexp(h, 1, keepdim=True)", "h = h / h.max(1, keepdim=True).values.abs().add(1)"]
        )
    )


@on(IMAGES)
def moved_pixels(d: Draft) -> None:
    ways = [
        "h = torch.roll(h, 1, dims=3)",
        "h = h.transpose(2, 3).contiguous()",
        "h = F.pad(h, (1, 0, 1, 0))[:, :, 1:, 1:]",
        "h = h.permute(0, 2, 3, 1).flip(1).permute(0, 3, 1, 2)",
    ]
    way = d.random.choice(ways)
    d.run(way)
    if "transpose" in way:
        d.shape = (d.channels, d.shape[2], d.shape[1])


@on(ROWS, IMAGES)
def own_parameters(d: Draft) -> None:
    shape = (d.channels, *(1,) * (len(d.shape) - 1))
    scale, shift = d.layer(f"nn.Parameter(torch.randn({shape}))", "p"), d.layer("nn.Parameter(torch.randn(()))", "p")
    d.run(f"h = h * {scale} + {shift}")


@on(ROWS, IMAGES)
def noise(d: Draft) -> None:
    d.run(
        d.random.choice(
            [
                "h = h + 0.1 * torch.randn_like(h)",
                "h = h + 0.1 * torch.rand(h.shape, dtype=h.dtype)",
                "h = h * (1 + 0.1 * torch.randn(h.shape[0], *[1] * (h.dim() - 1), dtype=h.dtype))",
            ]
        )
    )


@on(ROWS, IMAGES)
def in_place(d: Draft) -> None:
    d.run("h = h.clone()", d.random.choice(["h.mul_(0.5)", "h[:, 0] = 0.1", "h += 1", "h[:, 0].add_(0.2)", "h *= 0.7"]))


@on(ROWS, IMAGES)
def detached(d: Draft) -> None:
    d.run(d.random.choice(["h = h / (1 + h.detach().abs().mean())", "h = h + 0.5 * h.detach()"]))
