"""The answer cache: equal requests of one team are answered once, and the answer is given again."""
