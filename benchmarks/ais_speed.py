"""Measure how long AIS takes: 100 points × 16 chains at 1,000 temperatures of an MNIST MLP decoder. Prints JSON.

python benchmarks/ais_speed.py            on the GPU if there is one
python benchmarks/ais_speed.py --device cpu --points 4 --temperatures 50
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import torch

from ganherd.metrics.ais.ais import AisSettings, Decoder, bdmc, log_likelihood
from ganherd.nets.mlp import MlpGenerator


def decoder(hidden: list[int], latent: int, device: str) -> Decoder:
    """Return an untrained generator of 28 × 28 images with the weights of seed 0; AIS takes as long as with a trained one."""
    torch.manual_seed(0)
    net = MlpGenerator((1, 28, 28), latent, hidden=hidden).to(device).eval().requires_grad_(False)
    return lambda z: (net(z) + 1) / 2


def seconds(decode: Decoder, x: torch.Tensor, latent: int, settings: AisSettings) -> tuple[float, float]:
    began = time.perf_counter()
    bounds = log_likelihood(decode, x, latent, 0.025, settings)  # ends with a copy to the host
    return time.perf_counter() - began, bounds.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--temperatures", type=int, default=1000)
    args = parser.parse_args()
    on_gpu = args.device.startswith("cuda")
    rows = []
    for name, hidden, latent in (("64-256-256-784", [256, 256], 64), ("50-1024-1024-1024-784", [1024] * 3, 50)):
        decode = decoder(hidden, latent, args.device)
        noise = torch.Generator(args.device).manual_seed(1)
        z = torch.randn(args.points, latent, generator=noise, device=args.device)
        x = decode(z).flatten(1)
        x = x + 0.025**0.5 * torch.randn(x.shape, generator=noise, device=args.device)
        for graph in (True, False) if on_gpu else (False,):
            settings = AisSettings(temperatures=args.temperatures, chains=args.chains, graph=graph)
            warm = AisSettings(temperatures=2, chains=args.chains, graph=False)
            seconds(decode, x, latent, warm)  # libraries load their kernels
            took, mean = seconds(decode, x, latent, settings)
            rows.append({"decoder": name, "cuda_graph": graph, "seconds": round(took, 2), "log_p": round(mean, 2)})
    few = AisSettings(temperatures=args.temperatures, chains=args.chains)
    gap = bdmc(decoder([256, 256], 64, args.device), 64, 0.025, min(16, args.points), few, args.device)
    print(
        json.dumps(
            {
                "benchmark": "ais",
                "points": args.points,
                "chains": args.chains,
                "temperatures": args.temperatures,
                "leapfrog": few.hmc.leapfrog,
                "variance": 0.025,
                "seed": 0,
                "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
                "torch": torch.__version__,
                "gap": round(gap.gap, 3),
                "rows": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
