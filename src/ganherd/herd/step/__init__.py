"""Train all members for one step: inputs, losses, gradients, optimizer."""
