"""Fields of what may come from anyone: their types say what they may hold, `complaint` says what does not fit.

The types are msgspec's, such as ``Annotated[int, Meta(ge=1, le=64)]``. In the ``extra`` of a type, ``is`` says in words
what is expected, and ``of`` what is counted.

msgspec decides what fits; the words are ours, since its own tell one bound and never the value that came. It also
passes over a field that is misspelled, for which `read` names the one that is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

try:
    import msgspec
    from msgspec import Meta as Meta
    from msgspec import inspect
except ModuleNotFoundError:  # in the environment of an engine, where records come that were checked before

    class Meta:  # type: ignore[no-redef]
        def __init__(self, **bounds: Any) -> None: ...


from eqcheck.contract.errors import CaseError, UsageError, did_you_mean

R = TypeVar("R")
Rule = Callable[[Any], Iterable[str]]
"""It yields complaints of fields together, a line each."""


@cache
def types(record: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    hints = get_type_hints(record, include_extras=True)
    return {field.name: hints[field.name] for field in fields(record)}


def complaint(name: str, value: Any, hint: Any) -> str:
    """Return why a value is none of a field's, in one line that names the field; empty where it is one.

    >>> from typing import Annotated
    >>> complaint("accepts", (1, 9), tuple[Annotated[int, msgspec.Meta(ge=0, le=8)], ...])
    'accepts: expected 0..8, got 9'
    """
    try:
        if msgspec.convert(value, hint) == value:  # it takes a list for a tuple
            return ""
    except msgspec.ValidationError:
        pass
    return _complaint(name, value, inspect.type_info(hint), {})


def _complaint(name: str, value: Any, kind: inspect.Type, said: Mapping[str, str]) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return _complaint(name, value, inner, extra or {})
        case inspect.UnionType(types=(inner, *_)):
            return "" if value is None else _complaint(name, value, inner, said)
        case inspect.VarTupleType(item_type=item) if isinstance(value, tuple) and len(value) >= (kind.min_length or 0):
            if kind.max_length is not None and len(value) > kind.max_length:
                return f"{name}: expected at most {kind.max_length}{said.get('of', '')}, got {len(value)}"
            numbered = isinstance(getattr(item, "type", item), inspect.VarTupleType | inspect.DataclassType)
            places = (f"{name}[{index}]" if numbered else name for index in range(len(value)))
            return _first(_complaint(place, each, item, {}) for place, each in zip(places, value, strict=True))
        case inspect.TupleType(item_types=items) if isinstance(value, tuple) and len(value) == len(items):
            return _first(_complaint(name, each, item, {}) for each, item in zip(value, items, strict=True))
        case inspect.StrType(max_length=int(most)) if isinstance(value, str) and len(value) > most:
            return f"{name}: expected at most {most} characters, got {len(value)}"
        case inspect.StrType():
            right, expected = isinstance(value, str), "text"
        case inspect.IntType(ge=least, le=most) if number and isinstance(value, int):
            right = (least is None or least <= value) and (most is None or value <= most)
            expected = f"{least}..{most}"
        case inspect.IntType():
            right, expected = False, "an integer"
        case inspect.FloatType(ge=least, le=most):
            span = f"{least:g} to {most:g}"
            right, expected = number and least <= value <= most, span if number else f"a number from {span}"
        case inspect.BoolType():
            right, expected = isinstance(value, bool), "true or false"
        case inspect.LiteralType(values=values):
            right, expected = value in values, f"one of {values}"
        case inspect.DataclassType(cls=record):
            right, expected = isinstance(value, record), f"a {record.__name__}"
        case _:
            right, expected = False, "a tuple (in JSON a list)"
    return "" if right else f"{name}: expected {said.get('is', expected)}, got {shown(value)}"


def _first(said: Iterable[str]) -> str:
    return next(filter(None, said), "")


def within(name: str, numbers: Iterable[Any], least: int, most: int) -> Iterator[str]:
    """A complaint of each that is no integer from ``least`` to ``most``."""
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            yield f"{name}: expected an integer, got {shown(number)}"
        elif not least <= number <= most:
            yield f"{name}: expected {least}..{most}, got {number}"


def among(name: str, value: Any, allowed: Collection[str]) -> Iterator[str]:
    """A complaint of a value that is none of the ``allowed``."""
    if value not in allowed:
        yield f"{name}: expected one of {tuple(allowed)}, got {shown(value)}"


def shown(value: Any) -> str:
    """A value as a message shows it: cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check(record: Any, rules: Iterable[Rule], error: type[UsageError] = CaseError) -> None:
    """Raise an ``error`` with the first complaint: of the fields' types, then of the rules of fields together.

    Types are not looked at where msgspec is missing.
    """
    for name, hint in types(record.__class__).items() if "msgspec" in globals() else ():
        if said := complaint(name, getattr(record, name), hint):
            raise error(said)
    for rule in rules:
        for said in rule(record):
            raise error(said)


Reader = Callable[[Any, str], Any]
"""It reads plain data; the text says where they stand."""


def read(record: type[R], data: Any, what: str, place: str = "", nested: tuple[str, Reader] | None = None) -> R:
    """The record that JSON has: lists are tuples, and the items of a field that is ``nested`` are records.

    Raises `CaseError` where ``data`` is no object, names a field that is not there, or lacks one that is needed; it
    begins with ``what`` is read, and what is wrong with a field with the ``place`` of the record.
    """
    if not isinstance(data, Mapping):
        raise CaseError(f"{what}expected an object, got {type(data).__name__}")
    known = {field.name: field for field in fields(record)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise CaseError(f"{what}unknown field {shown(name)}{did_you_mean(str(name), known)}")
    for name, field in known.items():
        if name not in data and field.default is MISSING:
            raise CaseError(f"{what}field {name!r} is missing")
    values = {name: _tuples(value) for name, value in data.items()}
    if nested and isinstance(values.get(nested[0]), tuple):
        name, reader = nested
        values[name] = tuple(reader(item, f"{place}{name}[{number}]") for number, item in enumerate(data[name]))
    try:
        return record(**values)
    except UsageError as error:
        raise CaseError(f"{place}{error}") from error


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def plain(record: Any, omitted: Collection[str] | None = ()) -> dict[str, Any]:
    """A record as JSON has it: tuples are lists.

    Fields that are ``omitted``, all where this is None, are there if they are not at their defaults. Records in it say
    by a class variable of this name which of theirs are.
    """
    names = [field.name for field in fields(record)] if omitted is None else omitted
    held = ((field, getattr(record, field.name)) for field in fields(record))
    return {field.name: _plain(it) for field, it in held if field.name not in names or it != field.default}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_plain, value))
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else plain(value, getattr(value, "omitted", ()))
    return value
