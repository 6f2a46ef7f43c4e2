"""Chinese writing, rewriting and talk; traditional characters and mixed scripts too."""

from __future__ import annotations

from tools.starter_suite.checks import CJK, NO_TEMPLATE_TOKENS, match, never
from tools.starter_suite.template import Template
from tools.starter_suite.words import CITIES_ZH, FOODS_ZH, TOPICS_ZH

# fmt: off
TEMPLATES = (
    Template(
        name="chinese/describe",
        ask="请用两三句话介绍一下$topic。",
        slots={"topic": TOPICS_ZH},
        rules=lambda v: (match(CJK), NO_TEMPLATE_TOKENS),
        max_tokens=56,
    ),
    Template(
        name="chinese/advice",
        ask="我下个月第一次去$city旅行，要带什么东西？",
        slots={"city": CITIES_ZH},
        rules=lambda v: (match(CJK), never(r"https?://")),
        max_tokens=64,
    ),
    Template(
        name="chinese/story-start",
        raw=True,
        ask="从前，在$city附近的小山村里，住着一位爱吃$food的木匠。有一天，",
        slots={"city": CITIES_ZH, "food": FOODS_ZH},
        rules=lambda v: (match(CJK),),
        max_tokens=48,
    ),
    Template(
        name="chinese/notice",
        ask="写一则通知：$event。语气正式，不超过五十个字。",
        slots={
            "event": (
                "周三下午停水两小时", "电梯明天检修", "图书馆提前到四点关门", "停车场入口改到北门", "运动会因下雨推迟",
                "食堂周末不开放", "会议改在二楼举行",
            )
        },
        rules=lambda v: (match(CJK),),
        max_tokens=64,
    ),
    Template(
        name="chinese/apology",
        system="你是一家网店的客服，说话礼貌、简短。",
        ask="我买的$item少了一件，怎么办？",
        slots={"item": ("杯子", "毛巾", "椅子", "文具", "灯泡", "袜子", "餐具", "螺丝")},
        rules=lambda v: (match(CJK), NO_TEMPLATE_TOKENS),
        max_tokens=56,
    ),
    Template(
        name="chinese/shorten",
        ask="把这句话缩短到十个字以内：$sentence",
        slots={
            "sentence": (
                "因为昨天晚上下了很大的雪，所以今天早上很多公共汽车都晚点了。",
                "虽然这家小店的面积不大，但是里面卖的东西却非常齐全。",
                "为了赶上第一班船，他天还没亮就背着行李离开了家。",
                "经过三个月的练习，孩子们终于能够完整地演奏这首曲子。",
                "由于机器突然发生故障，工厂不得不把交货时间推后一周。",
            )
        },
        rules=lambda v: (match(CJK),),
        max_tokens=24,
    ),
    Template(
        name="chinese/steps",
        ask="做$food要分哪几步？请用“第一、第二、第三”列出来。",
        slots={"food": FOODS_ZH},
        answer=lambda v: match("第一[\\s\\S]*第二[\\s\\S]*第三"),
        rules=lambda v: (match(CJK),),
        max_tokens=72,
    ),
    Template(
        name="chinese/compare",
        ask="$a和$b有什么不同？",
        compute=lambda _, draw: dict(zip("ab", draw.shuffled(TOPICS_ZH)[:2], strict=True)),
        rules=lambda v: (match(CJK),),
        max_tokens=56,
    ),
    Template(
        name="chinese/traditional",
        ask="請用繁體中文回答：$question",
        slots={
            "question": (
                "圖書館裡為什麼要保持安靜？", "颱風來之前要準備什麼？", "為什麼要學習歷史？", "鐵為什麼會生鏽？",
                "怎樣照顧一隻小貓？", "為什麼樹葉在秋天變黃？",
            )
        },
        rules=lambda v: (match(CJK),),
        max_tokens=56,
    ),
    Template(
        name="chinese/mixed-script",
        ask="我的笔记本电脑提示“$error”，这是什么意思？怎么解决？",
        slots={
            "error": (
                "Disk full", "Connection refused", "Permission denied", "Out of memory", "Low battery",
                "Device not found", "Certificate expired", "Read-only file system",
            )
        },
        rules=lambda v: (match(CJK),),
        max_tokens=64,
    ),
    Template(
        name="chinese/explain-in-english",
        ask="What does the Chinese word \"$word\" mean? Answer in English only.",
        slots={"word": (*FOODS_ZH, *TOPICS_ZH)},
        rules=lambda v: (match("[A-Za-z]{3}"), NO_TEMPLATE_TOKENS),
        max_tokens=48,
    ),
    Template(
        name="chinese/follow-up",
        before=(("你喜欢$city吗？", "喜欢，那里的风景很美。"),),
        ask="那你觉得什么季节去最合适？为什么？",
        slots={"city": CITIES_ZH},
        rules=lambda v: (match(CJK),),
        max_tokens=48,
    ),
    Template(
        name="chinese/keep-format",
        before=(("苹果", "水果：苹果"), ("白菜", "蔬菜：白菜")),
        ask="$item",
        columns="item kind",
        rows=(
            ("香蕉", "水果"), ("菠菜", "蔬菜"), ("葡萄", "水果"), ("黄瓜", "蔬菜"), ("西瓜", "水果"), ("茄子", "蔬菜"),
            ("草莓", "水果"), ("芹菜", "蔬菜"),
        ),
        answer=lambda v: match(f"{v['kind']}[:：]{v['item']}"),
        rules=lambda v: (match("[:：]"),),
        max_tokens=16,
    ),
    Template(
        name="chinese/slogan",
        ask="为一家卖$food的小店想一句广告语。",
        slots={"food": FOODS_ZH},
        max_tokens=32,
        temperature=0.9,
    ),
    Template(
        name="chinese/couplet",
        ask="以“$topic”为题写两行诗，每行七个字。",
        slots={"topic": TOPICS_ZH},
        max_tokens=40,
        temperature=0.8,
        top_p=0.9,
    ),
    Template(
        name="chinese/diary",
        raw=True,
        ask="日记　$month月$day日　晴\n今天我在$city",
        slots={"month": range(1, 13), "day": range(1, 29), "city": CITIES_ZH},
        max_tokens=48,
        temperature=1.0,
        top_p=0.95,
    ),
)
