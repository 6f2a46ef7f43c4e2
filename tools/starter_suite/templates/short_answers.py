"""Short questions that have one right answer."""

from __future__ import annotations

from tools.starter_suite.checks import NO_TEMPLATE_TOKENS, match, never, number, only, says
from tools.starter_suite.template import Template
from tools.starter_suite.words import ANIMALS, CAPITALS, COLOURS, DAYS, FRUITS, MONTHS

# fmt: off
TEMPLATES = (
    Template(
        name="short/capital",
        ask="What is the capital of $country?",
        columns="country capital",
        rows=CAPITALS,
        answer=lambda v: says(v["capital"]),
        rules=lambda v: (says(v["country"]), NO_TEMPLATE_TOKENS),
    ),
    Template(
        name="short/country-of-capital",
        ask="$capital is the capital of which country? Reply with the country's name and nothing else.",
        columns="country capital",
        rows=CAPITALS,
        answer=lambda v: only(v["country"]),
        max_tokens=12,
    ),
    Template(
        name="short/sum-of-two",
        ask="Compute $a + $b. Give only the number.",
        slots={"a": range(11, 90), "b": range(11, 90)},
        answer=lambda v: number(v["a"] + v["b"]),
        rules=lambda v: (match(r"\d"),),
        max_tokens=16,
    ),
    Template(
        name="short/change-from-note",
        ask="A notebook costs $$$price. I pay with a $$20 note. How many dollars do I get back?",
        slots={"price": range(3, 19)},
        answer=lambda v: number(20 - v["price"]),
        max_tokens=48,
    ),
    Template(
        name="short/opposite",
        ask="Write the opposite of the word \"$word\". One word, please.",
        columns="word other",
        rows=(
            ("hot", "cold"), ("early", "late"), ("empty", "full"), ("loud", "quiet"), ("narrow", "wide"),
            ("rough", "smooth"), ("cheap", "expensive"), ("ancient", "modern"), ("deep", "shallow"),
        ),
        answer=lambda v: says(v["other"]),
        rules=lambda v: (never(r"\d"),),
        max_tokens=12,
    ),
    Template(
        name="short/days-later",
        ask="If today is $day, which day of the week will it be in $n days?",
        slots={"day": DAYS, "n": range(2, 13)},
        answer=lambda v: says(DAYS[(DAYS.index(v["day"]) + v["n"]) % 7]),
        rules=lambda v: (match(r"\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"),),
    ),
    Template(
        name="short/month-before",
        ask="Name the month that comes directly before $month.",
        slots={"month": MONTHS},
        answer=lambda v: says(MONTHS[(MONTHS.index(v["month"]) - 1) % 12]),
        rules=lambda v: (match("|".join(MONTHS)),),
        max_tokens=24,
    ),
    Template(
        name="short/true-or-false",
        ask="True or false: $claim Answer with exactly one word, True or False.",
        columns="claim truth",
        rows=(
            ("Ice floats on water.", "True"), ("Spiders have six legs.", "False"),
            ("The Sun is a star.", "True"), ("A triangle has four sides.", "False"),
            ("Bats are mammals.", "True"), ("Gold is lighter than wood.", "False"),
            ("Sound travels through water.", "True"), ("There are 50 minutes in an hour.", "False"),
            ("Mercury is a planet.", "True"),
        ),
        answer=lambda v: only(v["truth"]),
        rules=lambda v: (match(r"\b(true|false)\b", ignore_case=True),),
        max_tokens=8,
    ),
    Template(
        name="short/odd-one-out",
        ask="Which of these does not belong with the others: $items? Say the word alone.",
        columns="items odd",
        rows=(
            ("oak, birch, salmon, maple", "salmon"), ("violin, cello, harp, wrench", "wrench"),
            ("copper, iron, linen, zinc", "linen"), ("trout, pike, carp, sparrow", "sparrow"),
            ("circle, square, Tuesday, hexagon", "Tuesday"), ("rain, hail, snow, carpet", "carpet"),
            ("knee, elbow, teapot, ankle", "teapot"), ("wheat, barley, rye, marble", "marble"),
        ),
        answer=lambda v: only(v["odd"]),
        max_tokens=12,
    ),
    Template(
        name="short/plural",
        ask="Give the plural form of the noun: $noun",
        columns="noun plural",
        rows=(
            ("mouse", "mice"), ("leaf", "leaves"), ("child", "children"), ("tooth", "teeth"),
            ("knife", "knives"), ("goose", "geese"), ("box", "boxes"), ("city", "cities"), ("ox", "oxen"),
        ),
        answer=lambda v: says(v["plural"]),
        max_tokens=24,
    ),
    Template(
        name="short/count-letters",
        ask="How many letters are there in the word \"$word\"?",
        slots={"word": (*ANIMALS, "staircase", "window", "umbrella", "bread")},
        answer=lambda v: number(len(v["word"])),
        rules=lambda v: (match(r"\d|\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b"),),
        max_tokens=24,
    ),
    Template(
        name="short/convert-units",
        ask="$n kilometres are how many metres? Finish with the figure.",
        slots={"n": range(2, 40)},
        answer=lambda v: match(rf"\b{v['n']},?000\b"),
        max_tokens=40,
    ),
    Template(
        name="short/bigger-number",
        ask="Which number is larger, $a or $b? Repeat the larger one and stop.",
        slots={"a": range(100, 990, 7), "b": range(103, 995, 11)},
        compute=lambda v, _: {"top": max(v["a"], v["b"]), "b": v["b"] + (v["a"] == v["b"])},
        answer=lambda v: number(max(v["a"], v["b"])),
        rules=lambda v: (match(rf"\b({v['a']}|{v['b']})\b"),),
        max_tokens=16,
    ),
    Template(
        name="short/basket-total",
        ask="There are $a $fruit in one basket and $b in another; $c are rotten and thrown away. "
        "How many $fruit are left?",
        slots={"a": range(12, 40), "b": range(12, 40), "c": range(2, 11), "fruit": FRUITS},
        answer=lambda v: number(v["a"] + v["b"] - v["c"]),
        rules=lambda v: (match(r"\d"), says(v["fruit"])),
        max_tokens=64,
    ),
    Template(
        name="short/mix-colours",
        ask="In painting, which colour do you get when you mix $first and $second?",
        columns="first second third",
        rows=(
            ("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "blue", "purple"),
            ("black", "white", "gr[ae]y"), ("red", "white", "pink"),
        ),
        answer=lambda v: match(rf"\b{v['third']}\b", ignore_case=True),
        rules=lambda v: (match(r"\b(" + "|".join((*COLOURS, "pink", "gray")) + r")\b", ignore_case=True),),
    ),
    Template(
        name="short/where-from-list",
        ask="Here is a list: 1. $a 2. $b 3. $c 4. $d\nWhich item is number $n? Copy it exactly.",
        slots={"n": (1, 2, 3, 4)},
        compute=lambda _, draw: dict(zip("abcd", draw.shuffled(ANIMALS)[:4], strict=True)),
        answer=lambda v: only(v["abcd"[v["n"] - 1]]),
        rules=lambda v: (match("|".join((v["a"], v["b"], v["c"], v["d"]))),),
        max_tokens=16,
    ),
)
