"""Lists that several templates draw from. Facts in them are common knowledge; nobody in them is a person."""

from __future__ import annotations

CAPITALS = (
    ("France", "Paris"), ("Japan", "Tokyo"), ("Egypt", "Cairo"), ("Kenya", "Nairobi"), ("Peru", "Lima"),
    ("Norway", "Oslo"), ("Greece", "Athens"), ("Cuba", "Havana"), ("Portugal", "Lisbon"),
    ("Ireland", "Dublin"), ("Austria", "Vienna"), ("Thailand", "Bangkok"), ("Chile", "Santiago"),
    ("Poland", "Warsaw"), ("Finland", "Helsinki"), ("Hungary", "Budapest"),
)  # fmt: skip

COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "grey", "brown", "white", "black")

ANIMALS = ("beaver", "heron", "lynx", "badger", "gecko", "walrus", "falcon", "hedgehog", "bison", "penguin")

FRUITS = ("apples", "pears", "plums", "cherries", "lemons", "figs", "mangoes", "apricots", "limes", "peaches")

TOOLS = ("hammer", "chisel", "spanner", "hand drill", "file", "clamp", "plane", "saw", "level", "vice")

PLACES = (
    "a lighthouse", "a night market", "a railway museum", "a mountain hut", "a bakery", "a harbour",
    "a greenhouse", "a library", "a desert camp", "a clock tower",
)  # fmt: skip

SHIPS = ("Ostara", "Grey Lark", "Meridian", "Tern", "Halcyon", "Bluefin", "Corvina", "Sandpiper")

TOPICS = (
    "tides", "beekeeping", "glaciers", "recycling", "bridges", "fermentation", "earthquakes", "kites",
    "coral reefs", "paper making", "lightning", "compost", "magnets", "volcanoes",
)  # fmt: skip

DEVICES = (
    "router", "printer", "thermostat", "dishwasher", "e-reader", "bicycle lamp", "coffee grinder", "webcam",
    "smoke alarm", "garden pump",
)  # fmt: skip

JOBS = (
    "baker", "pilot", "nurse", "plumber", "librarian", "carpenter", "farmer", "gardener", "welder", "tailor",
)  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip

CITIES_ZH = ("北京", "上海", "广州", "成都", "西安", "杭州", "南京", "武汉", "昆明", "青岛", "哈尔滨", "厦门")

TOPICS_ZH = (
    "茶叶", "高铁", "竹子", "丝绸", "月亮", "台风", "图书馆", "雨水", "大熊猫", "长江", "夜市", "围棋",
)  # fmt: skip

FOODS_ZH = ("饺子", "豆腐", "面条", "粽子", "包子", "火锅", "米粉", "月饼", "汤圆", "炒饭")
