"""Make something up, as JSON of a wanted shape."""

from __future__ import annotations

from tools.starter_suite.checks import BOOLEAN, NUMBER, TEXT, arr, match, obj, one_of, says, shape, whole
from tools.starter_suite.template import Template
from tools.starter_suite.words import (
    ANIMALS,
    COLOURS,
    DAYS,
    DEVICES,
    FOODS_ZH,
    JOBS,
    MONTHS,
    PLACES,
    TOOLS,
    TOPICS,
)

_JSON = (match(r"\{"),)

# fmt: off
TEMPLATES = (
    Template(
        name="structured_output/animal-card",
        ask="Make a JSON card about the $animal: name, legs (integer), can_swim (boolean), foods (list of 2 to 4 words).",
        slots={"animal": ANIMALS},
        structured=lambda v: shape(
            obj({"name": TEXT, "legs": whole(0), "can_swim": BOOLEAN, "foods": arr(TEXT, 2, 4)}), fenced=True
        ),
        rules=lambda v: (says(v["animal"]), *_JSON),
        max_tokens=80,
    ),
    Template(
        name="structured_output/quiz-question",
        ask="Create one quiz question about $topic. JSON only: question, options (exactly four), correct (0 to 3).",
        slots={"topic": TOPICS},
        structured=lambda v: shape(
            obj({"question": TEXT, "options": arr(TEXT, 4, 4, unique=True), "correct": whole(0, 3)})
        ),
        rules=lambda v: _JSON,
        max_tokens=96,
    ),
    Template(
        name="structured_output/colour-hex",
        ask='Give the colour $colour as {"name": ..., "hex": "#RRGGBB"}.',
        slots={"colour": COLOURS},
        structured=lambda v: shape(
            obj({"name": TEXT, "hex": {"type": "string", "pattern": "^#[0-9A-Fa-f]{6}$"}}), fenced=True
        ),
        rules=lambda v: (says(v["colour"]),),
        max_tokens=40,
    ),
    Template(
        name="structured_output/todo-list",
        ask="Plan: $plan. Return a JSON array of three steps, each with \"step\" (text) and \"minutes\" (integer).",
        slots={
            "plan": (
                "clean a bicycle", "bake bread", "paint a fence", "repot a fern", "pack for a hike", "fold laundry",
                "wax a table", "wash a car",
            )
        },
        structured=lambda v: shape(arr(obj({"step": TEXT, "minutes": whole(1)}), 3, 3), fenced=True),
        rules=lambda v: _JSON,
        max_tokens=96,
    ),
    Template(
        name="structured_output/bool-only",
        ask='Is $n even? Answer with the JSON value {"even": true} or {"even": false}.',
        slots={"n": range(101, 999, 9)},
        structured=lambda v: shape(obj({"even": BOOLEAN})),
        answer=lambda v: match(rf'"even":\s*{"true" if v["n"] % 2 == 0 else "false"}'),
        rules=lambda v: (match("even|odd", ignore_case=True),),
        max_tokens=16,
    ),
    Template(
        name="structured_output/number-array",
        ask="Write the next four numbers as a JSON array: $a, $b, $c, ...",
        slots={"a": range(1, 30), "step": range(2, 9)},
        compute=lambda v, _: {"b": v["a"] + v["step"], "c": v["a"] + 2 * v["step"]},
        structured=lambda v: shape(arr({"type": "integer"}, 4, 4)),
        answer=lambda v: match(r"[,\s]+".join(str(v["a"] + k * v["step"]) for k in range(3, 7))),
        rules=lambda v: (match(r"\d"),),
        max_tokens=32,
    ),
    Template(
        name="structured_output/product-record",
        ask="Invent a product record for a $device with sku (two capital letters, a hyphen, three digits), price, "
        "in_stock and tags. Output JSON without comments.",
        slots={"device": DEVICES},
        structured=lambda v: shape(
            obj(
                {
                    "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                    "price": {"type": "number", "exclusiveMinimum": 0},
                    "in_stock": BOOLEAN,
                    "tags": arr(TEXT, 1),
                },
                closed=False,
            ),
            fenced=True,
        ),
        rules=lambda v: _JSON,
        max_tokens=88,
    ),
    Template(
        name="structured_output/opening-hours",
        ask="A $job has a shop that is open from $a to $b o'clock except on $day. Describe this as "
        '{"open": int, "close": int, "closed_on": [days]}.',
        slots={"job": JOBS, "a": range(6, 11), "b": range(15, 22), "day": DAYS},
        structured=lambda v: shape(
            obj({"open": whole(0, 24), "close": whole(0, 24), "closed_on": arr(one_of(*DAYS), 1, 7, unique=True)}),
            fenced=True,
        ),
        rules=lambda v: (says(v["day"]),),
        max_tokens=48,
    ),
    Template(
        name="structured_output/error-or-result",
        system='Answer {"result": NUMBER} when the sum can be done and {"error": TEXT} when it cannot.',
        ask="$task",
        columns="task kind",
        rows=(
            ("12 + 30", "result"), ("seven pears minus Tuesday", "error"), ("100 / 4", "result"), ("5 / 0", "error"),
            ("9 * 9", "result"), ("the square root of a chair", "error"), ("81 - 18", "result"),
        ),
        structured=lambda v: shape(
            {"oneOf": [obj({"result": NUMBER}), obj({"error": TEXT})], "required": [v["kind"]]}
        ),
        rules=lambda v: (match("result|error|[0-9]"),),
        max_tokens=32,
    ),
    Template(
        name="structured_output/translate-map",
        ask="Give a JSON object that maps each English word to its Spanish word: $words",
        columns="words",
        rows=(
            ("water, bread, sun",), ("dog, cat, bird",), ("red, blue, green",), ("one, two, three",),
            ("house, door, window",), ("milk, salt, apple",), ("hand, head, foot",), ("day, night, week",),
        ),
        structured=lambda v: shape(obj(dict.fromkeys(v["words"].split(", "), TEXT)), fenced=True),
        rules=lambda v: (says(v["words"].split(",")[0]),),
        max_tokens=48,
    ),
    Template(
        name="structured_output/tree-folder",
        ask="Show a folder called \"$name\" with two files as JSON: {\"name\": ..., \"children\": [{\"name\": ...}, ...]}",
        slots={"name": ("photos", "invoices", "recipes", "scores", "maps", "drafts", "backups")},
        structured=lambda v: shape(
            obj({"name": {"const": v["name"]}, "children": arr(obj({"name": TEXT}, closed=False), 2, 2)}),
            fenced=True,
        ),
        rules=lambda v: (says(v["name"]), *_JSON),
        max_tokens=64,
    ),
    Template(
        name="structured_output/coordinates",
        ask='A robot stands at x=$x, y=$y and goes $n steps to the $way (east is +x, north is +y). '
        'Where is it now? {"x": ..., "y": ...}',
        slots={"x": range(20), "y": range(20), "n": range(1, 9), "way": ("east", "north", "west", "south")},
        structured=lambda v: shape(obj({"x": {"type": "integer"}, "y": {"type": "integer"}}), fenced=True),
        answer=lambda v: match(
            rf'"x":\s*{v["x"] + v["n"] * {"east": 1, "west": -1}.get(v["way"], 0)}\D+'
            rf'{v["y"] + v["n"] * {"north": 1, "south": -1}.get(v["way"], 0)}\b'
        ),
        rules=lambda v: (match(r"\d"),),
        max_tokens=40,
    ),
    Template(
        name="structured_output/chinese-menu",
        ask="请用JSON写一份菜单，包含$food和另外一种食物。格式：[{\"菜名\": 文字, \"价格\": 数字}]",
        slots={"food": FOODS_ZH},
        structured=lambda v: shape(arr(obj({"菜名": TEXT, "价格": NUMBER}), 2, 2), fenced=True),
        rules=lambda v: _JSON,
        max_tokens=72,
    ),
    Template(
        name="structured_output/csv-row",
        before=(("lamp, 12", '["lamp", 12]'), ("rope, 4", '["rope", 4]')),
        ask="$tool, $n",
        slots={"tool": TOOLS, "n": range(2, 90)},
        structured=lambda v: shape(arr({"type": ["string", "integer"]}, 2, 2)),
        answer=lambda v: match(rf'^\["{v["tool"]}", {v["n"]}\]'),
        rules=lambda v: (match(r"^\["), says(v["n"])),
        max_tokens=20,
    ),
    Template(
        name="structured_output/event-raw",
        raw=True,
        ask='Events as JSON, one a line.\n{"month": "May", "place": "a harbour", "guests": 40}\n'
        '{"month": "July", "place": "a library", "guests": 25}\n{"month": "$month", "place": "$place", "guests":',
        slots={"month": MONTHS, "place": PLACES},
        rules=lambda v: (match(r"^ ?\d+\}"),),
        max_tokens=12,
        stop=("\n",),
    ),
    Template(
        name="structured_output/sampled-profile",
        ask="Invent a harbour master for a board game. JSON with name, age (18 to 90), motto, and rank "
        "(one of sailor, mate, captain). The harbour lies near $place.",
        slots={"place": PLACES},
        structured=lambda v: shape(
            obj({"name": TEXT, "age": whole(18, 90), "motto": TEXT, "rank": one_of("sailor", "mate", "captain")}),
            fenced=True,
        ),
        max_tokens=88,
        temperature=0.8,
    ),
)
