"""What every layer uses: errors, files, paths, text, progress, memory and the host. Knows nothing of GANs."""
