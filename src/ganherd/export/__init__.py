"""Exports: a mixture as files that work without ganherd. For torch, ONNX, the Hugging Face Hub and web browsers."""
