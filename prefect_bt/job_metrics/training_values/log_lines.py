"""Parse the lines of trainers: the step, and the values under the trainer's own names.

    {'loss': 1.2, 'learning_rate': 1e-05}      a dict, as the HF Trainer prints it, or JSON
     4%|▍    | 10/240 [00:05<02:00, loss=1.2]  a progress bar
    step 10/240 loss 1.2 lr 1e-4               text: names before numbers

A line counts only if it has a known metric, and a step or a result such as a loss.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

MAX_LINE: Final = 8192
"""Characters of the longest line that is parsed."""
MAX_VALUES: Final = 32
MAX_NAME: Final = 80
MAX_STEP: Final = 1 << 53
_MAX_WORDS: Final = 6
_MAX_BETWEEN: Final = 200
"""Characters before a number in which its name is looked for."""
_CLOCK: Final = 1e9
"""A `time` of more seconds is a time of day."""

_HINTS: Final = ("loss", "step", "epoch", "iter", "%|", "reward", "accura", "perplex")
"""Each line that counts contains one of them."""
_DIGIT: Final = re.compile("[0-9]")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]{0,48}[A-Za-z]")
_PREFIX: Final = re.compile(r"^(?:\[(?:rank|default)\d+\]: ?)?(?:[A-Z]{4,8}:[\w.]{1,80}:)?")
"""What torchrun and `logging` put before a line: `[rank0]: INFO:root:`."""

_RESULT: Final = r"loss(?:es)?|perplexity|ppl|acc(?:uracy)?|rewards?"
_METRIC: Final = (
    rf"{_RESULT}|lr|learning[ _]rate|grad(?:ient)?[ _]?norm|gnorm|entropy|kl|mfu|tflops|tps"
    r"|(?:tok(?:en)?s?|samples?)(?:/s|/sec|/second|_per_sec\w*)|steps?[ _]time|iteration[ _]time"
    r"|iter_time|it/s"
)
_END: Final = r"(?=$|[/@(\d]|_(?:mean|avg|step|epoch|\d)| (?:train|val)$)"
_RESULT_NAME: Final = re.compile(rf"(?:^|(?<!target)[\W_])(?:{_RESULT}){_END}", re.IGNORECASE)
_METRIC_NAME: Final = re.compile(rf"(?:^|[\W_])(?:{_METRIC}){_END}", re.IGNORECASE)
_KIND: Final = (
    r"train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test|lm|avg|average|mean|total|running"
)
_BARE_NAME: Final = re.compile(
    rf"(?:(?:{_KIND}) ){{0,2}}(?:[\w/]{{0,40}}[_/])?(?:{_METRIC}|time|dt)$", re.IGNORECASE
)
"""A name that may be before a number without `:` or `=`."""
_RUN_STEPS: Final = {
    *("global_step", "global step", "trainer/global_step", "global_step/max_steps"),
    *("train/global_step", "num_updates", "current_steps"),
}
"""Names of steps that win over others in the line."""
_STEP_NAMES: Final = _RUN_STEPS | {"step", "_step", "train_step", "iteration", "iter", "it"}
TOTAL_STEPS: Final = "total_steps"
_IGNORED: Final = {
    *("timestamp", "ts", "_timestamp", "created", "pid", "process", "thread", "lineno", "line"),
    *("level", "rank", "local_rank", "v_num", "eta", "port", "seed", "version", "total_flos"),
    *("total_steps", "max_steps", "percentage", "remaining_time"),
}
_FIRST_NAME: Final = re.compile(rf"(?<![:.])(?:step|iter|epoch|global|batch|{_METRIC})")
"""Where the values of a text begin; the prefix of a logger is before it."""
_NAME_BEFORE: Final = re.compile(rf"(?:\b(?:{_KIND}) )?[\w/@-]{{0,60}}$", re.IGNORECASE)
_FLOAT: Final = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?)\b)"
_NUMBER: Final = re.compile(rf"(?<![\w.]){_FLOAT}")
_PAIR: Final = re.compile(
    rf"'([^'\n]{{1,{MAX_NAME}}})': (?:np\.\w+\(|tensor\()?'?({_FLOAT})(?=['),%/}}])"
)
_NOT_A_VALUE: Final = re.compile(r"[:.-]\d| ?/ ?\d| ?[*<>=]")
"""After the hours of a time, the year of a date, the part of a version or of an expression."""
_WRAPPER: Final = re.compile(r"(?:np\.\w+|tensor)\($")
_OF_TOTAL: Final = re.compile(r"\s?/\s*(\d+)")
_GLUED: Final = re.compile(r"[\w%/]+")
_SCALES: Final = {"k": 1e3, "K": 1e3, "M": 1e6}
_RATE: Final = re.compile(r"(?:\w?\s?)((?:tok(?:en)?s?|samples?)/s(?:ec|econd)?)\b")
_DELIMITER: Final = re.compile(r"[|,;\t]| - |  +|: ")
_AFTER_EPOCH: Final = {"][", ":", "|"}

_BAR: Final = re.compile(r"\d%\|[^|\n]{0,300}\| *(\d+)/(\d+) \[")
_OPEN_BAR: Final = re.compile(r"(?:^|: )(\d+)it \[\d\d:")
_WIDE_BAR: Final = re.compile(r"(?:^\s*(\d+)/(\d+) (?=[\[━])|(?<![╸╺━ ])[╸╺━ ]{2,300}(\d+)/(\d+) )")
_BAR_NAME: Final = re.compile(r"train|epoch|step|iter|fit|loss", re.IGNORECASE)
_EPOCH: Final = re.compile(r"\bepoch:? *\[?(\d+)\b(?!\.\d)(/?)", re.IGNORECASE)
_TORCHTUNE: Final = re.compile(rf"\d+\|(\d+)\|(Loss): ({_FLOAT})")


class ParsedLine(NamedTuple):
    """The values of a line, and the step if the line or a progress bar before it has one."""

    step: int | None
    values: dict[str, float]


class _Bar(NamedTuple):
    step: int
    total: int
    end: int
    """Where the values beside the bar begin."""


def is_candidate(line: str) -> bool:
    """Return whether a line may have values or a bar; cheap, for every line that is printed."""
    if len(line) > MAX_LINE or _DIGIT.search(line) is None:
        return False
    lower = line.lower()
    return any(map(lower.__contains__, _HINTS))


def make_point(pairs: Iterable[tuple[str, Any]]) -> ParsedLine:
    """Return the step and the other numbers of an object, under their names."""
    step, is_of_run = None, False
    values = dict[str, float]()
    for name, given in pairs:
        lower = name.lower()
        value = to_number(given)
        if lower in _STEP_NAMES:
            wins = lower in _RUN_STEPS
            if value is not None and 0 <= value < MAX_STEP and (step is None or wins > is_of_run):
                step, is_of_run = int(value), wins
        elif value is None or not name or lower in _IGNORED or len(values) == MAX_VALUES:
            continue
        elif lower != "time" or value < _CLOCK:
            values[name[:MAX_NAME]] = value
    return ParsedLine(step, values)


def as_object(given: object) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def parse_json(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one for anything else."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def to_number(given: object) -> float | None:
    """Return a number, or a text that is only one, as float; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        return float(given.partition("/")[0] if isinstance(given, str) else given)
    except (ValueError, OverflowError):
        return None


class LineParser:
    """Parses the lines of one log in their order."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None
        """The newest frame of the bar of the training."""
        self._other_bar: _Bar | None = None
        self._loss_step = -1
        """Step of the bar at the last dict with a loss."""
        self._epoch: tuple[int, int] | None = None
        """Epoch and step of the last line that has both."""
        self._first_epoch: int | None = None
        self._keras_epoch: int | None = None
        self._counts_in_epoch = False
        """Whether steps begin again in each epoch."""

    def parse(self, line: str) -> ParsedLine | None:
        """Return the values of a line; None if it has none."""
        if len(line) > MAX_LINE:
            return None
        line = _PREFIX.sub("", _COLOUR.sub("", line))
        before, brace, text = line.partition("{")
        if not brace or not line.rstrip().endswith("}"):
            return self._parse_text(line)
        if text.startswith('"'):
            document = parse_json(brace + text)
            message = document.get("message", document.get("msg"))
            parsed = self._select(*make_point(document.items()))
            return parsed or (self._parse_text(message) if isinstance(message, str) else None)
        self._read_bar(before)
        step, values = make_point(_PAIR.findall(text))
        if step is None:
            step = self._step_of_bar(values)
        return self._select(step, values, self._bar.total if self._bar else 0)

    def _step_of_bar(self, values: Mapping[str, float]) -> int | None:
        """Return the step of a dict that has none: that of the training's bar, not of another's."""
        bar, last = self._bar, self._loss_step
        if bar is None or "loss" not in values:
            return bar and bar.step
        if self._other_bar is not None and bar.total == last:
            bar = self._bar = self._other_bar  # that of another training
            self._other_bar = None
        self._loss_step = bar.step
        # Without a change, frames of the bar are missing since the last loss.
        return bar.step if bar.step != last else None

    def _read_bar(self, text: str) -> _Bar | None:
        """Return the progress of a training in this text; None without such a bar."""
        match = _BAR.search(text) or _OPEN_BAR.search(text)
        if match is None:
            return None
        name = text[: match.start()].rstrip(" 0123456789")
        if name and not _BAR_NAME.search(name):
            return None
        step, total = int(match[1]), int(match[2]) if match.re is _BAR else 0
        if total and (epoch := _EPOCH.search(name)):
            self._counts_in_epoch = True
            step = self._count(int(epoch[1]), step, total, has_last=bool(epoch[2]))
        bar = _Bar(step, total, match.end())
        if self._bar is None or self._bar.total == total or name:
            self._bar = bar
        else:
            self._other_bar = bar
        return bar

    def _count(self, epoch: int, step: int, total: int, *, has_last: bool) -> int:
        """Return the step in the run from that in the epoch."""
        if self._first_epoch is None:
            self._first_epoch = int(epoch == 1 or (has_last and epoch > 0))
        if self._epoch is not None and epoch > self._epoch[0] and step < self._epoch[1]:
            self._counts_in_epoch = True
        self._epoch = epoch, step
        if not self._counts_in_epoch:
            return step
        return max(epoch - self._first_epoch, 0) * total + step

    def _select(
        self, step: int | None, values: dict[str, float], total: int = 0
    ) -> ParsedLine | None:
        """Return the point if it is one of a training: a metric with a step, or a result.

        Add TOTAL_STEPS at the last step of `total`, after which a training may be silent.
        """
        if total and step == total and not self._counts_in_epoch and len(values) < MAX_VALUES:
            values[TOTAL_STEPS] = total
        pattern = _RESULT_NAME if step is None else _METRIC_NAME
        return ParsedLine(step, values) if any(map(pattern.search, values)) else None

    def _read_wide_bar(self, line: str) -> _Bar | None:
        """Return the progress in a bar of Keras, whose epoch is in a line before, or of rich."""
        match = _WIDE_BAR.search(line) if "━" in line or "/" in line[:24] else None
        if match is None:
            return None
        step, total = int(match[1] or match[3]), int(match[2] or match[4])
        epoch = _EPOCH.search(line, 0, match.end())
        number = int(epoch[1]) if epoch else self._keras_epoch
        if number is not None:
            self._counts_in_epoch = True
            step = self._count(number, step, total, has_last=True)
        return _Bar(step, 0, match.end())

    def _parse_text(self, line: str) -> ParsedLine | None:
        if bar := self._read_bar(line) or self._read_wide_bar(line):
            step, values = make_point(named[:2] for named in _read_names(line[bar.end :]))
            if match := _TORCHTUNE.match(line):
                step, values[match[2]] = int(match[1]), float(match[3])
            return self._select(bar.step if step is None else step, values, bar.total)
        if (first := _FIRST_NAME.search(line.lower())) is None:
            return None
        before = _NAME_BEFORE.search(line, max(first.start() - MAX_NAME, 0), first.start())
        names = list(_read_names(line[(before or first).start() :]))
        step, values = make_point(named[:2] for named in names)
        if step is None:
            step = next((int(v) for name, v, of in names if of and not name and v < MAX_STEP), None)
        total = max(
            (of for name, v, of in names if v == step and name.lower() != "epoch"), default=0
        )
        epoch = values.get("epoch", values.get("Epoch"))
        if epoch is not None and epoch.is_integer():
            if step is None and len(names) == 1:
                self._keras_epoch = int(epoch)
            elif step is not None and total:
                step = self._count(int(epoch), step, total, has_last=True)
        if step is None and (line[:1].isspace() or all(v.is_integer() for v in values.values())):
            return None
        return self._select(step, values, total)


def _read_names(text: str) -> Iterable[tuple[str, float, int]]:
    """Yield each named number of a text and the total that is behind it: `10/240`.

    The name of a number directly after the epoch's is "".
    """
    end, after_epoch = 0, False
    for match in _NUMBER.finditer(text):
        between = text[max(end, match.start() - _MAX_BETWEEN) : match.start()]
        if end and (glued := _GLUED.match(between)):
            between = between[glued.end() :]
        name, value = _extract_name(between), float(match[0].replace(",", ""))
        if not math.isfinite(value) and not name:
            continue  # a word of a name: `number of nan iterations`
        end = match.end()
        of = _OF_TOTAL.match(text, end)
        lower = name.lower()
        if of and lower == "batch":
            name, after_epoch, between = "", True, ":"
        counts = lower in _STEP_NAMES or lower == "epoch"
        counts = counts or (after_epoch and between.strip(" ") in _AFTER_EPOCH)
        if not name and (rate := _RATE.match(text, end)):
            name = rate[1]
        if counts or (name and not _NOT_A_VALUE.match(text, end)):
            if not text[end + 1 : end + 2].isalnum():
                value *= _SCALES.get(text[end : end + 1], 1.0)
            yield name, value, int(of[1]) if of and counts else 0
        after_epoch = lower == "epoch" or (after_epoch and between.strip() == "/")


@lru_cache(1024)
def _extract_name(between: str) -> str:
    """Return the name at the end of the text before a number; "" without one."""
    core = _WRAPPER.sub("", between).rstrip(" \t[(")
    has_sign = core[-1:] in {":", "="}
    name = _DELIMITER.split(core.rstrip(":= \t"))[-1].strip(" -:>\"'").lstrip(")]}[({ ")
    name = name.removesuffix("(train)")
    if name.lower() in _STEP_NAMES or name.lower() == "epoch":
        return name
    is_word = (name[:1].isalpha() or name[:1] == "_") and "=" not in name
    if has_sign and is_word and name.count(" ") < _MAX_WORDS:
        return name
    if has_sign or between[-1:] in {" ", "\t"}:
        bare = _BARE_NAME.search(name)
        return bare[0] if bare else ""
    return ""
