"""Code to write, to complete and to change."""

from __future__ import annotations

from tools.starter_suite.checks import match, says
from tools.starter_suite.template import Template

# fmt: off
TEMPLATES = (
    Template(
        name="code/python-function",
        ask="Write a Python function `$name` that $task.",
        columns="name task",
        rows=(
            ("count_vowels", "counts the vowels in a string"), ("is_leap", "tells whether a year is a leap year"),
            ("clamp", "limits a number to a range"), ("flatten", "flattens a list of lists"),
            ("to_fahrenheit", "turns degrees Celsius into Fahrenheit"), ("chunks", "cuts a list into pieces of n"),
            ("longest", "returns the longest of several words"), ("digits", "returns the digits of a number as a list"),
        ),
        rules=lambda v: (match(rf"def {v['name']}\("),),
        max_tokens=80,
    ),
    Template(
        name="code/complete-body",
        raw=True,
        ask='def $name:\n    """$doc"""\n',
        columns="name doc",
        rows=(
            ("mean(values)", "Return the arithmetic mean of a list of numbers."),
            ("reverse(text)", "Return the text backwards."),
            ("evens(numbers)", "Return only the even numbers, in order."),
            ("initials(words)", "Return the first letter of each word, in capitals."),
            ("is_sorted(items)", "Return True if no item is smaller than the one before it."),
            ("repeat(text, times)", "Return the text, repeated, separated by commas."),
            ("distance(a, b)", "Return the absolute difference of two numbers."),
        ),
        rules=lambda v: (match("return"),),
        max_tokens=56,
    ),
    Template(
        name="code/sql-query",
        ask="A table `$table` has the columns $columns. Write one SQL query that $task.",
        columns="table columns task",
        rows=(
            ("boats", "id, name, length_m", "lists the names of boats longer than 12 m"),
            ("orders", "id, day, total", "adds up the totals of each day"),
            ("plants", "id, species, planted_on", "counts the plants of each species"),
            ("rooms", "id, floor, seats", "finds the room with the most seats"),
            ("loans", "id, book, returned", "shows the books not yet returned"),
            ("trips", "id, driver, km", "gives the average km of each driver"),
        ),
        rules=lambda v: (match("SELECT", ignore_case=True), says(v["table"])),
        max_tokens=56,
    ),
    Template(
        name="code/html-fragment",
        ask="Show the HTML for $element. Only the fragment, no explanation.",
        slots={
            "element": (
                "a link to /help with the text Help", "an unordered list of three colours", "a button that is disabled",
                "a heading of level two", "a table with one row and two cells", "an input field for a date",
                "an image with alternative text",
            )
        },
        rules=lambda v: (match(r"<[a-z]+"),),
        max_tokens=56,
    ),
    Template(
        name="code/css-rule",
        ask="Give me a CSS rule for the class .$cls that $wish.",
        columns="cls wish",
        rows=(
            ("note", "makes the text italic and grey"), ("card", "adds a thin border and rounded corners"),
            ("banner", "centres the text"), ("menu", "removes the bullets of a list"),
            ("price", "shows the text bold and green"), ("hidden", "hides the element"),
        ),
        rules=lambda v: (match(rf"\.{v['cls']}"), match(r"\{")),
        max_tokens=56,
    ),
    Template(
        name="code/bash-script",
        ask="Please write a short bash script that $task.",
        slots={
            "task": (
                "renames all .txt files to .md", "warns when the disk is nearly full", "counts the files in a folder",
                "waits until a host answers to ping", "makes a dated copy of notes.txt",
                "prints the ten largest files", "deletes logs older than a week",
            )
        },
        rules=lambda v: (match(r"#!/bin/(ba)?sh|#!/usr/bin/env bash"),),
        max_tokens=80,
    ),
    Template(
        name="code/javascript-arrow",
        ask="Turn this into an arrow function in JavaScript:\nfunction $name($arg) {\n  return $body;\n}",
        columns="name arg body",
        rows=(
            ("double", "n", "n * 2"), ("greet", "name", "'Hello ' + name"), ("square", "x", "x * x"),
            ("isAdult", "age", "age >= 18"), ("last", "list", "list[list.length - 1]"), ("trim", "text", "text.trim()"),
        ),
        answer=lambda v: match(rf"{v['name']}\s*=\s*\(?{v['arg']}\)?\s*=>"),
        rules=lambda v: (match("=>"),),
        max_tokens=56,
    ),
    Template(
        name="code/rust-struct",
        ask="Define a Rust struct named $name with the fields $fields.",
        columns="name fields",
        rows=(
            ("Point", "x and y, both f64"), ("Task", "title (String) and done (bool)"),
            ("Colour", "r, g and b, all u8"), ("Sensor", "id (u32) and celsius (f32)"),
            ("Page", "number (usize) and text (String)"), ("Range", "start and end, both i64"),
        ),
        rules=lambda v: (match(rf"struct {v['name']}"),),
        max_tokens=56,
    ),
    Template(
        name="code/go-error",
        ask="In Go, write a function $name that $task and returns an error when the input is empty.",
        columns="name task",
        rows=(
            ("FirstWord", "returns the first word of a string"), ("Max", "returns the largest of a slice of ints"),
            ("ParsePort", "reads a port number from a string"), ("Last", "returns the last byte of a slice"),
        ),
        rules=lambda v: (match(rf"func {v['name']}"),),
        max_tokens=88,
    ),
    Template(
        name="code/unit-test",
        ask="Write a pytest test for a function `$name` for which `$call` must give `$result`.",
        columns="name call result",
        rows=(
            ("double", "double(4)", "8"), ("upper", "upper('ab')", "'AB'"), ("head", "head([7, 8])", "7"),
            ("negate", "negate(True)", "False"), ("join", "join(['a', 'b'])", "'a b'"), ("half", "half(9)", "4.5"),
        ),
        rules=lambda v: (match("def test"), match("assert")),
        max_tokens=64,
    ),
    Template(
        name="code/rename-variable",
        ask="Rename the variable `$old` to `$new` in this code and print the result:\n$old = 3\n$old += 4\nprint($old)",
        slots={"old": ("a", "tmp", "q", "foo", "var1"), "new": ("count", "height", "result", "index")},
        answer=lambda v: match(rf"{v['new']} = 3\s+{v['new']} \+= 4\s+print\({v['new']}\)"),
        rules=lambda v: (says(v["new"]),),
        max_tokens=56,
    ),
    Template(
        name="code/comment-line",
        ask="Add a comment that explains this line of Python:\n$line",
        slots={
            "line": (
                "rows.sort(key=len)", "seen = set(names)", "text = text.strip().lower()", "x, y = y, x",
                "data = data[::2]", "total = sum(prices) * 1.2", "with open(path) as file: pass",
            )
        },
        rules=lambda v: (match("#"),),
        max_tokens=56,
    ),
    Template(
        name="code/python-to-js",
        ask="Translate from Python to JavaScript.\n\nfor $one in $many:\n    print($one)",
        columns="many one",
        rows=(("boxes", "box"), ("lines", "line"), ("users", "user"), ("tags", "tag"), ("nodes", "node")),
        answer=lambda v: match(r"console\.log"),
        rules=lambda v: (says(v["many"]),),
        max_tokens=56,
    ),
    Template(
        name="code/yaml-config",
        ask="Write a YAML file with these settings: name is $name, port is $port, debug is off.",
        slots={"name": ("relay", "indexer", "mailer", "archiver", "clock"), "port": range(8000, 9000, 37)},
        answer=lambda v: match(rf"port: ?\"?{v['port']}"),
        rules=lambda v: (says(v["port"]),),
        max_tokens=48,
    ),
    Template(
        name="code/regex-write",
        ask="I need a regular expression for $what. Just the expression, please.",
        slots={
            "what": (
                "a time such as 09:45", "a hexadecimal colour such as #a0ff3c", "a number with two decimals",
                "a word that starts with a capital letter", "a line that ends with a semicolon", "an IPv4 address",
            )
        },
        rules=lambda v: (match(r"[\[\\^(]"),),
        max_tokens=40,
    ),
    Template(
        name="code/dockerfile",
        ask="Write a small Dockerfile for a $language program started with `$command`.",
        columns="language command",
        rows=(
            ("Python", "python main.py"), ("Node", "node server.js"), ("Go", "./app"), ("Ruby", "ruby job.rb"),
            ("Java", "java -jar tool.jar"),
        ),
        rules=lambda v: (match("FROM"),),
        max_tokens=64,
    ),
    Template(
        name="code/fill-middle",
        raw=True,
        ask="# Python\nnumbers = [$list]\nsmallest = min(numbers)\nlargest =",
        compute=lambda _, draw: {"list": ", ".join(str(draw.whole(2, 99)) for _ in range(4))},
        rules=lambda v: (match(r"max\("),),
        max_tokens=24,
        stop=("\n\n",),
    ),
    Template(
        name="code/commit-message",
        ask="Suggest a git commit message for this change: $change.",
        slots={
            "change": (
                "a missing null check was added to the parser", "the retry limit went from 3 to 5",
                "two unused imports are gone", "the README names the new port", "a slow query uses an index now",
            )
        },
        max_tokens=40,
        temperature=0.7,
    ),
    Template(
        name="code/haiku-comment",
        ask="Write a funny code comment, one line, above a function called $name.",
        slots={"name": ("sleep_forever", "guess_date", "fix_it_later", "count_sheep", "undo_undo", "are_we_there")},
        max_tokens=40,
        temperature=1.0,
        top_p=0.9,
    ),
)
