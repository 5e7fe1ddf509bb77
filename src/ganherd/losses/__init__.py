"""Losses by name. The functions need PyTorch; their names are known without it."""

from __future__ import annotations

from ganherd.util.registry import LOSSES

ALSO_CALLED = {  # names in papers and other trainers; they are only suggested
    "gan": "minimax",
    "bce": "minimax",
    "heuristic": "non-saturating",
    "lsgan": "least-squares",
    "mse": "least-squares",
    "wgan": "wasserstein",
    "wgan-clip": "wasserstein",
    "wgan-gp": "wasserstein-gp",
}

LOSSES.register_lazy("minimax", "ganherd.losses.adversarial:MINIMAX")
LOSSES.register_lazy("non-saturating", "ganherd.losses.adversarial:NON_SATURATING")
LOSSES.register_lazy("least-squares", "ganherd.losses.adversarial:LEAST_SQUARES")
LOSSES.register_lazy("least-squares-sigmoid", "ganherd.losses.adversarial:LEAST_SQUARES_SIGMOID")
LOSSES.register_lazy("wasserstein", "ganherd.losses.adversarial:WASSERSTEIN")
LOSSES.register_lazy("wasserstein-gp", "ganherd.losses.adversarial:WASSERSTEIN_GP")
LOSSES.register_lazy("hinge", "ganherd.losses.adversarial:HINGE")
LOSSES.seal()
