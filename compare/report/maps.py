"""The map of what is recorded, as a screen, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from compare.history.map.summary import Summary, summaries
from compare.history.map.survey import Best, Map, Place, Point
from compare.report import markdown, terminal
from compare.report.tables import NOTHING, SAME, Table, number, percent, times
from compare.spec import WAYS

_LEGEND = (
    "Each way stands with its fastest implementation, cold. of the ceiling: of what a plain copy reached in "
    "the same run, or the library's product of two matrices (p) where arithmetic is nearer to bind. binds: "
    "what reaches 60% of its ceiling, or launching where the host takes longer than the GPU; in brackets the "
    "nearest, where none does. lines / tokens: kernel, launch and binding, without comments. "
    "within noise: the interval holds 1, or the difference is smaller than what equals show."
)
_OPS_LEGEND = (
    "fastest way: usually the nearest to the fastest of a case, over the cases in which launching does not "
    "bind; it stands with the implementation that is its best most often. times as fast: as the next way's "
    "best on the same case, cold: the median, the lowest and the highest; below 1 the next is faster. of the "
    "ceiling: the median. alone, level: on how many cases it is the fastest alone, and on how many it and "
    "another cannot be told apart. cases: how many count, of those on record. lines / tokens: kernel, launch "
    "and binding, without comments."
)
_FEW_LEGEND = "n: rounds, where they are too few for an interval."
_ACROSS_LEGEND = "~: recorded in different runs, so that the ratio is that of two medians."
_CHANGED_LEGEND = "*: its source has changed since it was recorded, or is no longer here."
FRONT_LEGEND = (
    "Effort: lines / tokens of kernel, launch and binding. Share: of the ceiling, the median over the cases "
    "in which launching does not bind the fastest, with the lowest and the highest. On the Pareto front: "
    "nothing that takes no more tokens reaches as much, as far as the machine can tell."
)
_FRONT_TITLE = "What effort buys: the Pareto fronts, in tokens and share of the ceiling"


def render(found: Map, width: int, *, whole: bool = True) -> str:
    """The screen as plain text: who wins, then what effort buys.

    Args:
        whole: every case, and how often each way wins; else a line an op, and how to see the rest.
    """
    prose = min(width, terminal.PROSE_WIDTH)
    blocks = [terminal.paragraph(line, prose) for line in _head(found, whole=whole)]
    if whole:
        blocks.append(terminal.laid_out(cases(found), width))
        blocks.append(terminal.paragraph(legend(found), prose))
        blocks.append(terminal.laid_out(wins(found), width))
    else:
        blocks.append(terminal.laid_out(ops(found), width))
        blocks.append(terminal.paragraph(ops_legend(found), prose))
    if found.points:
        lines = [terminal.paragraph(line, prose, "  ") for line in fronts(found)]
        blocks += ["\n".join([_FRONT_TITLE, *lines]), terminal.paragraph(FRONT_LEGEND, prose)]
    if not whole:
        blocks.append(terminal.paragraph(_rest(found), prose))
    return "\n\n".join(blocks)


def as_markdown(found: Map) -> str:
    shown = [ops(found), wins(found), cases(found), efforts(found)]
    legends = (ops_legend(found), legend(found), FRONT_LEGEND)
    parts = ["## The map", *_head(found), *map(markdown.table, shown), *legends]
    return "\n\n".join(parts) + "\n"


def as_csv(found: Map) -> str:
    """One line for each op and case; of every way its fastest implementation."""
    lines = [dict(_cells(place)) for place in found.places]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


# --------------------------------------------------------------------------- tables


def ops(found: Map) -> Table:
    """A line for each op: the way that is fastest over its cases, and how far the next is behind."""
    return Table(
        f"The fastest way, op by op, as recorded on {found.device}",
        (
            "op",
            "fastest way",
            "times as fast\nas the next way",
            "of the\nceiling",
            "lines /\ntokens",
            "binds",
            "the next",
            "its lines /\ntokens",
            "alone,\nlevel",
            "cases",
        ),
        tuple(map(_op, summaries(found.places))),
        ("fastest way", "binds", "the next"),
        (ops_legend(found),),
    )


def cases(found: Map) -> Table:
    """A line for each op and case: the fastest way, and how far the next is behind."""
    return Table(
        f"The fastest way, by op and case, as recorded on {found.device}",
        (
            "case",
            "fastest",
            "cold\nµs",
            "of the\nceiling",
            "binds",
            "lines /\ntokens",
            "times as fast\nas the next way",
            "the next",
            "its lines /\ntokens",
        ),
        tuple(_case(place) for place in found.places),
        ("fastest", "binds", "the next"),
        (legend(found),),
    )


def wins(found: Map) -> Table:
    """A line for each op: on how many cases each way is the fastest alone, and on how many nobody is."""
    rows = []
    for op in dict.fromkeys(place.op for place in found.places):
        places = [place for place in found.places if place.op == op]
        alone = [place.leaders[0] for place in places if len(place.leaders) == 1]
        counts = [alone.count(way) for way in WAYS]
        rows.append((op, *map(str, (len(places), *counts, len(places) - len(alone)))))
    return Table(
        "On how many cases each way is the fastest alone",
        ("op", "cases", *WAYS, "level"),
        tuple(rows),
        legend=("level: the fastest and another way cannot be told apart.",),
    )


def efforts(found: Map) -> Table:
    """A line for each implementation, by growing effort."""
    return Table(
        f"Effort against speed, as recorded on {found.device}",
        (
            "op",
            "implementation",
            "lines /\ntokens",
            "share of\nthe ceiling",
            "lowest to\nhighest",
            "cases",
            "front",
        ),
        tuple(
            (
                point.op,
                _marked(point),
                f"{point.lines} / {point.tokens}",
                percent(point.share),
                f"{percent(point.lowest)} to {percent(point.highest)}",
                f"{point.cases} of {point.of}",
                "yes" if point.front else "",
            )
            for point in found.points
        ),
        ("implementation", "front"),
        (FRONT_LEGEND,),
    )


def fronts(found: Map) -> list[str]:
    """A line for each op: ``softmax: torch.eager 35 tokens, 50%; triton.onepass 385, 96%``."""
    lines = []
    for op in dict.fromkeys(point.op for point in found.points):
        said: list[str] = []
        for point in (point for point in found.points if point.op == op and point.front):
            unit = "" if said else " tokens"
            some = f" ({point.cases} of {point.of} cases)" if point.cases < point.of else ""
            said.append(f"{_marked(point)} {point.tokens}{unit}, {percent(point.share)}{some}")
        lines.append(f"{op}: {'; '.join(said)}")
    return lines


def _case(place: Place) -> tuple[str, ...]:
    first, *others = place.ways
    product = " p" if place.share_of != "a copy" else ""
    return (
        f"{place.op} {place.case}",
        _marked(first),
        number(first.cold_us.median, 4),
        f"{percent(first.share)}{product}",
        _binds(first),
        _size(first),
        _lead(place),
        _marked(others[0]) if others else NOTHING,
        _size(others[0]) if others else NOTHING,
    )


def _op(op: Summary) -> tuple[str, ...]:
    lead = op.lead
    return (
        op.op,
        _marked(op.first),
        f"{lead.median:.2f} ({lead.lowest:.2f}-{lead.highest:.2f})" if lead else NOTHING,
        percent(op.share.median if op.share else None),
        _size(op.first),
        op.binds or NOTHING,
        _marked(op.second) if op.second else NOTHING,
        _size(op.second) if op.second else NOTHING,
        f"{op.alone}, {op.level}",
        f"{op.cases} of {op.of}",
    )


def _lead(place: Place) -> str:
    if place.lead is None:
        return NOTHING
    if place.rounds:
        return f"{place.lead.median:.2f} (n={place.rounds})"
    return (times(place.lead) if place.differs else SAME) + (" ~" if place.across else "")


def _binds(best: Best) -> str:
    bound = best.bound
    return bound.limit or (f"({bound.nearest} {percent(bound.share)})" if bound.nearest else NOTHING)


def _size(best: Best) -> str:
    return NOTHING if best.tokens is None else f"{best.lines} / {best.tokens}"


def _marked(entry: Best | Point) -> str:
    return f"{entry.label} *" if entry.changed else entry.label


def _head(found: Map, *, whole: bool = True) -> list[str]:
    """Where and when; and what has changed since, by name or how many of each op."""
    lines = [f"Recorded on {found.device}, {' to '.join(found.dates)}."]
    by_op: dict[str, list[str]] = {}
    for op, label in found.changed:
        by_op.setdefault(op, []).append(label)
    if by_op:
        named = "; ".join(f"{op}: {', '.join(labels)}" for op, labels in by_op.items())
        counted = ", ".join(f"{len(labels)} of {op}" for op, labels in by_op.items())
        what = "Changed since, or no longer here, so that their figures may be too"
        lines.append(f"{what}. {named}." if whole else f"{what}: {counted}.")
    return lines


def legend(found: Map) -> str:
    """What the columns of `cases` mean."""
    more = (
        (_FEW_LEGEND, any(place.rounds for place in found.places)),
        (_ACROSS_LEGEND, any(place.across for place in found.places)),
        (_CHANGED_LEGEND, bool(found.changed)),
    )
    return " ".join([_LEGEND, *(text for text, needed in more if needed)])


def ops_legend(found: Map) -> str:
    """What the columns of `ops` mean."""
    return " ".join([_OPS_LEGEND, *([_CHANGED_LEGEND] if found.changed else [])])


def _rest(found: Map) -> str:
    """How to see what a line an op leaves out."""
    op = found.places[0].op
    return (
        f"{len(found.places)} cases lie behind this, each with its fastest way, margin and interval, share, "
        f"size and what binds. Of one op: python -m compare map {op}. Of all: python -m compare map --all. "
        "Into a file: --csv, --json or --markdown FILE. As a picture: --plot map.svg."
    )


def _cells(place: Place) -> Iterator[tuple[str, object]]:
    lead = place.lead
    yield from (
        ("op", place.op),
        ("case", place.case),
        ("share_of", place.share_of),
        ("fastest", ";".join(place.leaders)),
        ("times_as_fast", lead.median if lead else ""),
        ("times_as_fast_low", lead.low if lead else ""),
        ("times_as_fast_high", lead.high if lead else ""),
        ("differs", place.differs),
        ("few_rounds", place.rounds or ""),
        ("across_runs", place.across),
    )
    by_way = {best.way: best for best in place.ways}
    for way in WAYS:
        best = by_way.get(way)
        yield way, best.label if best else ""
        yield f"{way}_cold_us", best.cold_us.median if best else ""
        yield f"{way}_cold_us_low", best.cold_us.low if best else ""
        yield f"{way}_cold_us_high", best.cold_us.high if best else ""
        yield f"{way}_share", best.share if best else ""
        yield f"{way}_binds", (best.bound.limit or "") if best else ""
        for name in ("lines", "tokens", "changed"):
            yield f"{way}_{name}", getattr(best, name) if best else ""
