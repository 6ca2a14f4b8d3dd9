"""Chinese text without digits: dates, times, money, measures and every kind of number in characters."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal

from tts_plugin.text.reading import read

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def spell_out(text: str) -> str:
    """`text` with every number in characters; what holds no digit comes back as it is."""
    if not _DIGIT.search(text):
        return text
    for pattern, say in _RULES:
        text = pattern.sub(say, text)
    return text


_DIGIT = re.compile(r"\d")

# --- bare numbers ------------------------------------------------------------------------------------------

_HAN = r"\u3400-\u9fff"
_NUMERALS = "零一二三四五六七八九十百千万亿两幺点"
_DIGITS = "零一二三四五六七八九"
_MOST_DIGITS = 12  # a longer number is read digit by digit (wetext reads 10^12 as 一千亿零)


def digits(run: str) -> str:
    """One by one, as in a year: 2024 -> 二零二四."""
    return "".join(_DIGITS[int(digit)] for digit in run)


def called(run: str) -> str:
    """One by one, as on the telephone, where one is 幺: 119 -> 幺幺九."""
    return digits(run).replace("一", "幺")


def cardinal(run: str) -> str:
    """A whole number: 2 -> 二, 200 -> 两百; from 13 digits on digit by digit.

    Asked for with 页 behind it, because wetext reads a bare 12345 or 110 as it reads phone numbers.
    """
    if len(run) > _MOST_DIGITS or (run[0] == "0" and run != "0"):
        return digits(run)
    return "二" if run == "2" else read(f"{run}页", "zh").removesuffix("页")


def number(run: str) -> str:
    """A whole number or a decimal: 1,200.50 -> 一千二百点五零.

    wetext stops at the comma (1,234 -> 一,两百三十四) and takes 10.10 for the tenth of October.
    """
    whole, point, part = run.replace(",", "").partition(".")
    return f"{cardinal(whole)}点{digits(part)}" if point else cardinal(whole)


def counted(run: str, follows: str) -> str:
    """`run` before a measure word, where two is 两: 2次 -> 两次 (wetext: 二次)."""
    return "两" if run == "2" and follows.startswith(_COUNTED) else number(run)


_COUNTED = (
    *"个只位台次天年周秒米元块毛岁倍斤克吨升点部辆本张件条杯瓶份双对套间家所篇页首片把座栋",
    *"颗粒棵朵支枝封笔种类组队批名人句门场层排盒箱包袋碗盘碟束匹头架艘万千亿磅度伏瓦毫",
    *"小时 分钟 分贝 刻钟 公斤 公里 厘米 星期 礼拜 平方 立方 英里 英尺 英镑 赫兹".split(),
    *"美元 欧元 港元 韩元 澳元 加元 日元".split(),
    *"個隻臺塊歲點張條雙對間",
)
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_FREE = r"(?<![\d.,:/])"
_TO = r" ?[-–~～至到] ?"
_NOT_LETTER = r"(?![A-Za-z])"


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted((re.escape(word) for word in words), key=len, reverse=True))


# --- dates and times ---------------------------------------------------------------------------------------


def _date(found: re.Match[str]) -> str:
    year, month, day = found[1], int(found[3]), int(found[4])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return found[0]
    return read(f"{year}-{month:02}-{day:02}", "zh")


def _time(found: re.Match[str]) -> str:
    hour, minute, second, half = int(found[1]), found[2], found[3], found[4]
    if hour > 24:
        return found[0]
    rest = f":{minute}" + (f":{second}" if second else "")
    if hour == 0:  # wetext: 零比零五
        return "零" + read(f"1{rest}", "zh").removeprefix("一")
    return (_half(half) if half else "") + read(f"{hour}{rest}", "zh")


def _half(letter: str) -> str:
    return "上午" if letter in "Aa" else "下午"


# --- amounts -----------------------------------------------------------------------------------------------

_MONEY = {
    "¥": "元", "￥": "元", "$": "美元", "US$": "美元", "HK$": "港元", "NT$": "新台币", "A$": "澳元",
    "C$": "加元", "S$": "新加坡元", "€": "欧元", "£": "英镑", "₩": "韩元", "₹": "卢比", "₽": "卢布",
    "USD": "美元", "EUR": "欧元", "GBP": "英镑", "JPY": "日元", "CNY": "元", "RMB": "元", "HKD": "港元",
    "AUD": "澳元", "CAD": "加元", "SGD": "新加坡元", "KRW": "韩元", "CHF": "瑞士法郎",
}  # fmt: skip
_SIZES = {
    "k": 10**3, "thousand": 10**3, "m": 10**6, "mn": 10**6, "million": 10**6, "b": 10**9, "bn": 10**9,
    "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_SIZE = (
    r"(?: ?(?P<size>thousand|million|billion|trillion|[kKmMbB]|[mb]n)(?![A-Za-z])"
    r"| ?(?P<wan>[十百千]?[万亿]|千))?"
)
_SYMBOL = _any(name for name in _MONEY if not name.isalpha())
_CODE = _any(name for name in _MONEY if name.isalpha())


def _money(found: re.Match[str]) -> str:
    amount, until, size = found["amount"], found["until"], found["size"]
    name = (found["wan"] or "") + _MONEY[found["name"]]
    if size:
        amount = _sized(amount, size)
        until = until and _sized(until, size)
    one = _trimmed(amount) if until else _amount(_trimmed(amount), name)
    said = f"{number(one) if one[0].isdigit() else one}到{_amount(_trimmed(until), name)}" if until else one
    return ("负" if found["minus"] else "") + said


def _amount(run: str, name: str) -> str:
    """`run` may end in 万 or 亿."""
    tail = run.lstrip("0123456789,.")
    run = run.removesuffix(tail)
    return counted(run, tail + name) + tail + name


def _sized(run: str, size: str) -> str:
    """1.5 million -> 150万; nobody multiplies a number of more than 12 digits."""
    if len(run) > _MOST_DIGITS:
        return run
    value = Decimal(run.replace(",", "")) * _SIZES[size.lower()]
    for name, unit in (("亿", 10**8), ("万", 10**4)):
        if value >= unit and value % (unit // 100) == 0:
            return f"{(value / unit).normalize():f}{name}"
    return f"{value.normalize():f}"


def _trimmed(run: str) -> str:
    """3.50 元 is 三点五元."""
    return run.rstrip("0").rstrip(".") if "." in run else run


# The names that wetext has right come from it; it reads "mA" as 米A, "kWh" as 千瓦h, and knows no V, W, Hz.
# GB, MB and the like are said as letters.
_KNOWN = "m km cm mm nm kg mg lb lbs oz ft mi ms s min h kW ml L °C °F ° kcal ha m2 m² m³ km² rpm".split()
_OWN = {
    "g": "克", "mL": "毫升", "m/s": "米每秒", "km/h": "公里每小时", "kph": "公里每小时", "mph": "英里每小时",
    "Mbps": "兆比特每秒", "Gbps": "吉比特每秒", "kWh": "千瓦时", "MW": "兆瓦", "W": "瓦", "mV": "毫伏",
    "V": "伏", "mA": "毫安", "mAh": "毫安时", "Hz": "赫兹", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫",
    "sec": "秒", "mins": "分钟", "hr": "小时", "hrs": "小时", "dB": "分贝", "cal": "卡", "kJ": "千焦",
    "hPa": "百帕", "kPa": "千帕", "m squared": "平方米", "km squared": "平方千米", "m cubed": "立方米",
    "m3": "立方米", "px": "像素", "fps": "帧每秒",
}  # fmt: skip
_UNIT = _any((*_KNOWN, *_OWN))


def _measure(found: re.Match[str]) -> str:
    minus, amount, until, unit = found.groups()
    name = _OWN.get(unit) or read(f"5{unit}", "zh").removeprefix("五")
    below = "零下" if unit[0] == "°" else "负"
    said = f"{number(amount)}到" if until else ""
    return (below if minus else "") + said + counted(until or amount, name) + name


def _percent(found: re.Match[str]) -> str:
    sign, amount, until, of = found.groups()
    of = "百分之" if of == "%" else "千分之"
    said = of + number(amount) + (f"到{of}{number(until)}" if until else "")
    return _SIGNS.get(sign, "") + said


_SIGNS = {"-": "负", "+": "正"}


# --- the rest ----------------------------------------------------------------------------------------------


def _each_called(found: re.Match[str]) -> str:
    """The numbers after a word such as 拨打, one by one."""
    return _RUN.sub(lambda run: called(run[0]), found[0])


_RUN = re.compile(r"\d+")


def _dotted(found: re.Match[str]) -> str:
    """A version (二点零点一) or an IP address, digit by digit."""
    parts = found[1].split(".")
    return "点".join(digits(part) if len(parts) == 4 else cardinal(part) for part in parts)


def _fraction(found: re.Match[str]) -> str:
    whole, over, under = found.groups()
    return (f"{number(whole)}又" if whole else "") + f"{cardinal(under)}分之{cardinal(over)}"


def _named(found: re.Match[str]) -> str:
    """What stands behind letters: CA1234 digit by digit, A4 and iPhone 15 as numbers."""
    return called(found[1]) if len(found[1]) > 2 and found[1][-2:] != "00" else cardinal(found[1])


def _wide(found: re.Match[str]) -> str:
    return _WIDE[found[1]]


_WIDE = {",": "，", "!": "！", "?": "？", ":": "：", ";": "；", ".": "。"}
_CALL = "拨打|拨|致电|打电话|呼叫|联系|电话|热线|报警|客服|号码|急救|火警|匪警|按"
_SECRET = (
    "验证码|密码|订单|单号|编号|房间号|房号|QQ号?|微信号?|尾号|身份证号?码?|车牌号?|学号|工号|卡号|账号|"
    "邮编|区号|代码|口令|航班号?|车次|PIN码?|[前后]\\d位"
)
_EVENT = "世界杯|欧洲杯|奥运|冬奥|亚运|赛季|财年|学年|春|夏|秋|冬|届|版|款"
_SPAN = "代|来|间|级|前|后|历史|时间|的历史|的时间"  # 90年来 is a span, 98年夏天 a year
_CLOCK = r"\d{1,2}[:：][0-5]\d(?![\d:：])"
_WON = "[获取战大小险]?[胜负平赢输]"


def _rule(pattern: str, say: Callable[[re.Match[str]], str]) -> Rule:
    """ASCII: a Chinese character beside a number is no letter."""
    return re.compile(pattern, re.ASCII), say


def _as_digits(found: re.Match[str]) -> str:
    return digits(found[0])


def _as_called(found: re.Match[str]) -> str:
    return called(found[0])


def _nothing(_: re.Match[str]) -> str:
    return ""


def _versus(found: re.Match[str]) -> str:
    return f"{found[1]}比"


def _to(found: re.Match[str]) -> str:
    return f"{found[1]}到"


_RULES: list[Rule] = [
    # dates: a year is read digit by digit
    _rule(rf"{_FREE}(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}})(?![\d/-]|\.\d)T?", _date),
    _rule(rf"{_FREE}\d{{4}}(?={_TO}\d{{4}}[学财]?年)", lambda found: f"{digits(found[0])}到"),
    _rule(rf"(?<=到){_TO}(?=\d{{4}}[学财]?年)", _nothing),
    _rule(rf"{_FREE}\d{{4}}(?=[学财]?年(?!级))", _as_digits),
    _rule(rf"{_FREE}\d\d(?=年 ?\d{{1,2}}月)", _as_digits),
    _rule(rf"{_FREE}[6-9]\d(?=年(?!{_SPAN}))", _as_digits),
    _rule(rf"{_FREE}\d0(?=后(?!\d))", _as_digits),
    _rule(rf"{_FREE}(?:19|20)\d\d(?= ?(?:{_EVENT}))", _as_digits),
    _rule(rf"{_FREE}(\d{{3}}0)s{_NOT_LETTER}", lambda found: f"{digits(found[1])}年代"),
    _rule(rf"([月日号]){_TO}(?=\d{{1,2}}[月日号])", _to),
    # scores and times
    _rule(r"((?:比分|战平|战胜|击败|输给?|[赢胜负以])[^\d，。]{0,3}\d+) ?[-:：] ?(?=\d)", _versus),
    _rule(rf"(\d) ?[-:：] ?(?=\d+ ?{_WON})", _versus),
    _rule(rf"({_CLOCK}){_TO}(?={_CLOCK})", _to),
    _rule(
        rf"{_FREE}(\d{{1,2}})[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?: ?([AaPp])[Mm]{_NOT_LETTER})?(?![\d:：])",
        _time,
    ),
    _rule(
        rf"{_FREE}(\d{{1,2}}) ?([AaPp])[Mm]{_NOT_LETTER}",
        lambda found: f"{_half(found[2])}{counted(found[1], '点')}点",
    ),
    _rule(r"(?<=\d)[:：](?=\d)", lambda _: "比"),
    # money
    _rule(
        rf"(?P<minus>-)?(?P<name>{_SYMBOL}) ?(?P<amount>{_NUMBER})"
        rf"(?:{_TO}(?:{_SYMBOL})?(?P<until>{_NUMBER}))?{_SIZE}",
        _money,
    ),
    _rule(
        rf"(?<![\d.,])(?P<minus>-)?(?P<amount>{_NUMBER})(?:{_TO}(?P<until>{_NUMBER}))?{_SIZE}"
        rf" ?(?P<name>{_CODE}){_NOT_LETTER}",
        _money,
    ),
    _rule(r"(?<=\d)\.\d++(?=[万亿]?[元块])", lambda found: _trimmed(found[0])),
    # shares and measures
    _rule(rf"(?<![\d.])([-+])?({_NUMBER})(?: ?%?{_TO}({_NUMBER}))? ?([%‰])", _percent),
    _rule(rf"(?<![\d.])(-)?({_NUMBER})(?:{_TO}({_NUMBER}))? ?({_UNIT})(?![A-Za-z²³\d])", _measure),
    _rule(rf"(?<![\w)])-(?={_NUMBER} ?(?:摄氏度|华氏度|度))", lambda _: "零下"),
    _rule(rf"{_FREE}(?:(\d{{1,3}}) )?([1-9]\d{{0,5}})/([1-9]\d{{0,5}})(?![\d/]|[.,]\d)", _fraction),
    # what is read digit by digit
    _rule(
        rf"(?:{_CALL})[^\d，。,.]{{0,6}}\d{{3,}}(?:[、或和/,]\d{{3,}})*(?![\d.万亿元个块])",
        _each_called,
    ),
    _rule(rf"(?:{_SECRET})[是为号码：: ]{{0,4}}[A-Za-z]{{0,3}}-?\d{{3,}}", _each_called),
    _rule(r"(?<![\d.])\d{3,4}(?=室|房|路|号房)", _as_called),
    _rule(r"(?<![\d.,])(?:1(?:00|23)\d\d|9[56]\d{3})(?![\d.,]|[^\x00-\x7f]?[个元人米年位])", _as_called),
    _rule(r"(?<![\w.])(?:[vV](?=\d))?(\d{1,6}(?:\.\d{1,6}){2,7})(?!\.?\d)", _dotted),
    _rule(r"(?<=[A-Za-z])-?(\d+)(?!\d*\.\d)", _named),
    _rule(rf"{_FREE}(\d{{1,12}})(?:st|nd|rd|th){_NOT_LETTER}", lambda found: f"第{cardinal(found[1])}"),
    _rule(r"\b[Nn][Oo]\. ?(\d{1,12})", lambda found: f"第{cardinal(found[1])}"),
    _rule(r"#(\d{1,12})", lambda found: f"{cardinal(found[1])}号"),
    # sums and ranges
    _rule(rf"(?<![\d.,])({_NUMBER}) ?- ?(?={_NUMBER} ?(?:=|等于))", lambda found: f"{found[1]}减"),
    _rule(rf"(?<![\d.,-])({_NUMBER}[万亿千百]?){_TO}(?={_NUMBER}(?!-))", _to),
    _rule(r"(?<=\d)\+(?=\d)", lambda _: "加"),
    _rule(r"(?<=[\d万亿千百])\+", lambda _: "多"),
    _rule(r"(?<![\w)])-(?=\d)", lambda _: "负"),
    _rule(r"(?<!\w)\+(?=\d)", lambda _: "正"),
    # plain numbers
    _rule(rf"(第|月|周|星期|礼拜)({_NUMBER})", lambda found: found[1] + number(found[2])),
    _rule(r"(?<=点)(\d{1,2})(?=分(?!钟))", lambda found: number(found[1])),
    _rule(r"(?<![\d.])2(?=年级|号|月|日|楼|班|等)", _as_digits),
    _rule(
        rf"(?<![\d.,])({_NUMBER})(?=到(?:{_NUMBER}(\D{{0,3}}))?)",
        lambda found: counted(found[1], found[2] or ""),
    ),
    _rule(_NUMBER, lambda found: counted(found[0], found.string[found.end() :].lstrip(" ")[:3])),
    # what follows characters now, as a careful writer sets it
    _rule(r"(?<=[^\x00-\u2e7f])([,!?:;]|\.(?![\w.])) ?", _wide),
    _rule(
        rf"(?<=[{_HAN}]) (?![{_NUMERALS}])(?=[{_HAN}])|(?<![{_NUMERALS}])(?<=[{_HAN}]) (?=[{_HAN}])", _nothing
    ),
]
