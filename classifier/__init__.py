"""The prompt classifier: features, a small ONNX model, and a rule-based heuristic that stands in for it."""
