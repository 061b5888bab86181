"""How hard a prompt is: features, a small ONNX model, and a heuristic twin."""
