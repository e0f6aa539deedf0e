"""YAML as people mean it: 1e-5 is a number, yes and 010 are text, a key may stand only once in a section."""

from __future__ import annotations

import re
from typing import Any

import yaml

from ..errors import UsageError

_NUMBER_START = list("-+0123456789.")


class DuplicateKey(yaml.MarkedYAMLError):
    """A key that stands twice in one section."""


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the plain scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not supported; use extends", problem_mark=self.peek_event().start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise DuplicateKey(problem=f"the key {key.value} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), _NUMBER_START)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
    ),
    _NUMBER_START,
)


def _float(loader: Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if text.lstrip("+-") in (".inf", ".nan") else text)


Loader.add_constructor("tag:yaml.org,2002:float", _float)


def shown(value: Any) -> str:
    """A value in a sentence: null, true and false as YAML has them, text in quotation marks, cut to 80 characters."""
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse(text: str, where: str) -> Any:
    """The value that text holds; raises UsageError with line and column where it is no YAML."""
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{where} is no valid YAML{place}: {error.problem}.", "Mend the line and try again.") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply.", "Write sections and values only.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{where} is no valid YAML: {' '.join(str(error).split())}.", "Mend it and try again.") from None
