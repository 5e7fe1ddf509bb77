"""What every layer uses: errors, files, paths, text, memory and the host. Knows nothing of GANs."""
