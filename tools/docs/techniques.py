"""Pictures of techniques on the pages of ops, drawn from the constants and formulas of the kernels.

Lengths of time in the time lines are made up; what follows from what is as in the kernel that is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from compare.resources.banks import Access, times_served
from compare.resources.occupancy import WARP
from cuda_impl.launches import attention, matmul, transpose
from tools.docs import canvas as canvases
from tools.docs.canvas import Canvas, constant, expression, parameter

KERNELS = "cuda_impl/kernels"
BANKS = 32


# --------------------------------------------------------------------------- transpose: banks


def banks() -> str:
    """Where a column of a tile lies in shared memory, for each layout of the transpose's tile."""
    taken = {
        name: [times_served(Access("load", _column(place, column), 4)) for column in (0, 5)]
        for name, place in transpose.PLACES.items()
    }
    wavefronts = ", ".join(f"{name.lower()} {counts[0]}" for name, counts in taken.items())
    canvas = Canvas(
        "Two columns of a 32 x 32 tile of fp32 in the 32 banks of shared memory, a row of the picture for "
        f"every 128 bytes. Wavefronts that a warp takes to load a column: {wavefronts}. Without a swizzle a "
        "column is in one bank; padding and the XOR swizzle spread it over all",
        3 * (BANKS * 8 + 24) + 8,
    )
    for i, (name, place) in enumerate(transpose.PLACES.items()):
        x, y = 8 + i * (BANKS * 8 + 24), 42
        canvas.text("title", x, 16, f"{name.lower()}: {taken[name][0]} wavefront{'s' * (taken[name][0] > 1)}")
        canvas.text("", x, 34, "bank 0")
        canvas.text("", x + BANKS * 8, 34, "31", "end")
        canvas.rectangles.append(("plain", x, y, BANKS * 8, 33 * 8))
        for column, kind in ((0, "chosen"), (5, "part0")):
            for address in _column(place, column):
                line, bank = address // 4 // BANKS, address // 4 % BANKS
                canvas.cell(kind, x + bank * 8, y + line * 8, 8, 8)
    canvas.text(
        "note", 8, 42 + 33 * 8 + 18, "orange: column 0 of the tile, blue: column 5; lane r loads row r"
    )
    return canvas.drawn()


def _column(place: Callable[[int, int], int], column: int) -> tuple[int, ...]:
    """Addresses that a warp loads, in bytes."""
    return tuple(4 * place(lane, column) for lane in range(WARP))


# --------------------------------------------------------------------------- matmul: ring, fragment


FLIGHT, PRODUCT, ISSUE, TILES = 100, 50, 18, 13


def ring() -> str:
    """The ring of `specialized`: who has which stage when, and the phases of its mbarriers."""
    stages, consumers = parameter("matmul", "cupy.specialized", "STAGES"), matmul.CONSUMERS
    canvas = Canvas(
        f"The ring of {stages} stages as a time line. A producer thread issues the load of tile t into stage "
        f"t % {stages} when the stage is empty; the {consumers} consumer warpgroups multiply it when it is "
        "full, and release it when the next product has started. Each round over the ring is a phase: the "
        "parity that the barriers are waited for changes",
        880,
    )
    lanes = ["producer", *(f"stage {stage}" for stage in range(stages)), f"{consumers} consumers"]
    left, top, height = 92, 30, 34
    canvas.lanes(lanes, left, top, height)
    canvas.text("note", left, 18, "dashed: in flight; coloured: full, until it is released")
    issued, ends, starts = [0.0], [0.0], [0.0]
    full: list[float] = []
    released: list[float] = []
    for tile in range(TILES):
        if tile:
            issued.append(issued[-1] + ISSUE)
        if tile >= stages:
            # released[] of the tile before in this stage: when the product after it has started
            issued[tile] = max(issued[tile], released[tile - stages])
        full.append(issued[tile] + FLIGHT)
        start = max(full[tile], ends[-1])
        starts.append(start)
        ends.append(start + PRODUCT)
        if tile:
            released.append(max(ends[-2], start))
    released.append(ends[-1])
    for tile in range(TILES):
        stage, parity = tile % stages, tile // stages % 2
        y = top + height * (1 + stage) + 5
        canvas.cell("plain", left + issued[tile], top + 5, ISSUE, height - 10, "")
        canvas.cell("faint", left + issued[tile], y, FLIGHT, height - 10)
        canvas.cell(
            f"part{parity}", left + full[tile], y, released[tile] - full[tile], height - 10, f"{tile}"
        )
        below = top + height * (1 + stages) + 5
        canvas.cell(f"part{parity}", left + starts[tile + 1], below, PRODUCT, height - 10, f"{tile}")
    y = top + height * (stages + 2) + 12
    for parity in (0, 1):
        canvas.cell(f"part{parity}", left + parity * 330, y, 14, 12)
        canvas.text(
            "",
            left + parity * 330 + 20,
            y + 10,
            f"phase {parity}: wait(full[stage], {parity}), wait(empty[stage], {1 - parity})",
        )
    return canvas.drawn()


def fragment() -> str:
    """Which thread of a warp has which sum of a wgmma, from the formulas of `store_sums`."""
    file = f"{KERNELS}/matmul/tma_tiles.cuh"
    row = expression(file, r"int row = m \+ (.+?);")
    column = expression(file, r"int n_thread = n \+ (.+?);")
    step = expression(file, r"int column = n_thread \+ (.+?);")
    index = expression(file, r"to_x2<T>\(sum\[(.+?)\]")
    canvas = Canvas(
        "The first 16 rows and 16 columns of a wgmma's sums, those of warp 0: each cell has the lane that "
        "holds it and the index in its array sum. Four neighbouring lanes have a row of 8 columns, two "
        "neighbours each; a lane has two rows, 8 apart",
        16 * 52 + 40,
    )
    canvas.text(
        "title", 8, 16, "warp 0, rows 0 to 15, columns 0 to 15: lane, and s0, s1, ... for sum[0], sum[1], ..."
    )
    for lane in range(WARP):
        for half in range(2):
            for j in range(2):
                names = {"warp": 0, "half": half, "lane": lane, "j": j}
                at_row, first = (int(eval(text, {}, names)) for text in (row, f"{column} + {step}"))
                number = int(eval(index, {}, names))
                for pair in range(2):
                    kind = "chosen" if lane == 0 else f"part{lane // 4 % 8}"
                    label = f"{lane}: s{number + pair}"
                    canvas.cell(kind, 32 + (first + pair) * 52, 26 + at_row * 19, 52, 19, label)
    for at_row in range(16):
        canvas.text("", 26, 39 + at_row * 19, str(at_row), "end")
    return canvas.drawn()


# --------------------------------------------------------------------------- attention: ping-pong

TENSOR, SOFTMAX = 46, 74


def ping_pong() -> str:
    """Consumer warpgroups of `specialized` that multiply in turn, from the order of its products."""
    consumers, _, _ = attention.tile_of(128, 128, 4)
    loop = expression(
        f"{KERNELS}/attention/05_specialized.cuh", r"(?s)named_barrier_sync<[^;]*;(.*?)named_barrier_arrive"
    )
    products = [{"pv": "p @ v", "qk": "q @ k"}[name] for name in re.findall(r"multiply_(\w+)", loop)]
    canvas = Canvas(
        f"Ping-pong of {consumers} consumer warpgroups: while one multiplies ({' and '.join(products)}), the "
        "softmax of the other runs. A named barrier passes the tensor cores from one to the next, so that "
        "they are never idle",
        860,
    )
    left, top, height = 100, 12, 36
    canvas.lanes([*(f"consumer {i}" for i in range(consumers)), "tensor cores"], left, top, height)
    ready, free = [0.0] * consumers, 0.0
    for turn in range(consumers * 4):
        who = turn % consumers
        start = max(ready[who], free)
        for i, product in enumerate(products):
            x = left + start + i * TENSOR
            canvas.cell(f"part{who}", x, top + who * height + 5, TENSOR, height - 10, product)
            canvas.cell(f"part{who}", x, top + consumers * height + 5, TENSOR, height - 10, product)
        free = start + len(products) * TENSOR
        if left + free + SOFTMAX < canvas.width - 8:
            canvas.cell("plain", left + free, top + who * height + 5, SOFTMAX, height - 10, "softmax")
        middle, next_y = top + (who + 0.5) * height, top + ((who + 1) % consumers + 0.5) * height
        if turn + 1 < consumers * 4:
            canvas.line(f"M{left + free:.0f} {middle:.0f}V{next_y:.0f}", "event")
        ready[who] = free + SOFTMAX
        if left + max(free, min(ready)) + len(products) * TENSOR > canvas.width - 8:
            break
    canvas.text(
        "note",
        left,
        top + (consumers + 1) * height + 16,
        "red: named_barrier_arrive, the next consumer may multiply",
    )
    return canvas.drawn()


# --------------------------------------------------------------------------- compact: look-back

COUNTS = (5, 7, 4, 6, 9, 3, 6, 5, 8, 4, 7)
"""How many elements each tile keeps, in the picture."""
DONE, LOOKING = 4, 8
"""The last tile that has published ALL, and the one that looks back."""


def look_back() -> str:
    """Words of tiles while one looks back, with the states and the shift of look_back.cuh."""
    file = f"{KERNELS}/compact/look_back.cuh"
    states = {name: int(expression(file, rf"\b{name} = (\d)")) for name in ("UNKNOWN", "OWN", "ALL")}
    shift = int(expression(file, r"count\) << (\d)"))
    items, threads = (parameter("compact", "cupy.onepass", name) for name in ("ITEMS", "THREADS"))
    before = sum(COUNTS[:LOOKING])
    canvas = Canvas(
        f"Decoupled look-back. Tiles of {items * threads} elements have a word each: a count, and a state, "
        f"OWN for the tile's own count or ALL for it and all before. Tile {LOOKING} adds OWN counts "
        f"backwards from tile {LOOKING - 1} to the first ALL, of tile {DONE}, and publishes ALL itself: it "
        "waits for no chain of tiles",
        860,
    )
    width = 840 / len(COUNTS)
    for i, count in enumerate(COUNTS):
        x = 10 + i * width
        name = "ALL" if i <= DONE else "OWN" if i <= LOOKING else "UNKNOWN"
        value = sum(COUNTS[: i + 1]) if name == "ALL" else count if name == "OWN" else 0
        canvas.text("", x + width / 2, 16, f"tile {i}", "middle")
        kind = {"ALL": "part1", "OWN": "part0", "UNKNOWN": "faint"}[name]
        canvas.cell(kind, x, 22, width, 26, f"{name} {value}" if name != "UNKNOWN" else name)
        canvas.text("small", x + width / 2, 60, f"word = {value << shift | states[name]}", "middle")
        if DONE <= i < LOOKING:
            middle = 10 + (LOOKING + 0.5) * width
            canvas.line(f"M{x + width / 2:.0f} 66V{78 + 10 * (LOOKING - i)}H{middle:.0f}")
            canvas.text("", x + width / 2 + 4, 76 + 10 * (LOOKING - i), f"+ {value}")
    middle = 10 + (LOOKING + 0.5) * width
    canvas.line(f"M{middle:.0f} 66V128", "arrow")
    canvas.cell("chosen", middle - width, 132, 2 * width, 26, f"{before} elements before tile {LOOKING}")
    canvas.text(
        "note",
        10,
        149,
        f"a word: count << {shift} | state; {', '.join(f'{n} = {v}' for n, v in states.items())}",
    )
    canvas.text(
        "note",
        10,
        176,
        f"tile {LOOKING} publishes ALL {before + COUNTS[LOOKING]}, and writes from y[{before}] on. "
        f"A warp reads 32 words at a time.",
    )
    return canvas.drawn()


# --------------------------------------------------------------------------- scan: tree of sums


def tree_of_sums() -> str:
    """The words of a row that one tile reads, with the indices of scan.cuh's `look_back`."""
    file = f"{KERNELS}/scan.cuh"
    c = WARP**2 + 2 * WARP + 5
    group = constant(file, "group", {"c": c, "WARP": WARP})
    prefix = constant(file, "prefix", {"group": group, "WARP": WARP})
    first_group, first_tile = prefix * WARP, group * WARP
    vectors = parameter("scan", "cupy.lookback", "VECTORS") * parameter("scan", "cupy.lookback", "THREADS")
    canvas = Canvas(
        f"Decoupled look-back over a fixed tree. Tiles have {vectors} vectors of 16 bytes. The sum before "
        f"tile {c} is that of prefix {prefix - 1}, of tiles 0 to {prefix * WARP**2 - 1}; of groups "
        f"{first_group} to {group - 1}, {WARP} tiles each; and of tiles {first_tile} to {c - 1}. A warp "
        "reads these words at two looks, and adds them in the same order in every run",
        860,
    )
    groups = [
        ("part0", f"group {g}: tiles {g * WARP} to {g * WARP + WARP - 1}", 220, f"lane {g % WARP}")
        for g in range(first_group, group)
    ]
    tiles = [("part0", f"tile {i}", 96, f"lane {i % WARP}") for i in range(first_tile, c)]
    left, right, height = 130, 850, 28
    rows = (
        ("prefix_words", 16, [("part1", f"tiles 0 to {prefix * WARP**2 - 1}", 380, f"lane {WARP - 1}")]),
        ("group_words", 78, [("faint", "…", 30, ""), *groups, ("faint", f"group {group}: not yet", 220, "")]),
        (
            "tile_words",
            140,
            [
                ("faint", "…", 30, ""),
                *tiles,
                ("chosen", f"tile {c}", 96, ""),
                ("faint", f"tile {c + 1}", 96, ""),
            ],
        ),
    )
    for name, y, cells in rows:
        canvas.text("", left - 8, y + height / 2 + 4, name, "end")
        x = float(left)
        for kind, label, width, lane in cells:
            canvas.cell(kind, x, y, width, height, label)
            if lane:
                canvas.text("small", x + width / 2, y + height + 11, lane, "middle")
                canvas.line(f"M{x + width / 2:.0f} {y + height + 14}V{y + height + 20}H{right}")
            x += width
    canvas.line(f"M{right} {16 + height + 20}V214H640", "arrow")
    canvas.cell("chosen", 400, 200, 236, height, f"the sum before tile {c}")
    canvas.text("note", 10, 219, f"blue and green: read by a warp of tile {c}, a word per lane")
    canvas.text(
        "note",
        10,
        246,
        f"The last tile of a group publishes the group's sum, the last of {WARP} groups a prefix. Each word "
        "is written once.",
    )
    return canvas.drawn()


# --------------------------------------------------------------------------- attention_backward: schedule


def schedule() -> str:
    """An iteration of `overlapped`, from the drawing in its kernel's comment."""
    text = canvases.source(f"{KERNELS}/attention_backward/05_overlapped.cuh")
    drawn = re.search(r"(?m)^//( +)first_half +second_half\n((?://.*\n)+)", text)
    if drawn is None:
        raise ValueError("05_overlapped.cuh: no drawing of first_half and second_half in its comments")
    rows = [line.removeprefix("//") for line in drawn[2].splitlines()]
    dots = [match.start() for match in re.finditer(r"\.", rows[0])]
    names = [row[: dots[0]].strip() for row in rows]
    canvas = Canvas(
        "An iteration of attention_backward's overlapped: "
        + "; ".join(f"{name.split(' = ')[0].split(' += ')[0]}" for name in names)
        + " from left to right. Blue: products on tensor cores, grey: work of the threads, each with its "
        "tile of queries. The product for dQ is one tile behind, and S of the next tile is computed at "
        "the end",
        880,
    )
    left, top, height = 190, 26, 30
    scale = (canvas.width - left - 12) / (max(map(len, rows)) - dots[0])
    canvas.lanes(names, left, top, height)
    for at, half in zip(dots, ("first half", "second half"), strict=False):
        canvas.text("", left + (at - dots[0]) * scale + 4, 16, half)
        canvas.line(f"M{left + (at - dots[0]) * scale:.0f} 4V{top + height * len(rows)}", "event")
    for i, row in enumerate(rows):
        for bar in re.finditer(r"([=-])\1+([a-z][a-z0-9+-]*?)\1{2,}", row):
            x = left + (bar.start() - dots[0]) * scale
            kind = "part0" if bar[1] == "=" else "plain"
            canvas.cell(kind, x, top + i * height + 4, len(bar[0]) * scale, height - 8, bar[2])
    return canvas.drawn()


# --------------------------------------------------------------------------- all_reduce: trips

TRIP, ACTION, LANE = 46, 58, 30
TRIPS = {
    "flag": (r"wait_for_ranks<", 1),
    "read, add": (r"add_ranks<", 2),
    "write": (r"store_vec\(x\[r\]", 1),
    "send": (r"volatile word_t\*>\(receive\[r\]", 1),
    "add": (r"\* from = receive\[rank\]", 0),
}
"""What a rank does: how the kernel says it, and how many trips through the link it waits for."""


def trips() -> str:
    """What both ranks do one after another in each variant, in the order of the kernel's statements."""
    text = canvases.source(f"{KERNELS}/all_reduce.cuh")
    kernels = {
        name: re.findall(rf"(?s)void all_reduce_{name}_kernel(.*?)\n\}}\n", text)[0]
        for name in ("one_shot", "two_shot", "low_latency")
    }
    actions = {name: _actions(kernel) for name, kernel in kernels.items()}
    waits = {name: sum(TRIPS[action][1] for action in each) for name, each in actions.items()}
    said = ", ".join(f"{name} {count}" for name, count in waits.items())
    canvas = Canvas(f"Trips through the link that a rank waits for, one after another: {said}", 800)
    for number, (name, each) in enumerate(actions.items()):
        left, top = 70, 26 + number * (2 * LANE + 30)
        canvas.text("title", 8, top - 8, f"{name}: {waits[name]} trip{'s' * (waits[name] > 1)}")
        canvas.lanes(["rank 0", "rank 1"], left, top, LANE)
        x = left + 8
        for action in each:
            for rank in range(2):
                canvas.cell(f"part{rank}", x, top + rank * LANE + 5, ACTION, LANE - 10, action)
            x += ACTION
            for trip in range(TRIPS[action][1]):
                for begin, end in ((0.5, 1.5), (1.5, 0.5)):
                    to = x + (trip + 1) * TRIP
                    canvas.line(f"M{to - TRIP} {top + begin * LANE:.0f}L{to} {top + end * LANE:.0f}", "event")
            x += TRIPS[action][1] * TRIP
    canvas.text("note", 8, canvas.rectangles[-1][2] + LANE + 12, "red: a trip through the link, some 1 µs")
    return canvas.drawn()


def _actions(kernel: str) -> list[str]:
    """The keys of `TRIPS` in a kernel's text, in its order."""
    places = [(match.start(), name) for name, (how, _) in TRIPS.items() for match in re.finditer(how, kernel)]
    return [name for _, name in sorted(places)]


PICTURES: dict[Path, Callable[[], str]] = {
    Path("docs/collectives/all_reduce_trips.svg"): trips,
    Path("docs/ops/transpose_banks.svg"): banks,
    Path("docs/ops/matmul_ring.svg"): ring,
    Path("docs/ops/matmul_fragment.svg"): fragment,
    Path("docs/ops/attention_ping_pong.svg"): ping_pong,
    Path("docs/ops/compact_look_back.svg"): look_back,
    Path("docs/ops/scan_look_back.svg"): tree_of_sums,
    Path("docs/ops/attention_backward_schedule.svg"): schedule,
}
