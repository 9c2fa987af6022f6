"""Chains of products with and without programmatic dependent launch, against cuBLAS.

    python benchmarks/gemm_chains.py --check 100000
    python benchmarks/gemm_chains.py --check 3000 --broken
    python benchmarks/gemm_chains.py --json benchmarks/results/gemm_chains_h200.json

`--check` runs so many chains of kernels and operations of torch, picked by chance (tests/gemm/
chains.py), eagerly and in graphs, and compares every result bit for bit. With `--broken`, half of
the GEMMs that may start early do not wait, and wrong results must be found, or it exits with 1: the
check sees what it is for. They are found behind operations that let the next kernel start tens of
microseconds before they write; behind another GEMM, which lets it start shortly before its end, a
missing wait shows rarely or never.

Without it, the four products of a decoder layer are timed, over several layers' weights in one
replayed graph, as a server decodes. For each product, kernels of small tiles are checked against
float64 and timed alone, in graphs over the same weights: without the feature, with it (`wait`), and
with B's first tiles loaded early (`ahead`). The fastest of each kind then make up that kind's
layer. `same_tiles` are the kernels of `ahead` without the feature. `chosen` is what a dispatcher
takes by itself. All layers' graphs, and that of torch.mm, are replayed in turns; medians. A kernel
whose result is wrong is listed and not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gemm"))

from environment import environment
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, pipelines
from tilewright.ops.gemm.tuning import tuning_spaces

MODELS = {
    "8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "1B": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)),
    "70B over 8 GPUs": ((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
}
"""(N, K) of the four products of a layer of Llama 3: queries, keys and values; output; gate and up;
down."""
ROWS = (1, 16, 64, 256)
WORDS = ("none", "wait", "ahead")
SHOWN = 20
"""Wrong results of which the chain is printed."""
READ_BYTES_A_US = 4.27e6
"""What an H200 reads, measured: the floor of a layer is its weights over this."""


def candidates(problem: GemmProblem, gpu: Device, each: int) -> list[GemmConfig]:
    """The kernels with the `each` least estimates of those that load B early, and of those for few
    rows."""
    this = arch(gpu.arch)
    found = {
        c.name: c
        for space in tuning_spaces(problem, this)
        for c in space.expand(this).configs
        if FAMILY.supports(c, problem, this)
    }
    kept = []
    for some in (
        [c for c in found.values() if c.dependent_launch == "ahead"],
        [c for c in found.values() if pipelines.of(c).few_rows],
    ):
        kept += [c for c, _ in FAMILY.rank(problem, some, gpu)][:each]
    return kept


def replayed(graphs: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Median microseconds of a replay of each graph, in turns."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds):
        order = list(graphs.items())
        for name, graph in order if number % 2 else reversed(order):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()  # the clock is up and the queue is not empty
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def captured(calls: Sequence[Callable[[], object]]) -> Any:
    import torch

    for call in calls:  # nothing is built during the capture
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


class Product:
    """One product of a layer, with the weights of every layer.

    n, k: its sizes. rows: M. layers: how many.
    """

    def __init__(self, rows: int, n: int, k: int, layers: int) -> None:
        import torch

        made = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.problem = GemmProblem(rows, n, k, constant_b=True)
        self.a = made(rows, k)
        self.weights = [made(n, k).div_(k**0.5).T for _ in range(layers)]
        self.out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
        self.reference = self.a.double() @ self.weights[0].double()
        torch.cuda.synchronize()  # from here on the weights are constant

    def mm(self) -> list[Callable[[], object]]:
        """torch's product with each layer's weights."""
        import torch

        return [partial(torch.mm, self.a, b, out=self.out) for b in self.weights]

    def chosen(self, dispatcher: Any) -> list[Callable[[], object]]:
        """A dispatcher's own choice."""
        return [partial(dispatcher.run, "gemm", self.a, b, out=self.out) for b in self.weights]

    def calls(self, dispatcher: Any, config: GemmConfig) -> list[Callable[[], object]]:
        """A kernel with each layer's weights."""
        said = {"constant_b": True} if config.dependent_launch == "ahead" else {}
        run = partial(dispatcher.run_named, config.name, self.a)
        return [partial(run, b, out=self.out, **said) for b in self.weights]

    def right(self, call: Callable[[], object], config: GemmConfig | None) -> bool:
        """Whether a call with the first layer's weights gives the product."""
        from tilewright import verify

        self.out.fill_(float("nan"))
        call()
        allowed = verify.tolerance(self.problem, config)
        return bool(verify.compare(self.out, self.reference, allowed).ok)


def best(
    product: Product, gpu: Device, store: Any, options: argparse.Namespace
) -> tuple[dict[str, GemmConfig], dict[str, Any]]:
    """The fastest kernel of each of `WORDS` for a product, and what was seen: microseconds of each
    kernel, names of those that were wrong or not built."""
    import torch

    from tilewright.compile import build
    from tilewright.dispatch import Dispatcher

    tiles = candidates(product.problem, gpu, options.each)
    worded = [replace(c, dependent_launch=word) for c in tiles for word in WORDS]
    configs = dict.fromkeys(c for c in worded if FAMILY.judge(c, arch(gpu.arch)))
    report = build([(c, gpu.arch) for c in configs], store=store)
    dispatcher = Dispatcher(store=store)
    graphs, right, wrong = {}, {}, []
    for result in report.results:
        if not result.ok:
            continue
        calls = product.calls(dispatcher, result.config)
        if product.right(calls[0], result.config):
            right[result.name] = result.config
            graphs[result.name] = captured(calls)
        else:
            wrong.append(result.name)
    times = replayed(graphs, options.quick)
    graphs.clear()
    torch.cuda.synchronize()
    dispatcher.workspaces.release()
    fastest = {}
    for word in WORDS:
        those = [name for name, c in right.items() if c.dependent_launch == word]
        if those:
            fastest[word] = right[min(those, key=times.__getitem__)]
    each = {name: us / len(product.weights) for name, us in times.items()}
    unbuilt = [str(r) for r in report.results if not r.ok]
    return fastest, {"us": each, "wrong": wrong, "not_built": unbuilt}


def measured(
    model: str, rows: int, gpu: Device, store: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of a model's layer at M = `rows`."""
    from tilewright.dispatch import Dispatcher

    products = [Product(rows, n, k, options.layers) for n, k in MODELS[model]]
    found = [best(product, gpu, store, options) for product in products]
    dispatcher = Dispatcher(store=store)

    def layers(calls: Sequence[Sequence[Callable[[], object]]]) -> list[Callable[[], object]]:
        """Layer after layer, its products in order."""
        return [product[layer] for layer in range(options.layers) for product in calls]

    kinds = {"torch.mm": [p.mm() for p in products]}
    kinds["chosen"] = [p.chosen(dispatcher) for p in products]
    for product, calls in zip(products, kinds["chosen"], strict=True):
        assert product.right(calls[0], None), f"what is chosen for {product.problem} is wrong"
    picked = {word: [fastest[word] for fastest, _ in found] for word in WORDS}
    picked["same_tiles"] = [replace(c, dependent_launch="none") for c in picked["ahead"]]
    for word, configs in picked.items():
        each = zip(products, configs, strict=True)
        kinds[word] = [product.calls(dispatcher, config) for product, config in each]
    graphs = {name: captured(layers(calls)) for name, calls in kinds.items()}
    times = {n: us / options.layers for n, us in replayed(graphs, options.rounds).items()}
    weights = sum(2 * n * k for n, k in MODELS[model])
    row = {
        "model": model,
        "m": rows,
        "floor_us": weights / READ_BYTES_A_US,
        "us_a_layer": times,
        "mm_over": {name: times["torch.mm"] / us for name, us in times.items()},
        "kernels": {word: [c.name for c in configs] for word, configs in picked.items()},
        "products": [
            {"n": n, "k": k, **seen} for (n, k), (_, seen) in zip(MODELS[model], found, strict=True)
        ],
    }
    graphs.clear()
    return row


def timed(options: argparse.Namespace) -> int:
    import torch

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store

    gpu, store, results = live_device(0), Store(), []
    for model in options.models or MODELS:
        for rows in options.rows:
            row = measured(model, rows, gpu, store, options)
            results.append(row)
            said = {name: round(us, 1) for name, us in row["us_a_layer"].items()}
            print(model, f"M={rows}", f"floor {row['floor_us']:.1f}", said, flush=True)
            for product in row["products"]:
                for name in (*product["wrong"], *product["not_built"]):
                    print(f"  WRONG or not built: {name}")
            torch.cuda.empty_cache()
            if options.json:  # after each row, so that a run that is cut off leaves its rows
                document = {
                    "environment": environment(),
                    "layers": options.layers,
                    "rounds": options.rounds,
                    "rows": results,
                }
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def checked(count: int, seed: int, store: Any, sharing: bool = True) -> int:
    """The number of wrong results. store: where kernels are built. sharing: with kernels whose
    workgroups share tiles."""
    import chains

    from tilewright.arch.detect import live_device
    from tilewright.compile import build
    from tilewright.dispatch import Dispatcher

    this = live_device(0).arch
    kernels = [k for k in chains.kernels(this) if sharing or k.reduction == "none"]
    build([(kernel, this) for kernel in kernels], store=store).raise_if_failed()
    bad = 0
    sizes = (128, 256, 512)
    for number, size in enumerate(sizes):
        drawn = chains.Chains(Dispatcher(store=store), kernels, size, seed + number)
        share = -(-count // len(sizes))
        run = 0
        for done, wrong, chain in chains.check(drawn, share):
            run, bad = done, bad + wrong
            if wrong and bad < SHOWN:
                print(f"{wrong} wrong: {chain}", flush=True)
        print(f"matrices of {size}: {run} chains, {bad} wrong results so far", flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=int, metavar="N", help="run N chains and compare")
    parser.add_argument("--broken", action="store_true", help="check that faults are found")
    parser.add_argument("--seed", type=int, default=0, help="of the chains")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), help="by default all")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, help="M")
    parser.add_argument("--layers", type=int, default=4, help="whose weights are walked")
    parser.add_argument("--each", type=int, default=16, help="tiles of each product, by estimate")
    parser.add_argument("--quick", type=int, default=7, help="replays that pick a product's kernel")
    parser.add_argument("--rounds", type=int, default=41, help="replays of each layer")
    options = parser.parse_args()
    from tilewright.compile import Store

    if options.broken:
        import chains

        with tempfile.TemporaryDirectory() as folder, chains.without_waits():
            # Kernels that share tiles might wait for ever for each other.
            found = checked(options.check or 3000, options.seed, Store(folder), sharing=False)
        return 0 if found else 1
    if options.check is not None:
        return 1 if checked(options.check, options.seed, Store()) else 0
    return timed(options)


if __name__ == "__main__":
    sys.exit(main())
