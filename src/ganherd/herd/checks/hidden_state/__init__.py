"""Notice what a net remembers besides parameters and buffers: in the module, and in variables outside of it."""
