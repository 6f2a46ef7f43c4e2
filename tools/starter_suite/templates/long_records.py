"""Long context: logs, ledgers, lists and tables with a fact to find."""

from __future__ import annotations

from tools.starter_suite.checks import match, number, says
from tools.starter_suite.documents import document
from tools.starter_suite.template import Template
from tools.starter_suite.words import (
    ANIMALS,
    COLOURS,
    DAYS,
    DEVICES,
    FRUITS,
    JOBS,
    MONTHS,
    SHIPS,
    TOOLS,
    TOPICS,
)

_CODES = tuple(f"{letter}{n}" for letter in "BDFHKMRT" for n in range(203, 991, 97))

# fmt: off
TEMPLATES = (
    Template(
        name="long_context/ship-log",
        ask="Below is the log of the $ship.\n\n$document\n\nWhat was the name of the buoy that was repaired?",
        slots={"ship": SHIPS, "buoy": ("Old Hanna", "North Finger", "Red Miller", "Grey Widow", "Long Tom")},
        compute=document(
            (
                "Watch $i. Wind $wind, $n knots; the sea is $sea.", "Watch $i. Course held at $n degrees.",
                "Watch $i. The $job checked the $tool and wrote nothing down.",
                "Watch $i. A $animal was seen off the starboard bow.", "Watch $i. Rain from $wind, sight under $n miles.",
                "Watch $i. Sails mended, $n metres of rope used.",
            ),
            ("Watch $i. Stopped for an hour; the buoy called $buoy was repaired and left shining.",),
            {"wind": ("north", "east", "south", "west"), "sea": ("calm", "rough", "grey", "slight"),
             "job": JOBS, "tool": TOOLS, "animal": ANIMALS},
        ),
        answer=lambda v: says(v["buoy"]),
    ),
    Template(
        name="long_context/stock-ledger",
        ask="$document\n\nThis was a stock list. How many crates of $fruit stand in hall 9? Only the number.",
        slots={"fruit": FRUITS, "many": range(131, 890, 7)},
        compute=document(
            ("hall $hall; $n sacks of $thing; checked", "hall $hall; shelf $n empty", "hall $hall; $n boxes of $thing; late",
             "hall $hall; door $colour; $n pallets of $thing", "hall $hall; closed for cleaning"),
            ("hall 9; $many crates of $fruit; fresh",),
            {"hall": range(1, 9), "thing": ("nails", "cement", "paper", "salt", "felt", "wire"), "colour": COLOURS},
        ),
        answer=lambda v: number(v["many"]),
        max_tokens=12,
    ),
    Template(
        name="long_context/server-log",
        system="You read logs for the operators of a small service.",
        ask="$document\n\nOne request failed with status 507. Which request code was it?",
        slots={"code": _CODES},
        compute=document(
            ("t=$i GET /$page 200 $n ms", "t=$i POST /$page 201 $n ms", "t=$i GET /$page 304 $n ms",
             "t=$i worker $n idle", "t=$i cache $page kept $n entries"),
            ("t=$i PUT /vault 507 request code $code",),
            {"page": ("cart", "search", "login", "help", "items", "about", "photos")},
            sizes=(700, 1100, 1600, 2100),
        ),
        answer=lambda v: says(v["code"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/timetable",
        ask="Bus timetable:\n$document\n\nAt what minute past the hour does the night bus to $stop leave?",
        slots={"stop": ("Quarry", "Old Mill", "Ferry Pier", "Observatory", "Saltworks"), "minute": range(11, 59)},
        compute=document(
            ("line $n to $town, every 20 minutes", "line $n to $town, not on $day", "line $n, stop $town closed in $month",
             "line $n turns at $town", "line $n to $town, seat numbers on $day only"),
            ("night bus to $stop, minute $minute, ring the bell",),
            {"town": ("Northfield", "Oakbridge", "Westerby", "Lakeside", "Hillcrest"), "day": DAYS, "month": MONTHS},
        ),
        answer=lambda v: says(v["minute"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/count-mentions",
        ask="$document\n\nHow often does the word \"$word\" appear in the lines above?",
        slots={"word": ("lantern", "thimble", "trumpet", "ladder", "kayak")},
        compute=document(
            ("The $job sold $n pieces on $day.", "On $day the $animal slept near the wall.", "$n visitors asked about $topic.",
             "In $month the gate was painted $colour.", "Nobody used the $tool before $day."),
            ("A $word was found under the bench.", "Someone lost a $word.", "The $word is back again."),
            {"job": JOBS, "day": DAYS, "animal": ANIMALS, "topic": TOPICS, "month": MONTHS, "colour": COLOURS, "tool": TOOLS},
        ),
        answer=lambda v: match(r"\b(3|three)\b", ignore_case=True),
    ),
    Template(
        name="long_context/add-two-entries",
        ask="Expenses of a hut, in crowns:\n$document\n\nAdd the two entries for $what. What is the sum?",
        slots={"what": ("candles", "honey", "firewood", "soap"), "a": range(21, 60), "b": range(21, 60)},
        compute=document(
            ("$month: $tool, $n crowns", "$month: repair of the $device, $n crowns", "$month: wages of the $job, $n crowns",
             "$month: nothing spent", "$month: $fruit for guests, $n crowns"),
            ("First thaw: $what, $a crowns", "First frost: $what, $b crowns"),
            {"month": MONTHS, "tool": TOOLS, "device": DEVICES, "job": JOBS, "fruit": FRUITS},
            sizes=(800, 1300, 1900),
        ),
        answer=lambda v: number(v["a"] + v["b"]),
        max_tokens=48,
    ),
    Template(
        name="long_context/plant-catalogue",
        ask="Question first: which plant in this catalogue must never stand in the sun? Catalogue: $document",
        slots={"plant": ("moon fern", "lace ivy", "stone moss", "velvet sedge", "bell clover")},
        compute=document(
            ("No. $i: $a $b, $n cm tall, water on $day.", "No. $i: $a $b, flowers $colour, blooms in $month.",
             "No. $i: $a $b, likes sand, full light.", "No. $i: $a $b, cut back in $month, likes warmth."),
            ("No. $i: $plant, sunlight kills it, keep in deep shade.",),
            {"a": ("dwarf", "giant", "creeping", "alpine", "golden"), "b": ("rose", "lily", "thyme", "poppy", "aster", "sage"),
             "day": DAYS, "colour": COLOURS, "month": MONTHS},
            joint=" ",
        ),
        answer=lambda v: says(v["plant"]),
    ),
    Template(
        name="long_context/configuration-file",
        ask="```ini\n$document\n```\nWhat is the value of retry_limit in this file?",
        slots={"limit": range(103, 990, 11)},
        compute=document(
            ("$part.timeout_s = $n", "$part.colour = $colour", "# $part: changed in $month", "$part.enabled = true",
             "$part.workers = $n", "$part.label = \"$animal\"", "[$part-$i]"),
            ("queue.retry_limit = $limit",),
            {"part": ("mail", "disk", "search", "audio", "report", "clock"), "colour": COLOURS, "month": MONTHS,
             "animal": ANIMALS},
            sizes=(600, 1000, 1500, 2000),
        ),
        answer=lambda v: says(v["limit"]),
        max_tokens=32,
    ),
    Template(
        name="long_context/chat-transcript",
        ask="Transcript of a support chat:\n$document\n\nWhich serial number did the customer give?",
        slots={"code": _CODES},
        compute=document(
            ("Customer: it started on $day.", "Agent: please switch the $device off and on.", "Customer: the lamp is $colour now.",
             "Agent: thank you, one moment.", "Customer: I waited $n minutes already.", "Agent: is the $tool at hand?",
             "Customer: no, nothing changed."),
            ("Customer: the plate on the back says serial $code.",),
            {"day": DAYS, "device": DEVICES, "colour": COLOURS, "tool": TOOLS},
        ),
        answer=lambda v: says(v["code"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/csv-lookup",
        ask="animal,colour,weight\n$document\n\nFrom this CSV: what weight does the row of the $who have?",
        slots={"who": ("capybara", "ocelot", "narwhal", "marmot", "puffin"), "weight": range(101, 990, 9)},
        compute=document(
            ("$animal,$colour,$n", "young $animal,$colour,$n", "old $animal,$colour,$n"),
            ("$who,striped,$weight",),
            {"animal": ANIMALS, "colour": COLOURS},
            sizes=(500, 800, 1200),
        ),
        answer=lambda v: says(v["weight"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/last-line",
        ask="Read this list to its end.\n$document\n- $last\n\nCopy the last item of the list.",
        slots={"last": ("a tin of black tea", "two spare fuses", "the map of the moor", "one red button", "a jar of glue")},
        compute=document(
            ("- $n $fruit", "- a $colour $tool", "- a book about $topic", "- the $device", "- $n pencils"),
            (),
            {"fruit": FRUITS, "colour": COLOURS, "tool": TOOLS, "topic": TOPICS, "device": DEVICES},
            sizes=(500, 900, 1400),
        ),
        answer=lambda v: says(v["last"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/changelog",
        ask="$document\n\nIn which version was the import of maps removed?",
        slots={"version": tuple(f"{a}.{b}.{c}" for a in (7, 8) for b in (3, 6, 9) for c in (11, 14))},
        compute=document(
            ("1.$i.0: faster $part, $n per cent less memory", "1.$i.1: the $part no longer forgets its $thing",
             "1.$i.2: $thing of the $part can be $colour", "1.$i.3: text of the $part corrected"),
            ("$version: import of maps removed, use folders",),
            {"part": ("menu", "editor", "printer dialog", "timeline", "search"), "thing": ("size", "order", "title", "frame"),
             "colour": COLOURS},
            head="CHANGES\n\n",
        ),
        answer=lambda v: match(v["version"].replace(".", r"\.")),
        max_tokens=24,
    ),
    Template(
        name="long_context/code-constant",
        ask="```python\n$document\n```\nWhich value has MAX_TIDE_CM in this module?",
        slots={"value": range(211, 980, 13)},
        compute=document(
            ("def ${verb}_${noun}_$i(x):\n    return x * $n\n", "def is_${noun}_$i(x):\n    return x > $n\n",
             "# $verb the $noun before the $other\n", "${noun}_$i = [$n, $n, \"$other\"]\n"),
            ("MAX_TIDE_CM = $value\n",),
            {"verb": ("load", "fold", "count", "sort"), "noun": ("boat", "net", "lamp", "crate"), "other": ANIMALS},
            sizes=(600, 1000, 1500, 2000),
        ),
        answer=lambda v: says(v["value"]),
        max_tokens=24,
    ),
    Template(
        name="long_context/results-table",
        ask="Results of a regatta.\n$document\n\nWhich boat was disqualified, and why? One sentence.",
        slots={"boat": ("Blue Anchor", "Small Thunder", "Ninth Wave", "Patient Crab"), "why": ("a false start", "a missing vest")},
        compute=document(
            ("race $i: $ship first by $n seconds", "race $i: $ship changed its sail to $colour", "race $i: no wind, started $n minutes late",
             "race $i: $ship and the $animal flag", "race $i: $ship turned back on $day"),
            ("race $i: $boat disqualified for $why",),
            {"ship": SHIPS, "colour": COLOURS, "animal": ANIMALS, "day": DAYS},
        ),
        answer=lambda v: says(v["boat"]),
        max_tokens=40,
    ),
)
