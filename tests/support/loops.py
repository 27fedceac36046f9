"""One test for many alike inputs that each take milliseconds: all are tried, and all failures are shown."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


def for_each(names: str, values: Iterable[Any], ids: Callable[[Any], str] = str) -> Callable[[Test], Test]:
    """Call a test once for each of ``values``, as `pytest.mark.parametrize` does, but within one test.

    The calls share their fixtures.  A value that is skipped does not count; if all are, the test is.

    Args:
        names: the argument, or several with commas between them, each value then a tuple of as many.
        values: at least one.
        ids: how a failure names its value.
    """
    cases = list(values)
    if not cases:
        raise ValueError(f"for_each({names!r}): no values, so the test could not fail")

    def decorate(test: Test) -> Test:
        return _with_arguments(test, names, lambda **fixtures: _call_all(test, names, cases, ids, fixtures))

    return decorate


def for_each_of_group(
    names: str,
    groups: Mapping[str, Iterable[Any]],
    ids: Callable[[Any], str] = str,
    thorough: Callable[[str], bool] = lambda group: False,
) -> Callable[[Test], Test]:
    """As `for_each`, with one test for each group of values, named after it.

    Args:
        thorough: whether `make test` leaves a group out.
    """

    def decorate(test: Test) -> Test:
        def grouped(group: list[Any], **fixtures: Any) -> None:
            _call_all(test, names, group, ids, fixtures)

        params = [
            pytest.param(list(values), id=name, marks=[pytest.mark.thorough] if thorough(name) else [])
            for name, values in groups.items()
        ]
        return pytest.mark.parametrize("group", params)(_with_arguments(test, names, grouped, "group"))

    return decorate


def _call_all(
    test: Test, names: str, cases: list[Any], ids: Callable[[Any], str], fixtures: Mapping[str, Any]
) -> None:
    parameters = [name.strip() for name in names.split(",")]
    failures: list[str] = []
    skips: list[str] = []
    for case in cases:
        given = dict(zip(parameters, case if len(parameters) > 1 else (case,), strict=True))
        try:
            test(**given, **fixtures)
        except pytest.skip.Exception as skip:
            skips.append(str(skip))
        except (Exception, pytest.fail.Exception):
            failures.append(f"{ids(case)}:\n{traceback.format_exc()}")
    if failures:
        pytest.fail(f"{len(failures)} of {len(cases)} failed\n" + "\n".join(failures), pytrace=False)
    if len(skips) == len(cases):
        pytest.skip(skips[0] if skips else "an empty group")


def _with_arguments(test: Test, without: str, run: Test, *added: str) -> Test:
    """``run``, named and marked as ``test``, with its fixtures and the arguments ``added``."""

    @functools.wraps(test)
    def looped(**arguments: Any) -> None:
        run(**arguments)

    signature = inspect.signature(test)
    looped_over = {name.strip() for name in without.split(",")}
    kept = [each for name, each in signature.parameters.items() if name not in looped_over]
    new = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in added]
    looped.__signature__ = signature.replace(parameters=[*kept, *new])  # type: ignore[attr-defined]
    return looped
