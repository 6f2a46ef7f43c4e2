"""Chinese questions that have one right answer."""

from __future__ import annotations

from tools.starter_suite.checks import CJK, NO_TEMPLATE_TOKENS, match, never, number, only_zh
from tools.starter_suite.template import Template
from tools.starter_suite.words import CITIES_ZH, FOODS_ZH

_DAYS = "一二三四五六日"

# fmt: off
TEMPLATES = (
    Template(
        name="chinese/capital",
        ask="$country的首都是哪座城市？只写城市名。",
        columns="country capital",
        rows=(
            ("法国", "巴黎"), ("日本", "东京"), ("埃及", "开罗"), ("泰国", "曼谷"), ("希腊", "雅典"),
            ("秘鲁", "利马"), ("挪威", "奥斯陆"), ("肯尼亚", "内罗毕"), ("波兰", "华沙"),
        ),
        answer=lambda v: only_zh(v["capital"]),
        max_tokens=12,
    ),
    Template(
        name="chinese/add",
        ask="请计算：$a加$b等于多少？用阿拉伯数字回答。",
        slots={"a": range(12, 70), "b": range(12, 70)},
        answer=lambda v: number(v["a"] + v["b"]),
        rules=lambda v: (match(r"\d"),),
        max_tokens=24,
    ),
    Template(
        name="chinese/antonym",
        ask="写出“$word”的反义词。",
        columns="word other",
        rows=(
            ("高兴", "(难过|伤心|悲伤)"), ("寒冷", "(炎热|温暖)"), ("宽阔", "(狭窄|狭小)"), ("安静", "(吵闹|喧闹|热闹)"),
            ("增加", "减少"), ("成功", "失败"), ("干燥", "(潮湿|湿润)"), ("前进", "(后退|倒退)"), ("熟悉", "陌生"),
        ),
        answer=lambda v: match(v["other"]),
        rules=lambda v: (match(CJK),),
        max_tokens=20,
    ),
    Template(
        name="chinese/weekday",
        ask="今天是星期$day，再过$n天是星期几？",
        slots={"day": _DAYS, "n": range(2, 7)},
        answer=lambda v: match(rf"(星期|周){_DAYS[(_DAYS.index(v['day']) + v['n']) % 7]}"),
        rules=lambda v: (match("星期|周"),),
        max_tokens=24,
    ),
    Template(
        name="chinese/measure-word",
        ask="填空：一（　）$noun。括号里应该填哪个量词？",
        columns="noun measure",
        rows=(
            ("马", "匹"), ("书", "本"), ("船", "[艘条只]"), ("伞", "把"), ("纸", "张"), ("信", "封"), ("花", "[朵束]"),
            ("桥", "[座架]"), ("衣服", "件"),
        ),
        answer=lambda v: match(v["measure"]),
        max_tokens=24,
    ),
    Template(
        name="chinese/yes-no",
        ask="判断对错：$claim请只回答“对”或“错”。",
        columns="claim truth",
        rows=(
            ("水在零摄氏度会结冰。", "对"), ("一年有十三个月。", "错"), ("蜘蛛有八条腿。", "对"), ("太阳从西边升起。", "错"),
            ("三角形有三条边。", "对"), ("企鹅会飞。", "错"), ("月亮自己会发光。", "错"), ("铁可以被磁铁吸引。", "对"),
        ),
        answer=lambda v: only_zh(v["truth"]),
        max_tokens=8,
    ),
    Template(
        name="chinese/to-english",
        ask="把下面的句子翻译成英文：$zh",
        columns="zh word",
        rows=(
            ("我每天早上喝茶。", "tea"), ("火车八点出发。", "train"), ("这把钥匙是蓝色的。", "blue"), ("外面正在下雨。", "rain"),
            ("他们在河边散步。", "river"), ("请关上窗户。", "window"), ("这本书很有意思。", "book"), ("明天是星期五。", "Friday"),
        ),
        answer=lambda v: match(v["word"], ignore_case=True),
        rules=lambda v: (match("[A-Za-z]"), NO_TEMPLATE_TOKENS),
        max_tokens=32,
    ),
    Template(
        name="chinese/from-english",
        ask="Translate into Chinese: \"$en\"",
        columns="en word",
        rows=(
            ("The cat sleeps on the chair.", "猫"), ("I would like two cups of coffee.", "咖啡"),
            ("The library opens at ten.", "图书馆"), ("Snow fell during the night.", "雪"),
            ("Where is the railway station?", "(火车站|车站)"), ("This apple is sweet.", "苹果"),
            ("The door is locked.", "门"), ("We live near the sea.", "海"),
        ),
        answer=lambda v: match(v["word"]),
        rules=lambda v: (match(CJK),),
        max_tokens=32,
    ),
    Template(
        name="chinese/find-place",
        ask="“$when，我们从$city出发，下午到了海边。”这句话里的出发地是哪里？",
        slots={"city": CITIES_ZH, "when": ("昨天早上", "上个星期天", "国庆节那天", "天刚亮的时候")},
        answer=lambda v: match(v["city"]),
        rules=lambda v: (match(CJK),),
        max_tokens=24,
    ),
    Template(
        name="chinese/price",
        ask="一斤$food卖$price元，买$n斤一共要付多少元？",
        slots={"food": FOODS_ZH, "price": range(6, 25), "n": range(2, 8)},
        answer=lambda v: number(v["price"] * v["n"]),
        rules=lambda v: (match(r"\d"),),
        max_tokens=48,
    ),
    Template(
        name="chinese/idiom-gap",
        ask="把成语补完整：$idiom",
        columns="idiom whole",
        rows=(
            ("画蛇添（　）", "足"), ("守株待（　）", "兔"), ("一举两（　）", "得"), ("半途而（　）", "废"), ("井底之（　）", "蛙"),
            ("水落石（　）", "出"), ("亡羊补（　）", "牢"), ("七上八（　）", "下"),
        ),
        answer=lambda v: match(v["whole"]),
        max_tokens=20,
    ),
    Template(
        name="chinese/choose",
        ask="下列哪一种是水果？A. $a　B. $b　C. $c　D. $d\n只回答字母。",
        compute=lambda _, draw: dict(
            zip("abcd", draw.shuffled((draw.pick(("苹果", "香蕉", "葡萄", "西瓜")), "萝卜", "土豆", "白菜")), strict=True)
        ),
        answer=lambda v: match(
            next(rf"\b{k.upper()}\b" for k in "abcd" if v[k] in ("苹果", "香蕉", "葡萄", "西瓜"))
        ),
        max_tokens=8,
    ),
    Template(
        name="chinese/sort-numbers",
        ask="把这些数从小到大排列，用逗号隔开：$list",
        compute=lambda _, draw: {"list": "，".join(map(str, draw.shuffled(range(3, 99))[:4]))},
        answer=lambda v: match("[,，、 ]+".join(sorted(v["list"].split("，"), key=int))),
        max_tokens=32,
    ),
    Template(
        name="chinese/pinyin",
        ask="“$word”的拼音是什么？不用写声调。",
        columns="word pinyin",
        rows=(
            ("北京", "bei ?jing"), ("你好", "ni ?hao"), ("谢谢", "xie ?xie"), ("学校", "xue ?xiao"), ("中国", "zhong ?guo"),
            ("苹果", "ping ?guo"), ("大海", "da ?hai"), ("天气", "tian ?qi"),
        ),
        answer=lambda v: match(v["pinyin"], ignore_case=True),
        rules=lambda v: (match("[A-Za-z]"),),
        max_tokens=24,
    ),
    Template(
        name="chinese/no-latin",
        ask="用一句中文说明$food是什么，不要使用任何英文字母。",
        slots={"food": FOODS_ZH},
        rules=lambda v: (match(CJK), never("[A-Za-z]")),
        max_tokens=40,
    ),
)
