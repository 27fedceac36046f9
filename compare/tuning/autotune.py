"""Autotuning searches, recorded in the worker process that makes them.

``triton.autotune`` searches at the first call of a class of shapes; its own disk cache does not name the GPU.
Here it gets the configurations of earlier runs, and new ones are recorded.  torch.compile's max-autotune has
its own cache: its log is recorded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from triton.runtime.autotuner import Autotuner

from compare.capture import replaced
from compare.model.result import Tuning

Tell = Callable[[Tuning], None]


@contextmanager
def watched(known: Sequence[Tuning]) -> Iterator[list[Tuning]]:
    """Record the searches of this process.

    Args:
        known: configurations that need no new search.

    Yields:
        A list that gets each configuration, found or taken from ``known``.
    """
    found: list[Tuning] = []
    with ExitStack() as stack:
        stack.enter_context(replaced(Autotuner, "run", _of_triton(Autotuner.run, known, found.append)))
        # Not imported here: that takes seconds, and code that uses Inductor has imported it.
        if inductor := sys.modules.get("torch._inductor.select_algorithm"):
            cache = inductor.AlgorithmSelectorCache
            watching = staticmethod(_of_inductor(cache.log_results, found.append))
            stack.enter_context(replaced(cache, "log_results", watching))
        yield found


def described(config: Any) -> str:
    """A ``triton.Config`` as text: ``BLOCK_M=128 BLOCK_N=256 num_warps=8 num_stages=3``."""
    values = {**config.kwargs, **config.all_kwargs()}
    return " ".join(f"{name}={value}" for name, value in values.items() if (name, value) != ("num_ctas", 1))


def _of_triton(run: Callable[..., Any], known: Sequence[Tuning], tell: Tell) -> Callable[..., Any]:
    """``Autotuner.run`` with the ``known`` configurations; tells the one that each call ran with."""
    tunings: dict[tuple[str, str], Tuning] = {}
    """By kernel and configuration: the last search that found it."""

    def watching(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tuner.configs) < 2:
            return run(tuner, *args, **kwargs)
        kernel = tuner.base_fn.__name__
        configs = {described(config): config for config in tuner.configs}
        for tuning in known:
            with suppress(ValueError, SyntaxError):  # a key that is not made of numbers and texts
                if tuning.kernel == kernel and tuning.found in configs:
                    tuner.cache.setdefault(ast.literal_eval(tuning.key), configs[tuning.found])
                    tunings.setdefault((kernel, tuning.found), replace(tuning, kept=True))
        before = set(tuner.cache)
        result = run(tuner, *args, **kwargs)
        found = described(tuner.best_config)
        for key in tuner.cache.keys() - before:
            timed = len(tuner.configs_timings)
            search_s = getattr(tuner, "bench_time", 0.0)  # absent with Triton's own cache
            tunings[kernel, found] = Tuning(kernel, str(key), found, tuple(configs), timed, search_s)
        if (kernel, found) in tunings:
            tell(tunings[kernel, found])
        return result

    return watching


def _of_inductor(log_results: Callable[..., None], tell: Tell) -> Callable[..., None]:
    """``AlgorithmSelectorCache.log_results``, which tells the choices that max-autotune timed."""

    def watching(
        name: str,
        nodes: Any,
        timings: dict[Any, float],
        elapse: float,
        precompile_elapse: float,
        *more: Any,
        **named: Any,
    ) -> None:
        if timings:
            space = tuple(map(_choice, timings))
            found = _choice(min(timings, key=timings.__getitem__))
            tell(Tuning(name, "", found, space, len(space), elapse + precompile_elapse))
        log_results(name, nodes, timings, elapse, precompile_elapse, *more, **named)

    return watching


def _choice(choice: Any) -> str:
    """A choice of Inductor as text: the kernel's name, and the constants of a generated one."""
    text = getattr(choice, "description", "") or ""
    return f"{choice.name}: {text}" if text else str(choice.name)
