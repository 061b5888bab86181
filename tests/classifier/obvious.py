"""Prompts that anybody would put in the same order. None of them was used to fit or to set anything."""

EASY = (
    "hey there!",
    "What is the capital of Japan?",
    "Tell me a joke about cats.",
    "Write a haiku about the sea.",
    "Thank you, bye!",
    "What color is the sky?",
    "Say good night in Italian.",
    "Spell the word necessary.",
)
HARD = (
    (
        "Prove by contradiction that the square root of 3 is irrational, then generalise the proof to every "
        "integer that is not a perfect square. Justify each step rigorously."
    ),
    (
        "Let $p$ be a prime and let $a, b$ be integers with $a^2 + b^2 \\equiv 0 \\pmod p$. Find all $p$ for which "
        "this implies $p \\mid a$ and $p \\mid b$, and prove your answer."
    ),
    (
        "Implement an LRU cache in C++ that is safe for concurrent threads without a global lock. Every operation must "
        "be O(1), eviction must be exact, and you must justify why no deadlock is possible. Analyze the complexity."
    ),
    (
        "Design a migration of a 40 TB relational database to a sharded schema without downtime. It must keep every "
        "constraint, bound replication lag to at most 2 seconds, and never lose a write. Compare three strategies, "
        "analyze the failure scenarios of each, and justify a rollout plan step by step."
    ),
)
