"""The ask of a request, wherever it stands: in the last user message, the system message, or the assistant's proposal.

A message is often a template that a program filled in: rules, retrieved documents, a labelled question, a cue for the answer. A text is
cut into segments, which are sentences or lines. A label such as "Question:" says which of them ask; without one a linear score over
their hashed words and their form tells requests, material, rules of a template, and what is beside the point (greetings, signatures,
how hard it is said to be). Rules and what is beside the point are not read; of the material what the ask speaks of, or shares
words with. A text in which nothing of that kind is found is read as it is.

The words are those of vocabulary.py, the score's weights those of weights.npz (`python -m classifier.training.ask_fit`).
classifier/featurize.c does the same.
"""
