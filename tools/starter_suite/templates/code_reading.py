"""Code to read: what it prints, what is wrong with it, what it means."""

from __future__ import annotations

from tools.starter_suite.checks import NO_TEMPLATE_TOKENS, match, never, number, only, says
from tools.starter_suite.template import Template

_WORDS = ("lantern", "pebble", "harvest", "cabinet", "orchard", "tunnel", "marble", "whistle", "compass")

# fmt: off
TEMPLATES = (
    Template(
        name="code/loop-output",
        ask="What does this Python program print?\n\ntotal = 0\nfor i in range($n):\n    total += i * $k\n"
        "print(total)\n\nGive the number only.",
        slots={"n": range(3, 9), "k": range(2, 7)},
        answer=lambda v: number(sum(range(v["n"])) * v["k"]),
        rules=lambda v: (match(r"\d"),),
        max_tokens=12,
    ),
    Template(
        name="code/slice-output",
        ask=">>> \"$word\"[$a:$b]\nWhich string does Python show?",
        slots={"word": _WORDS, "a": (0, 1, 2), "b": (3, 4, 5)},
        answer=lambda v: says(v["word"][v["a"] : v["b"]]),
        max_tokens=40,
    ),
    Template(
        name="code/modulo-c",
        ask='In C, what is printed by `printf("%d", $a % $b);`?',
        slots={"a": range(17, 99, 3), "b": range(4, 12)},
        answer=lambda v: number(v["a"] % v["b"]),
        rules=lambda v: (match(r"\d"),),
        max_tokens=40,
    ),
    Template(
        name="code/js-truthy",
        ask="JavaScript: does `Boolean($value)` give true or false? One word.",
        columns="value truth",
        rows=(
            ("0", "false"), ('""', "false"), ("[]", "true"), ('"0"', "true"), ("NaN", "false"), ("{}", "true"),
            ("null", "false"), ("-1", "true"),
        ),
        answer=lambda v: only(v["truth"], f"`{v['truth']}`"),
        rules=lambda v: (match("true|false", ignore_case=True),),
        max_tokens=8,
    ),
    Template(
        name="code/find-bug",
        ask="This function should return the average, but it is wrong. Say why in one or two sentences.\n\n"
        "def average($items):\n    total = 0\n    for $one in $items:\n        total = $one\n    return total / len($items)",
        columns="items one",
        rows=(
            ("prices", "price"), ("lengths", "length"), ("scores", "score"), ("delays", "delay"),
            ("weights", "weight"), ("ages", "age"),
        ),
        answer=lambda v: match(r"\+=|add|sum|accumulat|overwrit|replac|assign", ignore_case=True),
        rules=lambda v: (says(v["items"]), NO_TEMPLATE_TOKENS),
        max_tokens=72,
    ),
    Template(
        name="code/name-exception",
        ask="Which exception does Python raise for `$code`? Name the class.",
        columns="code error",
        rows=(
            ("1 / 0", "ZeroDivisionError"), ("[][3]", "IndexError"), ("{}['a']", "KeyError"),
            ("int('x')", "ValueError"), ("'a' + 1", "TypeError"), ("undefined_name", "NameError"),
            ("None.real_part", "AttributeError"), ("import no_such_module", "ModuleNotFoundError"),
        ),
        answer=lambda v: says(v["error"], ignore_case=False),
        rules=lambda v: (match("Error|Exception|error|exception"),),
        max_tokens=32,
    ),
    Template(
        name="code/shell-meaning",
        ask="Explain briefly what this shell command does: `$command`",
        slots={
            "command": (
                "sort names.txt | uniq -c", "du -sh *", "grep -rn TODO src", "tail -f server.log", "chmod +x run.sh",
                "tar czf logs.tgz logs", "wc -l *.csv", "find . -empty", "head -n 5 data.tsv", "ps aux | less",
            )
        },
        rules=lambda v: (says(v["command"].split()[0]), NO_TEMPLATE_TOKENS),
        max_tokens=56,
    ),
    Template(
        name="code/language-guess",
        ask="Which programming language is this? `$code`\nLanguage:",
        columns="code language",
        rows=(
            ("fn main() { println!(\"hi\"); }", "Rust"), ("print(f\"{x:>8}\")", "Python"),
            ("SELECT name FROM crews;", "SQL"), ("func main() { fmt.Println(1) }", "Go"),
            ("console.log([1, 2].map(x => x * 2))", "JavaScript"), ("System.out.println(\"hi\");", "Java"),
            ("puts [1, 2].sum", "Ruby"), ("#include <stdio.h>", "C"),
        ),
        answer=lambda v: says(v["language"]),
        max_tokens=16,
    ),
    Template(
        name="code/complexity",
        ask="State the worst-case time complexity of $task in big-O notation.",
        columns="task big_o",
        rows=(
            ("binary search in a sorted array", r"O\(log"), ("merge sort", r"O\(n ?\*? ?log"),
            ("bubble sort", r"O\(n(\^2|²|\*\*2)"), ("reading one array element by index", r"O\(1\)"),
            ("a linear search", r"O\(n\)"), ("pushing onto a linked stack", r"O\(1\)"),
        ),
        answer=lambda v: match(v["big_o"]),
        rules=lambda v: (match(r"O\("),),
        max_tokens=48,
    ),
    Template(
        name="code/git-question",
        ask="In git, how do I $wish? Show the command.",
        slots={
            "wish": (
                "undo the last commit but keep my changes", "list all branches", "see who last changed a line",
                "rename a branch", "throw away changes in one file", "show the commits of today",
                "tag a release", "stop tracking a file without deleting it",
            )
        },
        rules=lambda v: (match("git "), NO_TEMPLATE_TOKENS),
        max_tokens=56,
    ),
    Template(
        name="code/regex-meaning",
        ask="Does the regular expression ^$pattern$$ match the text $text? Begin your answer with yes or no.",
        columns="pattern text truth",
        rows=(
            ("[0-9]{3}", "042", "yes"), ("[a-z]+", "Tea", "no"), ("a|b", "b", "yes"), ("x?y", "xxy", "no"),
            ("\\w+@\\w+", "ann@home", "yes"), ("[^0-9]+", "r2d2", "no"), ("(ab)+", "abab", "yes"), ("...", "ox", "no"),
        ),
        answer=lambda v: match(rf"^\W*{v['truth']}\b", ignore_case=True),
        rules=lambda v: (match(r"\b(yes|no|not)\b", ignore_case=True),),
        max_tokens=32,
    ),
    Template(
        name="code/hex-value",
        ask="Convert the hexadecimal number 0x$hex to decimal.",
        slots={"value": range(17, 255, 5)},
        compute=lambda v, _: {"hex": f"{v['value']:02X}"},
        answer=lambda v: says(v["value"]),
        rules=lambda v: (match(r"\d"), says(v["hex"])),
        max_tokens=64,
    ),
    Template(
        name="code/translate-pseudo",
        ask="Read the pseudo code and say in plain words what it is good for.\n\nREPEAT\n  ask for $thing\n"
        "UNTIL $thing is $state\nprint \"thank you\"",
        columns="thing state",
        rows=(
            ("a number", "between 1 and 10"), ("a password", "longer than 8 signs"), ("a date", "in the future"),
            ("a name", "not empty"), ("a colour", "red, green or blue"), ("a file name", "not taken"),
        ),
        rules=lambda v: (NO_TEMPLATE_TOKENS, never(r"https?://")),
        max_tokens=64,
    ),
    Template(
        name="code/http-status",
        ask="HTTP status $code: what does it tell the client?",
        slots={"code": (200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 429, 500, 502, 503)},
        rules=lambda v: (says(v["code"]),),
        max_tokens=40,
    ),
    Template(
        name="code/review-name",
        system="You review code. You answer in at most two sentences.",
        ask="I called a boolean variable `$name`. Is that a good name?",
        slots={"name": ("flag", "is_open", "data2", "notReady", "ok", "has_children", "tmp", "x", "enabled")},
        rules=lambda v: (NO_TEMPLATE_TOKENS, never("[\\u4e00-\\u9fff]")),
        max_tokens=48,
    ),
)
