"""Ways across devices, as a screen, Markdown and CSV."""

from __future__ import annotations

from functools import partial

from compare.history.devices import PAIRS, Across, Devices, Speedup
from compare.model.result import Environment
from compare.report import csv_file, markdown, terminal
from compare.report.tables import NOTHING, Table, table

_LEGEND = (
    "Speedup of a way's fastest implementation over another's on the same device, cold: the median over the "
    "cases that all devices have on record, with the lowest and the highest. ~: within noise on more than "
    "half of them, or by 2% at most. *: a source has changed since. Times of two devices are never divided "
    "by each other."
)


def render(devices: Devices, width: int) -> str:
    """The screen as plain text: each device's card, a sentence for each op, and the table."""
    prose = min(width, terminal.PROSE_WIDTH)
    paragraphs = [terminal.paragraph(line, prose, hanging="  ") for line in _head(devices)]
    sentences = [terminal.paragraph(sentence(op, devices.names), prose, hanging="  ") for op in devices.ops]
    shown = ops(devices)
    legend = [terminal.paragraph(line, prose) for line in shown.legend]
    return "\n\n".join(
        ["\n".join(paragraphs), "\n".join(sentences), terminal.laid_out(shown, width), *legend]
    )


def as_markdown(devices: Devices) -> str:
    shown = ops(devices)
    cards = "\n".join(f"- {line}" for line in _head(devices))
    return markdown.document([cards, markdown.table(shown), *shown.legend])


def as_csv(devices: Devices) -> str:
    """One line for each op, pair of ways and device."""
    lines = [
        {
            "op": op.op,
            "cases": op.cases,
            "way": first,
            "over": second,
            "device": device,
            **{
                name: getattr(each, name)
                for name in ("median", "lowest", "highest", "within_noise", "changed")
            },
        }
        for op in devices.ops
        for (first, second), speedups in op.speedups.items()
        for device, each in zip(devices.names, speedups, strict=True)
        if each
    ]
    return csv_file.table(lines, list(lines[0]))


def sentence(op: Across, names: tuple[str, ...]) -> str:
    """``softmax: Triton over CUDA: within noise on the NVIDIA H100, 0.97x on the NVIDIA H200.``"""
    pair = next((pair for pair in PAIRS if any(op.speedups[pair])), PAIRS[0])
    first, second = ({"triton": "Triton", "cuda": "CUDA", "torch": "PyTorch"}[way] for way in pair)
    parts = [
        f"{_brief(each)} on the {name}" for name, each in zip(names, op.speedups[pair], strict=True) if each
    ]
    return f"{op.op}: {first} over {second} is {', '.join(parts)}."


def _brief(speedup: Speedup) -> str:
    return "within noise" if speedup.within_noise else f"{speedup.median:.2f}x"


def ops(devices: Devices) -> Table:
    """A line for each op, a column for each pair of ways and device."""
    columns = {"op": lambda op: op.op, "cases": lambda op: str(op.cases)}
    for pair in PAIRS:
        for index, name in enumerate(devices.names):
            columns[f"{pair[0]} / {pair[1]}\n{_short(name)}"] = partial(_cell, pair, index)
    return table("A way's speedup over another, by device", devices.ops, columns, legend=(_LEGEND,))


def _cell(pair: tuple[str, str], index: int, op: Across) -> str:
    each = op.speedups[pair][index]
    if each is None:
        return NOTHING
    marks = ("~" if each.within_noise else "") + ("*" if each.changed else "")
    return f"{marks}{each.median:.2f} ({each.lowest:.2f}-{each.highest:.2f})"


def _short(name: str) -> str:
    return " ".join(name.removeprefix("NVIDIA ").split()[:1])


def _head(devices: Devices) -> list[str]:
    head = [_card(name, each) for name, each in zip(devices.names, devices.environments, strict=True)]
    if devices.alone:
        head.append(f"On record on some of them only: {', '.join(devices.alone)}.")
    return head


def _card(name: str, environment: Environment) -> str:
    """``NVIDIA H100: driver 580.1, SM 1980 MHz, memory 2619 MHz, power cap 700 W; torch ...``"""
    clocks = environment.clocks
    facts = [f"driver {environment.driver}" if environment.driver else ""]
    for key, text in (
        ("sm_mhz", "SM {:g} MHz"),
        ("memory_mhz", "memory {:g} MHz"),
        ("power_limit_w", "power cap {:g} W"),
    ):
        value = clocks.get(f"{key}_after")
        facts.append(text.format(value) if isinstance(value, float) else "")
    versions = " ".join(
        f"{each} {environment.versions[each]}" for each in ("torch", "triton") if each in environment.versions
    )
    return f"{name}: {', '.join(filter(None, facts))}; {versions}"
