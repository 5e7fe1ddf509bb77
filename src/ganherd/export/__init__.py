"""Export a mixture (trained generators) as files that work without ganherd: PyTorch, ONNX, Hugging Face Hub, HTML."""
