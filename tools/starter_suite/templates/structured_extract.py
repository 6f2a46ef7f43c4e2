"""Read something, answer as JSON: objects, lists, nested values, unions, closed and open."""

from __future__ import annotations

from tools.starter_suite.checks import (
    BOOLEAN,
    NUMBER,
    TEXT,
    arr,
    match,
    obj,
    one_of,
    says,
    shape,
    whole,
)
from tools.starter_suite.template import Template
from tools.starter_suite.words import CITIES_ZH, COLOURS, DAYS, DEVICES, FRUITS, JOBS, MONTHS, SHIPS, TOOLS

_JSON = (match(r"\{"),)

# fmt: off
TEMPLATES = (
    Template(
        name="structured_output/order",
        ask='Extract the order as JSON with the keys "item", "quantity" and "colour".\n'
        "Text: Please send me $n $colour ${tool}s.\nJSON:",
        slots={"n": range(2, 20), "colour": COLOURS, "tool": ("chair", "lamp", "basket", "towel", "tent", "cup")},
        structured=lambda v: shape(obj({"item": TEXT, "quantity": whole(1), "colour": TEXT})),
        rules=lambda v: (*_JSON, says(v["colour"])),
        max_tokens=48,
    ),
    Template(
        name="structured_output/order-shown",
        before=(
            ("3 green pens", '{"item": "pen", "quantity": 3, "colour": "green"}'),
            ("1 black stapler", '{"item": "stapler", "quantity": 1, "colour": "black"}'),
        ),
        ask="$n $colour $tool",
        slots={"n": range(2, 20), "colour": COLOURS, "tool": ("chairs", "lamps", "baskets", "towels", "tents")},
        structured=lambda v: shape(obj({"item": TEXT, "quantity": whole(1), "colour": TEXT})),
        rules=lambda v: (match(r'^\{"item": "'), match(rf'"colour": "{v["colour"]}"')),
        max_tokens=40,
    ),
    Template(
        name="structured_output/weather-report",
        system="You turn weather notes into JSON objects and write nothing else.",
        ask='Note: $day, $t degrees, wind from the $wind, $rain.\nUse "day", "celsius" (a number), "wind" '
        '(N, E, S or W) and "rain" (true or false).',
        slots={
            "day": DAYS, "t": range(-8, 31), "wind": ("north", "east", "south", "west"),
            "rain": ("no rain", "heavy rain", "dry all day", "some rain at noon"),
        },
        structured=lambda v: shape(
            obj({"day": one_of(*DAYS), "celsius": NUMBER, "wind": one_of("N", "E", "S", "W"), "rain": BOOLEAN})
        ),
        rules=lambda v: _JSON,
        max_tokens=56,
    ),
    Template(
        name="structured_output/list-of-fruit",
        ask="Which fruits does the sentence name? Answer with a JSON array of strings.\n\"She bought $a, $b and $c, "
        "but no bread.\"",
        compute=lambda _, draw: dict(zip("abc", draw.shuffled(FRUITS)[:3], strict=True)),
        structured=lambda v: shape(arr(TEXT, 3, 3, unique=True)),
        rules=lambda v: (says(v["a"]), says(v["b"])),
        max_tokens=40,
    ),
    Template(
        name="structured_output/address-parts",
        ask="Split this address into JSON with street, number, town and postcode (a string of five digits):\n"
        "$street $number, $code $town",
        slots={
            "street": ("Mill Lane", "Harbour Road", "Station Street", "Elm Walk", "Quarry Hill"),
            "number": range(1, 140, 3), "code": range(10115, 99000, 771),
            "town": ("Northfield", "Oakbridge", "Stonehaven", "Westerby", "Lakeside"),
        },
        structured=lambda v: shape(
            obj(
                {
                    "street": TEXT,
                    "number": {"type": ["integer", "string"]},
                    "town": TEXT,
                    "postcode": {"type": "string", "pattern": "^[0-9]{5}$"},
                }
            ),
            fenced=True,
        ),
        rules=lambda v: (*_JSON, says(v["code"])),
        max_tokens=64,
    ),
    Template(
        name="structured_output/date-iso",
        ask='Give this date as {"date": "YYYY-MM-DD"}: the ${day}th of $month $year',
        slots={"day": (4, 5, 7, 9, 11, 14, 16, 19, 25, 28), "month": MONTHS, "year": range(1950, 2030, 3)},
        structured=lambda v: shape(obj({"date": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}})),
        answer=lambda v: match(f"{v['year']}-{MONTHS.index(v['month']) + 1:02d}-{v['day']:02d}"),
        rules=lambda v: (says(v["year"]),),
        max_tokens=24,
    ),
    Template(
        name="structured_output/null-when-missing",
        ask='Fill in {"device": ..., "price": ...}; use null for what the text does not say. Text: "$text"',
        slots={"device": DEVICES, "price": range(15, 240, 5), "told": (True, False)},
        compute=lambda v, _: {
            "text": f"The {v['device']} costs {v['price']} francs." if v["told"] else f"I like my {v['device']}."
        },
        structured=lambda v: shape(
            obj({"device": TEXT, "price": {"type": "integer" if v["told"] else "null"}}), fenced=True
        ),
        rules=lambda v: (says(v["device"]),),
        max_tokens=40,
    ),
    Template(
        name="structured_output/crew-table",
        ask="Turn the table into a JSON array of objects with the keys ship and crew (a number).\n"
        "ship | crew\n$a | $x\n$b | $y",
        slots={"x": range(3, 60), "y": range(3, 60)},
        compute=lambda _, draw: dict(zip("ab", draw.shuffled(SHIPS)[:2], strict=True)),
        structured=lambda v: shape(arr(obj({"ship": TEXT, "crew": whole(1)}), 2, 2), fenced=True),
        rules=lambda v: (says(v["a"]), says(v["x"])),
        max_tokens=72,
    ),
    Template(
        name="structured_output/sentiment-enum",
        system='Reply with {"sentiment": S, "sure": B}: S is one of "good", "bad", "mixed"; B is true or false.',
        ask="$review",
        slots={
            "review": (
                "The tent is light but it leaks.", "I sleep like a stone on this mattress.", "Never again.",
                "Nice colour. The zip broke.", "My whole choir loves it.", "It arrived in pieces.",
                "Works as it should, every day.", "Great sound, awful battery.",
            )
        },
        structured=lambda v: shape(obj({"sentiment": one_of("good", "bad", "mixed"), "sure": BOOLEAN})),
        rules=lambda v: (match("sentiment|good|bad|mixed", ignore_case=True),),
        max_tokens=24,
    ),
    Template(
        name="structured_output/nested-route",
        ask="Write this trip as JSON: from $a to $b, leaving at $h:15, two stops.\n"
        'Form: {"from": text, "to": text, "departure": {"hour": number, "minute": number}, "stops": number}',
        slots={"h": range(5, 23)},
        compute=lambda _, draw: dict(
            zip("ab", draw.shuffled(("Lisbon", "Oslo", "Vienna", "Athens", "Dublin", "Warsaw"))[:2], strict=True)
        ),
        structured=lambda v: shape(
            obj(
                {
                    "from": TEXT,
                    "to": TEXT,
                    "departure": obj({"hour": whole(0, 23), "minute": whole(0, 59)}),
                    "stops": whole(0),
                }
            )
        ),
        rules=lambda v: (*_JSON, says(v["a"]), says(v["b"])),
        max_tokens=72,
    ),
    Template(
        name="structured_output/key-value-lines",
        ask="Convert to a JSON object, all values as strings:\nname=$tool\nshelf=$n\ncolour=$colour",
        slots={"tool": TOOLS, "n": range(1, 60), "colour": COLOURS},
        structured=lambda v: shape(obj({"name": TEXT, "shelf": TEXT, "colour": TEXT}), fenced=True),
        rules=lambda v: (says(v["n"]), says(v["colour"])),
        max_tokens=48,
    ),
    Template(
        name="structured_output/chinese-extract",
        ask="从句子里提取信息，只输出JSON，键为 city、days、reason。\n句子：我打算去$city住$n天，因为想$why。",
        slots={"city": CITIES_ZH, "n": range(2, 15), "why": ("看海", "爬山", "探亲", "学画画", "尝小吃", "看展览")},
        structured=lambda v: shape(obj({"city": TEXT, "days": whole(1), "reason": TEXT})),
        rules=lambda v: _JSON,
        max_tokens=48,
    ),
    Template(
        name="structured_output/pick-tool-call",
        system="Tools: get_time(city), set_alarm(hour, minute), add_note(text). "
        'Call one by answering {"tool": NAME, "arguments": {...}} and nothing more.',
        ask="$wish",
        columns="wish tool arguments",
        rows=(
            ("What time is it in Lima?", "get_time", {"city": TEXT}),
            ("Wake me at 6:40.", "set_alarm", {"hour": whole(0, 23), "minute": whole(0, 59)}),
            ("Remember that the spare key is under the pot.", "add_note", {"text": TEXT}),
            ("I have to get up at half past five.", "set_alarm", {"hour": whole(0, 23), "minute": whole(0, 59)}),
            ("Write down: buy two lemons.", "add_note", {"text": TEXT}),
            ("Is it already morning in Oslo?", "get_time", {"city": TEXT}),
            ("How late is it in Cairo now?", "get_time", {"city": TEXT}),
        ),
        structured=lambda v: shape(obj({"tool": {"const": v["tool"]}, "arguments": obj(v["arguments"])})),
        rules=lambda v: (match("tool|get_time|set_alarm|add_note"),),
        max_tokens=48,
    ),
    Template(
        name="structured_output/log-line",
        ask="Parse the log line into JSON with level, service, ms.\n$level $service took $ms ms",
        slots={
            "level": ("INFO", "WARN", "ERROR"), "service": ("billing", "search", "mailer", "cart", "login"),
            "ms": range(3, 2400, 19),
        },
        structured=lambda v: shape(
            obj({"level": one_of("INFO", "WARN", "ERROR"), "service": TEXT, "ms": whole(0)}), fenced=True
        ),
        rules=lambda v: (says(v["ms"]), says(v["service"])),
        max_tokens=48,
    ),
    Template(
        name="structured_output/jobs-count",
        ask="Count the jobs in this list and answer as a JSON object that maps each job to its count: $list",
        compute=lambda _, draw: {
            "jobs": (two := draw.shuffled(JOBS)[:2]),
            "list": ", ".join(draw.shuffled([two[0]] * draw.whole(2, 4) + [two[1]] * draw.whole(1, 3))),
        },
        structured=lambda v: shape(
            {"type": "object", "additionalProperties": whole(1), "required": sorted(v["jobs"])}, fenced=True
        ),
        rules=lambda v: (says(v["jobs"][0]),),
        max_tokens=48,
    ),
)
