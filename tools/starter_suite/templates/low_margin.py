"""Pool of prompts whose answer may begin in many ways; the search keeps the nearest ties."""

from __future__ import annotations

from tools.starter_suite.template import Template
from tools.starter_suite.words import (
    ANIMALS,
    CAPITALS,
    CITIES_ZH,
    COLOURS,
    DAYS,
    DEVICES,
    FOODS_ZH,
    FRUITS,
    JOBS,
    MONTHS,
    PLACES,
    SHIPS,
    TOOLS,
    TOPICS,
    TOPICS_ZH,
)

# fmt: off
TEMPLATES = (
    Template(
        name="low_margin/story-opening",
        raw=True,
        ask="It was the coldest $month anyone could remember. The $job",
        slots={"month": MONTHS, "job": JOBS},
    ),
    Template(
        name="low_margin/shopping-list",
        raw=True,
        ask="Shopping list for $day\n- $n $fruit\n-",
        slots={"day": DAYS, "n": range(2, 9), "fruit": FRUITS},
    ),
    Template(
        name="low_margin/forecast",
        raw=True,
        ask="Weather for $city, $day: In the morning",
        columns="country city",
        rows=CAPITALS,
        slots={"day": DAYS},
    ),
    Template(
        name="low_margin/stage-dialogue",
        raw=True,
        ask="$a: I told you not to touch the $tool!\n$b:",
        slots={"a": ("CAPTAIN", "COOK", "KING", "AUNT"), "b": ("SAILOR", "GUEST", "FOOL", "CHILD"), "tool": TOOLS},
    ),
    Template(
        name="low_margin/pick-one-of-two",
        ask="$a or $b? Choose for me and say why.",
        slots={"a": ("Tea", "Hills", "Trains", "Winter", "Chess"), "b": ("coffee", "beaches", "ships", "summer", "cards")},
    ),
    Template(
        name="low_margin/random-number",
        ask="Think of a number between 1 and $n. Which one is it?",
        slots={"n": range(10, 1000, 37)},
    ),
    Template(
        name="low_margin/favourite-colour",
        ask="Which colour should I paint the $thing of $place?",
        slots={"thing": ("door", "roof", "fence", "floor"), "place": PLACES},
    ),
    Template(
        name="low_margin/boat-names",
        ask="Suggest three names for a boat that belongs to a $job.",
        slots={"job": JOBS},
    ),
    Template(
        name="low_margin/repair-advice",
        ask="The handle of my $tool is loose. Help!",
        slots={"tool": (*TOOLS, *DEVICES)},
    ),
    Template(
        name="low_margin/recipe-start",
        raw=True,
        ask="Soup of $fruit and $other\n\nIngredients:\n",
        slots={"fruit": FRUITS, "other": ("barley", "ginger", "lentils", "rice", "leek", "mint")},
    ),
    Template(
        name="low_margin/surprising-fact",
        ask="Tell me something surprising about $topic.",
        slots={"topic": TOPICS},
    ),
    Template(
        name="low_margin/analogy",
        ask="$topic: what everyday thing can they be compared with?",
        slots={"topic": TOPICS},
    ),
    Template(
        name="low_margin/differences",
        ask="Contrast a $a with a $b.",
        slots={"a": ANIMALS, "b": ("sparrow", "tortoise", "salmon", "donkey", "toad")},
    ),
    Template(
        name="low_margin/docstring",
        raw=True,
        ask='def $name(path):\n    """',
        columns="name",
        rows=tuple((f"{a}_{b}",) for a in ("load", "merge", "check", "draw") for b in ("tides", "orders", "maps", "songs")),
    ),
    Template(
        name="low_margin/html-heading",
        raw=True,
        ask="<html>\n<body>\n<h1>All about $topic</h1>\n<p>",
        slots={"topic": (*TOPICS, *FRUITS)},
    ),
    Template(
        name="low_margin/complaint-mail",
        ask="Draft an e-mail: the $device I ordered in $month has not come.",
        slots={"device": DEVICES, "month": MONTHS},
    ),
    Template(
        name="low_margin/smell",
        ask="How does $place smell at dawn?",
        slots={"place": PLACES},
    ),
    Template(
        name="low_margin/dream",
        ask="I dreamt of a $colour $animal. What may it mean?",
        slots={"colour": COLOURS, "animal": ANIMALS},
    ),
    Template(
        name="low_margin/coin",
        ask="Flip a coin for me $n times and list the results.",
        slots={"n": range(2, 20)},
    ),
    Template(
        name="low_margin/why",
        ask="Why would a $job carry $fruit to $place?",
        slots={"job": JOBS, "fruit": FRUITS, "place": PLACES},
    ),
    Template(
        name="low_margin/new-word",
        ask="Coin a new verb that means \"to $act a $animal\".",
        slots={"act": ("comb", "imitate", "draw", "wake", "follow"), "animal": ANIMALS},
    ),
    Template(
        name="low_margin/inside-machine",
        ask="What happens inside a $device when it is switched on?",
        slots={"device": DEVICES},
    ),
    Template(
        name="low_margin/day-plan",
        system="You plan days out. Short items with times.",
        ask="One $day in $city with two children.",
        columns="country city",
        rows=CAPITALS,
        slots={"day": DAYS},
    ),
    Template(
        name="low_margin/legend",
        ask="Tell the legend of the $animal and the $tool.",
        slots={"animal": ANIMALS, "tool": TOOLS},
    ),
    Template(
        name="low_margin/interview",
        ask="Which questions would you ask a $job about $topic?",
        slots={"job": JOBS, "topic": TOPICS},
    ),
    Template(
        name="low_margin/chinese-opening",
        raw=True,
        ask="关于$topic，很多人不知道的是，",
        slots={"topic": TOPICS_ZH},
    ),
    Template(
        name="low_margin/chinese-opinion",
        ask="有人说$city最好吃的是$food，你觉得呢？",
        slots={"city": CITIES_ZH, "food": FOODS_ZH},
    ),
    Template(
        name="low_margin/table-row",
        raw=True,
        ask="| ship | built | cargo |\n|---|---|---|\n| $a | 1893 | salt |\n| $b | ",
        slots={"a": SHIPS, "b": ("Juniper", "Old Rose", "Kestrel", "Moorhen", "Solace")},
    ),
    Template(
        name="low_margin/sql-insert",
        raw=True,
        ask="INSERT INTO $table (name, amount, colour) VALUES\n  ('$fruit', $n, '",
        slots={"table": ("stock", "orders", "basket"), "fruit": FRUITS, "n": range(3, 60)},
    ),
    Template(
        name="low_margin/obituary-of-thing",
        ask="Write a short farewell speech for an old $device.",
        slots={"device": DEVICES},
    ),
    Template(
        name="low_margin/pro-contra",
        ask="One argument for and one against $what in cities:",
        slots={"what": ("trams", "bees", "street lamps", "open windows", "night markets", "cobbled streets", "fountains", "roof gardens",
                        "loud bells", "bicycle lanes", "wide pavements", "early closing")},
    ),
    Template(
        name="low_margin/advertisement",
        ask="Advertise a $tool for left-handed people.",
        slots={"tool": (*TOOLS, *DEVICES)},
    ),
    Template(
        name="low_margin/number-series",
        raw=True,
        ask="Lottery numbers drawn on $day: $a, $b,",
        slots={"day": DAYS, "a": range(1, 20), "b": range(20, 45)},
    ),
    Template(
        name="low_margin/metaphor",
        ask="Finish with a metaphor: \"$month is a\"",
        slots={"month": (*MONTHS, *DAYS)},
    ),
    Template(
        name="low_margin/history-of",
        before=(("I collect old things.", "How nice! What do you collect?"),),
        ask="Mostly every $tool that I can find. When was it first made?",
        slots={"tool": TOOLS},
    ),
    Template(
        name="low_margin/opening-line-of-talk",
        ask="First sentence of a talk on $topic for an audience of ${job}s?",
        slots={"topic": TOPICS, "job": JOBS},
    ),
)
