"""What the demo's two tenants ask: short, code, Chinese, structured and open questions."""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "Name three rivers in Europe and the seas they reach.",
    "Write a Python function that returns the median of a list of numbers.",
    "用一句话解释什么是浮点数。",
    "Give a JSON object with the keys city, country and population for Lisbon.",
    "Why is the sky blue? Answer for a child of six.",
    "Describe an old lighthouse in a storm, in a few sentences.",
    "What is the difference between a mutex and a semaphore?",
    "List five uses of a paper clip that have nothing to do with paper.",
    "把“早上好，今天天气很好”翻译成英文。",
    "Write a SQL query that counts the orders of each customer.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey?",
    "Suggest a name for a bakery by the sea and say why.",
    "Explain what a hash function is, with one example.",
    "Write a haiku about a printer that is out of paper.",
    "What should I check before I replace a graphics card?",
    "Summarise the story of the tortoise and the hare in two sentences.",
    "Write a shell command that finds the ten largest files below a folder.",
    "Which is heavier, a litre of water or a litre of oil, and why?",
    "Tell me about the history of the bicycle.",
    "Give three reasons to write tests before the code.",
)
