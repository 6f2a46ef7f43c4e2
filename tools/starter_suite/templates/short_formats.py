"""Short tasks whose form is asked for, and short tasks that are sampled."""

from __future__ import annotations

from tools.starter_suite.checks import CJK, NO_TEMPLATE_TOKENS, match, never, only, says
from tools.starter_suite.template import Template
from tools.starter_suite.words import ANIMALS, DEVICES, FRUITS, JOBS, PLACES, TOOLS, TOPICS

# fmt: off
TEMPLATES = (
    Template(
        name="short/echo-line",
        ask="Repeat this line word for word and add nothing: $line",
        slots={
            "line": (
                "The ferry leaves at nine.", "Keep the blue valve closed.", "Room 12 is on the left.",
                "Two spoons of salt are enough.", "The bridge opens on Friday.", "Turn the key twice.",
                "All drawers are labelled.", "Bring a lamp and a rope.",
            )
        },
        answer=lambda v: only(v["line"].rstrip(".")),
        rules=lambda v: (match(rf"{v['line'][:10]}"),),
        max_tokens=24,
    ),
    Template(
        name="short/end-mark",
        ask="In one sentence, say what a $tool is used for. Write DONE after the sentence.",
        slots={"tool": TOOLS},
        answer=lambda v: match(r"DONE\W*$"),
        rules=lambda v: (says(v["tool"]), never(CJK)),
        max_tokens=48,
    ),
    Template(
        name="short/no-letter-digits",
        ask="Describe $place in two sentences without using any digits.",
        slots={"place": PLACES},
        rules=lambda v: (never(r"[0-9]"), NO_TEMPLATE_TOKENS),
        max_tokens=64,
    ),
    Template(
        name="short/shout",
        ask="Write the phrase \"$phrase\" in capital letters.",
        slots={
            "phrase": (
                "mind the step", "fresh paint", "doors close at six", "no parking", "quiet please",
                "lift out of order", "staff only", "wet floor", "ring the bell",
            )
        },
        answer=lambda v: says(v["phrase"].upper(), ignore_case=False),
        max_tokens=24,
    ),
    Template(
        name="short/numbered-three",
        ask="List three $things, numbered 1 to 3, each on its own line.",
        slots={
            "things": (
                "kinds of cheese", "river animals", "string instruments", "board games", "sea birds",
                "garden vegetables", "winter sports", "kinds of bread", "spices",
            )
        },
        rules=lambda v: (match(r"(?m)^\s*1[.)]"), match(r"(?m)^\s*2[.)]")),
        max_tokens=48,
    ),
    Template(
        name="short/define-term",
        ask="A ten-year-old asks you about $topic. What do you say?",
        slots={"topic": TOPICS},
        rules=lambda v: (never(CJK), never(r"https?://")),
        max_tokens=56,
    ),
    Template(
        name="short/yes-no-reason",
        ask="Can a $animal live in a desert? Start with Yes or No and add a short reason.",
        slots={"animal": ANIMALS},
        rules=lambda v: (match(r"^\W*(yes|no)\b", ignore_case=True),),
        max_tokens=40,
    ),
    Template(
        name="short/rewrite-politely",
        ask="Make this message more polite: \"$message\"",
        slots={
            "message": (
                "Send me the file now.", "You are late again.", "Move your bicycle.", "That is the wrong form.",
                "Stop the noise.", "Fix the printer today.", "Give me the key.", "I need an answer.",
            )
        },
        rules=lambda v: (NO_TEMPLATE_TOKENS, never(CJK)),
        max_tokens=48,
    ),
    Template(
        name="short/headline",
        system="You write newspaper headlines. Plain text, one line, no quotation marks.",
        ask="A $job found $place behind an old wall. Headline?",
        slots={"job": JOBS, "place": PLACES},
        rules=lambda v: (never(CJK), never(r"\*\*")),
        max_tokens=28,
    ),
    Template(
        name="short/remember-turns",
        before=(("My locker number is $n.", "Noted: your locker number is $n."),),
        ask="Which number is my locker?",
        slots={"n": range(112, 989, 13)},
        answer=lambda v: says(v["n"]),
        rules=lambda v: (says(v["n"]),),
        max_tokens=24,
    ),
    Template(
        name="short/correct-yourself",
        before=(
            ("How many legs has an insect?", "An insect has six legs."),
            ("And a $creature?", "A $creature has $legs legs."),
        ),
        ask="How many more legs is that than the insect has?",
        columns="creature legs",
        rows=(("spider", 8), ("crab", 10), ("lobster", 10), ("scorpion", 8), ("wood louse", 14), ("tick", 8)),
        answer=lambda v: says(v["legs"] - 6),
        max_tokens=40,
    ),
    Template(
        name="short/troubleshoot",
        system="You answer customers of a repair shop in a calm, short way.",
        ask="My $device makes a strange noise since this morning. What should I look at first?",
        slots={"device": DEVICES},
        rules=lambda v: (NO_TEMPLATE_TOKENS, never(CJK), says(v["device"])),
        max_tokens=64,
    ),
    Template(
        name="short/classify-mood",
        ask="Label the mood of this review as positive, negative or neutral.\nReview: $review\nLabel:",
        columns="review label",
        rows=(
            ("The soup was cold and the waiter rude.", "negative"), ("Best hike of my life!", "positive"),
            ("The parcel came on the day it was announced.", "neutral"),
            ("I would never buy this lamp again.", "negative"), ("A lovely, warm coat.", "positive"),
            ("The room has two chairs and a desk.", "neutral"), ("It broke within a week.", "negative"),
            ("My children laughed all evening.", "positive"),
        ),
        answer=lambda v: says(v["label"]),
        rules=lambda v: (match(r"\b(positive|negative|neutral)\b", ignore_case=True),),
        max_tokens=12,
    ),
    Template(
        name="short/invent-name",
        ask="Invent a name for a shop that sells only $fruit. Name only.",
        slots={"fruit": FRUITS},
        max_tokens=16,
        temperature=0.9,
    ),
    Template(
        name="short/two-line-poem",
        ask="Two rhyming lines about a $animal at sea:",
        slots={"animal": ANIMALS},
        max_tokens=40,
        temperature=1.0,
        top_p=0.95,
    ),
    Template(
        name="short/small-talk",
        system="You are a cheerful neighbour.",
        ask="Good morning! I was at $place yesterday. And you?",
        slots={"place": PLACES},
        max_tokens=48,
        temperature=0.7,
    ),
    Template(
        name="short/riddle",
        ask="Think up a riddle whose solution is \"$tool\". Do not tell the solution.",
        slots={"tool": TOOLS},
        max_tokens=56,
        temperature=0.8,
    ),
)
