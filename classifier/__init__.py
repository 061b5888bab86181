"""The prompt classifier: features, a small ONNX model, and a rule-based heuristic that stands in for it.

classifier = open_classifier(None, {"cheap": "gpt-4o-mini-2024-07-18"})  # classifier.onnx_classifier
prediction = classifier.classify(Prompt(text="Prove that there are infinitely many primes."))
prediction.complexity, prediction.outlooks["cheap"].adequate
"""
