"""Checks and times every rung of matmul:  python3 .bench/matmul_gpu.py out.txt [seconds] [check|time] [words]

In the root of a checkout, on an H100 with torch, triton, cupy and cuda.bindings; nothing else is needed.

1. pybind's module and all kernels are compiled, at once, in processes of their own;
2. every variant is checked against fp64 in a process of its own, which is ended after a while if it hangs; both
   CUDA routes must give the same bits;
3. those that agree are timed, interleaved with torch.eager, a shape at a time. Each line, and the file after
   every shape:  shape label  alone_us (one call, L2 flushed)  burst_us TFLOP/s ratio | sustained TFLOP/s ratio
`words` choose shapes that contain one of them, such as 4096x4096x512.

    python3 .bench/matmul_gpu.py out.txt 150 tune [words]

checks and times the candidates of tune.cuh instead, beside torch.eager and what they are to replace. At the end of a
line: what was expected of the candidate's first ratio.
"""

import os
import random
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = ROOT + os.pathsep + os.environ.get("PYTHONPATH", "")
os.environ.setdefault("COMPARE_CACHE_DIR", "/tmp/cache-matmul-gpu")
os.environ.setdefault("CUPY_CACHE_DIR", "/tmp/cache-matmul-gpu-cupy")
START = float(os.environ.setdefault("MATMUL_GPU_START", str(time.time())))
HOPPER = ("wgmma", "specialized", "persistent", "multicast", "tma_store")
SLOW = ("naive", "coalesced", "shared", "register")
FAST_TRITON = ("triton.tiled", "triton.grouped", "triton.persistent", "triton.autotuned")

CHECKED = (  # M, N, K
    (128, 256, 64), (64, 48, 80), (1, 1, 1), (3, 5, 7), (130, 4096, 8), (1000, 1032, 1048), (999, 1001, 777),
    (2001, 2056, 328), (2001, 2055, 327), (1024, 1024, 1024), (300, 8200, 512), (4096, 2048, 200), (16, 16, 4096),
)  # fmt: skip
TIMED = (  # M, N, K, dtype, layouts of a and b, what
    (4096, 4096, 4096, "bf16", "nn", "all"),
    (8192, 8192, 8192, "bf16", "nn", "fast"),
    (1024, 1024, 1024, "bf16", "nn", "all tiles"),
    (2048, 2048, 2048, "bf16", "nn", "fast tiles"),
    (4096, 4096, 512, "bf16", "nn", "fast tiles"),
    (4096, 4096, 2048, "bf16", "nn", "fast"),
    (4096, 4096, 14336, "bf16", "nn", "fast"),
    (4095, 4097, 4099, "bf16", "nn", "fast"),
    (4096, 4096, 4096, "fp32", "nn", "fp32"),
    (16384, 16384, 16384, "bf16", "nn", "best"),
    (4096, 4096, 4096, "fp16", "nn", "best"),
    (4096, 4096, 4096, "bf16", "tn", "best"),
    (4096, 4096, 4096, "bf16", "nt", "best"),
    (4096, 4096, 4096, "bf16", "tt", "best"),
    (512, 8192, 8192, "bf16", "nn", "best tiles"),
    (1536, 1536, 1536, "bf16", "nn", "best tiles"),
    (3072, 3072, 3072, "bf16", "nn", "best tiles"),
    (128, 8192, 8192, "bf16", "nn", "best tiles"),
    (8192, 8192, 8192, "fp32", "nn", "fp32"),
)


def say(*words):
    print(f"[{time.time() - START:6.1f}]", *words, flush=True)


def inputs(M, N, K, dtype="bf16", layouts="nn", seed=0):
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    g = torch.Generator("cuda").manual_seed(seed)
    made = []
    for (rows, columns), layout in zip(((M, K), (K, N)), layouts, strict=True):
        x = torch.randn((rows, columns) if layout == "n" else (columns, rows), device="cuda", generator=g)
        made.append(x.to(kind) if layout == "n" else x.to(kind).t())
    return made


def every():
    from compare import registry

    return {i.label: i.run for i in registry.implementations("matmul")}


# ------------------------------------------------------------------------------------------------ 2. checks


def compile_variant(variant):
    """All instances that the checks and times need; launches go nowhere."""
    import cuda_impl.loader as loader
    from concurrent.futures import ThreadPoolExecutor

    import torch

    torch.zeros(1, device="cuda")
    loader._CudaKernel.__call__ = lambda self, *args, **kwargs: None
    run = every()[f"cupy.{variant}"]
    dtypes = ("bf16", "fp16") if variant in (*HOPPER, "tensor_core") else ("bf16", "fp16", "fp32")
    jobs = [inputs(*shape, dtype, layouts) for dtype in dtypes for layouts in ("nn", "nt", "tn", "tt")
            for shape in ((1000, 1032, 1048), (4096, 2048, 200), (300, 8200, 512))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: run(*job), jobs))


def check_variant(labels):
    import torch

    runs = every()
    bad, count = [], 0
    first = runs[labels[0]]
    narrow_only = labels[0].split(".")[1] in (*HOPPER, "tensor_core") and not labels[0].startswith("triton")
    triton = labels[0].startswith("triton")  # compiles anew for many of them
    for shape in CHECKED[::3] if triton else CHECKED:
        for dtype in ("bf16", "fp32") if triton else ("bf16", "fp16") if narrow_only else ("bf16", "fp16", "fp32"):
            for layouts in ("nn", "tt") if triton else ("nn", "nt", "tn", "tt"):
                a, b = inputs(*shape, dtype, layouts)
                exact = a.double() @ b.double()
                scale = (a.double().abs() @ b.double().abs()).clamp_min(1e-30)
                try:
                    outputs = [runs[label](a, b) for label in labels for _ in range(2)]
                    torch.cuda.synchronize()
                except NotImplementedError as refusal:
                    bad.append(f"{shape} {dtype} {layouts} refused: {refusal}")
                    continue
                library = ((torch.matmul(a, b).double() - exact).abs() / scale).max().item()
                error = ((outputs[0].double() - exact).abs() / scale).max().item()
                limit = max(2 * library, 1e-6 if dtype == "fp32" else 1e-5)
                same = all(torch.equal(outputs[0], o) for o in outputs[1:])
                ok = error <= limit and same and outputs[0].is_contiguous()
                count += 1
                if not ok:
                    bad.append(f"{shape} {dtype} {layouts}: error {error:.1e} library {library:.1e} same {same}")
    if "tma_store" in labels[0]:  # overlapping launches: each needs what the one before it wrote
        a, b = (x / 32 for x in inputs(1024, 1024, 1024))
        ours = want = a
        for _ in range(30):
            ours, want = first(ours, b), torch.matmul(want, b)
        if not torch.allclose(ours.float(), want.float(), rtol=0.1, atol=0.2 * want.float().abs().mean().item()):
            bad.append("a chain of 30 products differs")
        filled = [first(a.fill_(v), b.fill_(1.0 / 1024)) for v in (1.0, 2.0, 3.0)]
        if [f[0, 0].item() for f in filled] != [1.0, 2.0, 3.0]:
            bad.append("a kernel began before its input was written")
    if bad:
        print("BAD", *labels, f"{len(bad)} of {count}:", "; ".join(bad[:6]), flush=True)
        sys.exit(1)
    print("GOOD", *labels, f"{count} cases", flush=True)


def child(*arguments):
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def ended(process, seconds):
    try:
        out, _ = process.communicate(timeout=max(1.0, seconds))
        return process.returncode, out.strip()
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return "HANG or too slow", out.strip()


def checked(seconds):
    """Labels that agree."""
    end = time.time() + seconds
    searched = [child("--configs", str(i)) for i in range(5)]
    cuda = [*HOPPER, "tensor_core", "register", "shared", "coalesced", "naive"]
    building = child("--build")
    compiling = {v: child("--compile", v) for v in cuda}
    for v, process in compiling.items():
        code, out = ended(process, end - time.time())
        say(f"compiled {v}" if code == 0 else f"NOT COMPILED {v} ({code}): {out[-1500:]}")
    for process in searched:
        ended(process, end - time.time())
    code, out = ended(building, end - time.time())
    built = code == 0
    say(f"pybind: {out[-600:] if built else (code, out[-2500:])}")
    groups = [[f"cupy.{v}", *([f"pybind.{v}"] if built else [])] for v in cuda]
    groups += [[f"triton.{v}"] for v in ("naive", "tiled", "grouped", "persistent")]
    good = ["torch.eager", "triton.autotuned"]
    for start in range(0, len(groups), 7):
        running = [(group, child("--check", *group)) for group in groups[start : start + 7]]
        for group, process in running:
            code, out = ended(process, min(90, end - time.time()))
            say(out[-1200:] if code in (0, 1) else f"{group} {code}: {out[-1200:]}")
            good += group if code == 0 else []
    return good


# ------------------------------------------------------------------------------------------------ 3. times


REGISTER = (  # BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, STAGES, BLOCKS
    (128, 128, 16, 8, 8, 2, 2), (128, 128, 16, 8, 8, 3, 2), (128, 128, 8, 8, 8, 4, 2), (128, 128, 32, 8, 8, 2, 2),
    (128, 256, 16, 8, 16, 2, 1), (128, 256, 16, 8, 16, 3, 1), (128, 256, 8, 8, 16, 4, 1), (256, 128, 16, 16, 8, 3, 1),
    (256, 128, 8, 16, 8, 4, 1), (128, 128, 16, 8, 16, 3, 2),
)  # fmt: skip
TENSOR_CORE = (  # BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES, BLOCKS
    (128, 128, 32, 2, 2, 4, 2), (128, 128, 32, 2, 2, 5, 2), (128, 128, 64, 2, 2, 3, 2), (128, 128, 32, 2, 4, 4, 2),
    (128, 256, 32, 2, 4, 4, 1), (128, 256, 64, 2, 4, 3, 1), (128, 256, 64, 2, 4, 4, 1), (256, 128, 32, 4, 2, 4, 1),
    (256, 128, 64, 4, 2, 3, 1), (256, 128, 64, 4, 2, 4, 1),
)  # fmt: skip


def with_config(kind, config):
    def run(a, b):
        import numpy as np
        import torch
        from cuda_impl.loader import kernel
        from cuda_impl.rawkernel import matmul as mm

        m, n, k, x, y, stages, _ = config
        name = f"matmul_{kind}_kernel<{', '.join([mm.CTYPES[a.dtype], 'true', 'true', *map(str, config)])}>"
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        size = a.element_size()
        if kind == "register":
            threads = m * n // (x * y)
            shared = stages * (mm.tile_bytes(True, m, k, size) + mm.tile_bytes(False, n, k, size))
        else:
            threads, shared = x * y * 32, stages * (m + n) * k * size
        numbers = (a.shape[0], b.shape[1], a.shape[1], a.stride(0), b.stride(0))
        blocks = mm.ceil_div(a.shape[0], m) * mm.ceil_div(b.shape[1], n)
        kernel("matmul", name, a.device)((blocks,), (threads,), (a.data_ptr(), b.data_ptr(), c.data_ptr(),
                                         *map(np.int64, numbers)), shared_mem=shared)
        return c

    return run


def register_with(config):
    return with_config("register", config)


def tensor_core_with(config):
    return with_config("tensor_core", config)


def chosen(what, good, dtype):
    runs = every()
    if dtype == "fp32":
        labels = ["torch.eager", "torch.tf32", "cupy.register", "pybind.register", "triton.tiled", "triton.grouped",
                  "triton.autotuned"]
    elif "best" in what:
        labels = ["torch.eager", "cupy.persistent", "cupy.multicast", "cupy.tma_store", "pybind.tma_store",
                  "triton.persistent"]
    else:
        labels = ["torch.eager", "cupy.tensor_core", *(f"cupy.{v}" for v in HOPPER), "pybind.tensor_core",
                  "pybind.persistent", "pybind.tma_store", *FAST_TRITON]
        if "all" in what:
            labels += ["cupy.naive", "cupy.coalesced", "cupy.shared", "cupy.register", "triton.naive"]
    found = {label: runs[label] for label in labels if label in (*good, "torch.tf32")}
    if dtype == "fp32":
        found |= {f"register{c}".replace(" ", ""): register_with(c) for c in REGISTER}
    if "all" in what:
        found |= {f"tensor_core{c}".replace(" ", ""): tensor_core_with(c) for c in TENSOR_CORE}
    if "cupy.tma_store" in found:
        from cuda_impl.rawkernel import matmul as mm

        tile_for, kernel = mm.tile_for, mm.kernel

        def with_tile(tile):
            def run(a, b):
                mm.tile_for = lambda *_: tile
                try:
                    return mm.tma_store(a, b)
                finally:
                    mm.tile_for = tile_for

            return run

        def without_overlap(a, b):
            mm.kernel = lambda *words, overlap=False, **more: kernel(*words, **more)
            try:
                return mm.tma_store(a, b)
            finally:
                mm.kernel = kernel

        found["cupy.tma_store[in turn]"] = without_overlap
        if "tiles" in what:
            found["cupy.tma_store[64]"] = with_tile((64, 8))
            found["cupy.tma_store[256]"] = with_tile((256, 4))
    return found


# ------------------------------------------------------------------------------------------------ candidates

# tensor_core: BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES, BLOCKS, GROUP_M, TWO_LOOPS
# register:    BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, STAGES, BLOCKS, LANES, TWO_LOOPS
# tma_store:   BLOCK_N, STAGES, CLUSTER, SKEW, GROUP_M, PLACES, HINT, DIRECT, PREFETCH_C, LIGHT
CUBE = "4096x4096x4096 bf16"
TUNE = (  # kind, configuration, expected, shapes
    ("tensor_core", (128, 128, 32, 2, 2, 4, 2, 8, 0), "0.59", CUBE),
    ("tensor_core", (128, 128, 32, 2, 2, 5, 2, 8, 1), "0.59", CUBE),
    ("tensor_core", (128, 128, 32, 2, 2, 6, 2, 8, 1), "0.59", CUBE),
    ("tensor_core", (128, 128, 64, 2, 2, 3, 2, 8, 0), "0.61", CUBE),
    ("tensor_core", (128, 128, 64, 2, 2, 3, 2, 16, 1), "0.61", CUBE),
    ("tensor_core", (128, 128, 64, 2, 2, 3, 2, 4, 1), "0.60", CUBE),
    ("tensor_core", (128, 256, 32, 2, 4, 5, 1, 8, 1), "0.57", CUBE),
    ("tensor_core", (128, 256, 64, 2, 4, 3, 1, 8, 1), "0.60", CUBE),
    ("tensor_core", (256, 128, 32, 4, 2, 5, 1, 8, 1), "0.57", CUBE),
    ("tensor_core", (256, 128, 64, 4, 2, 3, 1, 8, 1), "0.60", CUBE),
    ("tensor_core", (256, 128, 64, 4, 2, 4, 1, 8, 1), "0.60", CUBE),
    ("tensor_core", (128, 128, 32, 2, 2, 4, 2, 8, 1), "0.60", CUBE),
    ("tensor_core", (128, 128, 64, 2, 2, 3, 2, 8, 1), "0.62", CUBE),
    ("register", (128, 256, 16, 8, 16, 3, 1, 1, 1), "0.94", "fp32"),
    ("register", (128, 256, 8, 8, 16, 4, 1, 1, 1), "0.92", "fp32"),
    ("register", (256, 128, 16, 16, 8, 3, 1, 1, 1), "0.93", "fp32"),
    ("register", (128, 128, 16, 8, 16, 3, 2, 1, 1), "0.94", "fp32"),
    ("register", (128, 256, 16, 8, 16, 3, 1, 1, 0), "0.93", "fp32"),
    ("register", (128, 256, 16, 8, 16, 3, 1, 0, 1), "0.89", "fp32"),
    ("register", (128, 256, 32, 8, 16, 2, 1, 1, 1), "0.92", "fp32"),
    ("register", (256, 128, 8, 16, 8, 4, 1, 1, 1), "0.90", "fp32"),
    ("register", (128, 128, 8, 8, 16, 4, 2, 1, 1), "0.90", "fp32"),
    ("register", (128, 128, 32, 8, 16, 2, 2, 1, 1), "0.92", "fp32"),
    ("register", (128, 128, 16, 16, 8, 3, 2, 1, 1), "0.92", "fp32"),
    ("register", (128, 128, 16, 8, 8, 3, 2, 1, 1), "0.87", "fp32"),
    ("tma_store", (256, 4, 2, 0, 8, 2, 0, 0, 1, 0), "1.006", "4096 8192 2048 K512"),
    ("tma_store", (256, 4, 2, 1, 8, 2, 0, 0, 1, 0), "1.012", "4096 8192 2048 K512"),
    ("tma_store", (256, 4, 2, 2, 8, 2, 0, 0, 1, 0), "1.018", "4096 8192 2048 K512"),
    ("tma_store", (256, 4, 2, 3, 8, 2, 0, 0, 1, 0), "1.00", "4096"),
    ("tma_store", (256, 4, 2, 0, 8, 2, 1, 0, 1, 0), "1.008", "4096 8192"),
    ("tma_store", (256, 4, 2, 2, 8, 2, 1, 0, 1, 0), "1.020", "4096 8192"),
    ("tma_store", (256, 4, 2, 2, 16, 2, 0, 0, 1, 0), "1.018", "4096 8192"),
    ("tma_store", (256, 4, 2, 2, 4, 2, 0, 0, 1, 0), "1.015", "4096 8192"),
    ("tma_store", (256, 3, 2, 0, 8, 4, 0, 0, 1, 0), "1.00", "4096 K512"),
    ("tma_store", (256, 3, 2, 1, 8, 4, 0, 0, 1, 0), "1.00", "4096 K512"),
    ("tma_store", (256, 4, 1, 1, 16, 2, 0, 0, 1, 0), "0.96", "4096"),
    ("tma_store", (64, 8, 2, 0, 8, 1, 0, 0, 1, 0), "0.94", "1024"),
    ("tma_store", (64, 8, 2, 0, 8, 1, 0, 0, 1, 1), "0.95", "1024"),
    ("tma_store", (64, 8, 1, 0, 8, 1, 0, 0, 1, 0), "0.95", "1024"),
    ("tma_store", (64, 8, 1, 0, 8, 1, 0, 0, 1, 1), "0.96", "1024"),
    ("tma_store", (64, 4, 1, 0, 8, 1, 0, 0, 1, 1), "0.94", "1024"),
    ("tma_store", (64, 8, 1, 0, 8, 1, 0, 1, 0, 1), "0.97", "1024"),
    ("tma_store", (64, 8, 2, 0, 8, 1, 0, 1, 0, 1), "0.95", "1024"),
    ("tma_store", (192, 4, 2, 0, 8, 3, 0, 0, 1, 0), "0.87 0.94", "1536 3072"),
    ("tma_store", (192, 4, 2, 1, 8, 3, 0, 0, 1, 0), "0.87 0.95", "1536 3072"),
    ("tma_store", (192, 4, 1, 0, 16, 3, 0, 0, 1, 0), "0.85 0.92", "1536 3072"),
    ("tma_store", (192, 4, 1, 1, 16, 3, 0, 0, 1, 0), "0.85 0.92", "1536 3072"),
    ("tma_store", (128, 6, 2, 0, 8, 2, 0, 0, 1, 0), "0.65 0.75", "1536 3072 2048"),
    ("tma_store", (256, 4, 2, 1, 8, 2, 0, 0, 1, 0), "0.72 0.78", "1536 3072"),
)  # fmt: skip
TUNED = {  # what a shape is called there: M, N, K, dtype, layouts, and what of matmul.cuh stands beside
    CUBE: (4096, 4096, 4096, "bf16", "nn", ("cupy.tensor_core", "cupy.tma_store")),
    "fp32": (4096, 4096, 4096, "fp32", "nn", ("cupy.register",)),
    "1024": (1024, 1024, 1024, "bf16", "nn", ("cupy.tma_store",)),
    "8192": (8192, 8192, 8192, "bf16", "nn", ("cupy.tma_store",)),
    "2048": (2048, 2048, 2048, "bf16", "nn", ("cupy.tma_store",)),
    "1536": (1536, 1536, 1536, "bf16", "nn", ("cupy.tma_store",)),
    "3072": (3072, 3072, 3072, "bf16", "nn", ("cupy.tma_store",)),
    "K512": (4096, 4096, 512, "bf16", "nn", ("cupy.tma_store",)),
}  # fmt: skip
TUNE_GROUPS = 16


def tuned_label(kind, config):
    return f"{kind}({','.join(map(str, config))})"


def tune_with(kind, config):
    def run(a, b):
        import numpy as np
        import torch
        from compare.device import multiprocessors
        from cuda_impl.loader import kernel
        from cuda_impl.rawkernel import matmul as mm
        from cuda_impl.tensor_map import tensor_map

        source = run.source
        (M, K), N = a.shape, b.shape[1]
        a, a_rows, lda = mm.aligned(a)
        b, b_rows, ldb = mm.aligned(b)
        c = torch.empty(M, N, dtype=a.dtype, device=a.device)
        layouts = [mm.cpp(a_rows), mm.cpp(b_rows)]
        words = [str(word) for word in config]
        if kind == "tma_store":
            block_n, stages, cluster, _, _, places, *_ = config
            words[6:] = [mm.cpp(bool(int(word))) for word in words[6:]]
            share_b = block_n % 128 == 0
            cluster_m, cluster_n = (cluster, 1) if share_b else (1, cluster)
            a_map = mm.operand_map(a, a_rows, a_rows, lda, 128 // cluster_n)
            b_map = mm.operand_map(b, not b_rows, b_rows, ldb, block_n // cluster_m)
            c_map = tensor_map(c, True, N, 16)
            tiles = mm.ceil_div(M, cluster_m * 128) * mm.ceil_div(N, cluster_n * block_n)
            blocks = cluster * min(tiles, multiprocessors(a.device) // cluster)
            shared = mm.tile_ring_bytes(128, block_n, stages) + 8 * places * 16 * 64 * 2
            name = f"tune_tma_store_kernel<{', '.join([mm.CTYPES[a.dtype], *layouts, *words])}>"
            kernel(source, name, a.device, overlap=True)(
                (blocks,), (384,), (a_map, b_map, c_map, c.data_ptr(), *map(np.int32, (M, N, K))), shared_mem=shared
            )
            return c
        m, n, k, x, y, stages, *_ = config
        if kind == "register":
            name = f"tune_register_kernel<{', '.join([*layouts, *words])}>"
            threads, shared = m * n // (x * y), stages * 4 * k * (m + 4 * a_rows + n + 4 * (not b_rows))
        else:
            name = f"tune_tensor_core_kernel<{', '.join([mm.CTYPES[a.dtype], *layouts, *words])}>"
            threads, shared = x * y * 32, stages * (m + n) * k * 2
        kernel(source, name, a.device)(
            (mm.ceil_div(M, m) * mm.ceil_div(N, n),), (threads,),
            (a.data_ptr(), b.data_ptr(), c.data_ptr(), *map(np.int64, (M, N, K, lda, ldb))), shared_mem=shared,
        )  # fmt: skip
        return c

    with open(os.path.join(ROOT, ".bench", "tune.cuh")) as file:
        run.source = file.read()
    return run


def check_candidates(group):
    """Prints GOOD and a label for each that agrees with fp64, on whole and on ragged shapes."""
    import torch

    for kind, config, *_ in TUNE[group::TUNE_GROUPS]:
        label, run = tuned_label(kind, config), tune_with(kind, config)
        dtype = "fp32" if kind == "register" else "bf16"
        bad = []
        try:
            for layouts in ("nn", "tt") if kind == "tma_store" and config[0] == 192 else ("nn",):
                for shape in ((128, 256, 64), (1000, 1032, 1048), (64, 48, 80), (2001, 2056, 328), (4096, 2048, 200),
                              (1536, 1536, 1536), (16, 16, 4096), (300, 8200, 512)):  # fmt: skip
                    a, b = inputs(*shape, dtype, layouts)
                    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
                    outputs = [run(a, b) for _ in range(3)]
                    torch.cuda.synchronize()
                    library = ((torch.matmul(a, b).double() - exact).abs() / scale).max().item()
                    error = ((outputs[0].double() - exact).abs() / scale).max().item()
                    if not error <= max(2 * library, 1e-6) or not all(torch.equal(outputs[0], o) for o in outputs):
                        bad.append(f"{shape} {layouts}: {error:.1e}, library {library:.1e}")
        except Exception as failure:
            bad.append(f"{type(failure).__name__}: {str(failure)[-600:]}")
        print("BAD " + label + " " + "; ".join(bad[:4]) if bad else "GOOD " + label, flush=True)


def tune(file, seconds, words):
    running = [child("--tune-check", str(i)) for i in range(TUNE_GROUPS)]
    good = []
    for process in running:
        code, out = ended(process, min(90.0, START + seconds * 0.6 - time.time()))
        good += [line.split()[1] for line in out.splitlines() if line.startswith("GOOD")]
        for line in out.splitlines() if code == 0 else [f"{code}: {out[-1500:]}"]:
            if not line.startswith("GOOD"):
                say(line)
    say(f"{len(set(good))} candidates agree")
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--tune-time", file, str(seconds), *good,
                                "--", *words], cwd=ROOT)
    try:
        process.wait(max(5.0, START + seconds + 10 - time.time()))
    except subprocess.TimeoutExpired:
        process.kill()
        say("timing cut off")


EXPECTED = {}


def candidates_for(name, good, _):
    runs = every()
    found = {label: runs[label] for label in ("torch.eager", *TUNED[name][5])}
    for kind, config, expected, shapes in TUNE:
        label = tuned_label(kind, config)
        here = shapes.split() if " bf16" not in shapes else [shapes]
        if label in good and (name in here or name == CUBE and "4096" in here):
            found[label] = tune_with(kind, config)
            EXPECTED[label] = expected
    return found


def timed(file, seconds, good, words, table=TIMED, chosen=chosen, turns=9):
    import torch

    end = START + seconds
    lines = [f"# {torch.cuda.get_device_name()} torch {torch.__version__}"]
    scratch = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def event_pair():
        return [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def middle(values):
        return sorted(values)[len(values) // 2] if values else float("nan")

    for M, N, K, dtype, layouts, what in table:
        title = f"{M}x{N}x{K} {dtype} {layouts}"
        if words and not any(word in title for word in words):
            continue
        if time.time() > end - 8:
            say("out of time before", title)
            break
        flop = 2 * M * N * K
        pairs = [inputs(M, N, K, dtype, layouts, seed) for seed in range(2)]
        graphs, calls_of, runs = {}, {}, {}
        for label, run in chosen(what, good, dtype).items():
            try:
                run(*pairs[0])
                torch.cuda.synchronize()
                begin, stop = event_pair()
                begin.record()
                run(*pairs[1])
                stop.record()
                torch.cuda.synchronize()
                once = begin.elapsed_time(stop) / 1e3
                if once > 0.6:
                    say(f"{label}: {once:.2f} s a call, not timed")
                    continue
                calls = max(1, min(20, int(3e-3 / once))) if once < 0.02 else 1
                calls = calls if calls < 2 else calls // 2 * 2
                graph, kept = torch.cuda.CUDAGraph(), []
                with torch.cuda.graph(graph):
                    for i in range(calls):
                        kept.append(run(*pairs[i % 2]))
                        del kept[:-2]
                graphs[label], calls_of[label], runs[label] = graph, calls, (run, once)
            except Exception as error:
                say(f"{title} {label}: {type(error).__name__}: {str(error)[:300]}")
                torch.cuda.synchronize()

        def replayed(label, replays):
            begin, stop = event_pair()
            begin.record()
            for _ in range(replays):
                graphs[label].replay()
            stop.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(stop) / 1e3 / replays / calls_of[label]

        def alone(label, turn):
            begin, stop = event_pair()
            scratch.fill_(turn)
            torch.cuda._sleep(600_000)
            begin.record()
            runs[label][0](*pairs[turn % 2])
            stop.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(stop) / 1e3

        single, burst, sustained = ({label: [] for label in graphs} for _ in range(3))
        quick = [label for label in graphs if runs[label][1] < 0.02]
        for turn in range(turns if flop < 4e12 else 5):
            for label in random.sample(list(graphs), len(graphs)):
                if label not in quick and turn > 2:
                    continue
                single[label].append(alone(label, turn))
                time.sleep(0.006)
                burst[label].append(replayed(label, 1))
        if flop > 1e9 and time.time() < end - 12:
            for _ in range(3):
                for label in random.sample(quick, len(quick)):
                    replays = max(1, int(0.08 / (middle(burst[label]) * calls_of[label])))
                    sustained[label].append(replayed(label, replays))
        for label in graphs:
            def ratio(samples):
                return middle([x / y for x, y in zip(samples["torch.eager"], samples[label])])

            line = (f"{title} {label:36s} alone {middle(single[label]) * 1e6:9.1f} us {ratio(single):.3f}  burst "
                    f"{middle(burst[label]) * 1e6:9.1f} us {flop / middle(burst[label]) / 1e12:6.1f} TFLOP/s "
                    f"{ratio(burst):.3f}")
            if sustained[label]:
                line += f" | sustained {flop / middle(sustained[label]) / 1e12:6.1f} {ratio(sustained):.3f}"
            if label in EXPECTED:
                line += f" | expected {EXPECTED[label]}"
            lines.append(line)
            print(line, flush=True)
        say("done", title)
        with open(file, "w") as out:
            out.write("\n".join(lines) + "\n")
        del graphs, pairs, runs
        torch.cuda.empty_cache()


def main():
    file = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 420.0
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    if only == "tune":
        return tune(file, seconds, sys.argv[4:])
    good_file = file + ".good"
    if only == "time":
        good = open(good_file).read().split()
    else:
        good = checked(min(200.0, seconds * 0.6))
        with open(good_file, "w") as out:
            out.write("\n".join(good) + "\n")
        say("good:", *good)
    if only != "check":
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--time", file, str(seconds), *good,
                                    "--", *sys.argv[4:]], cwd=ROOT)
        try:
            process.wait(max(5.0, START + seconds + 10 - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            say("timing cut off")


if __name__ == "__main__":
    if sys.argv[1] == "--build":
        from cuda_impl import build

        print(build.pybind_module("matmul", "sm_90"))
    elif sys.argv[1] == "--compile":
        compile_variant(sys.argv[2])
    elif sys.argv[1] == "--configs":  # compiles them, launches go nowhere
        import cuda_impl.loader as loader

        loader._CudaKernel.__call__ = lambda self, *args, **kwargs: None
        for config in REGISTER[int(sys.argv[2]) :: 5]:
            register_with(config)(*inputs(512, 512, 512, "fp32"))
        for config in TENSOR_CORE[int(sys.argv[2]) :: 5]:
            tensor_core_with(config)(*inputs(512, 512, 512, "bf16"))
    elif sys.argv[1] == "--check":
        check_variant(sys.argv[2:])
    elif sys.argv[1] == "--tune-check":
        check_candidates(int(sys.argv[2]))
    elif sys.argv[1] == "--tune-time":
        cut = sys.argv.index("--")
        table = [(*shape[:5], name) for name, shape in TUNED.items()]
        timed(sys.argv[2], float(sys.argv[3]), set(sys.argv[4:cut]), sys.argv[cut + 1 :], table, candidates_for, 13)
    elif sys.argv[1] == "--time":
        cut = sys.argv.index("--")
        timed(sys.argv[2], float(sys.argv[3]), sys.argv[4:cut], sys.argv[cut + 1 :])
    else:
        main()
