"""One training step of all members: inputs, losses, gradients, optimizer."""
