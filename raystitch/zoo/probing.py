"""What each value of a traced net is, found by running it on tensors without data.

Three batch sizes tell what depends on the batch: a size that is k·B + c is computed again by each
half from its own input, all else that is no tensor is a constant at this resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from raystitch.errors import RaystitchError
from raystitch.zoo.tracing import Trace

BATCHES = (2, 3, 7)


@dataclass(frozen=True)
class Constant:
    """The same at every batch size."""

    value: Any


@dataclass(frozen=True)
class OfBatch:
    """scale · batch + offset."""

    scale: int
    offset: int


@dataclass(frozen=True)
class OfInput:
    """An attribute of the half's own input: its ``device`` or ``dtype``."""

    attribute: str


@dataclass(frozen=True)
class Several:
    """A tuple or list of forms."""

    items: tuple[Form, ...]
    make: type[tuple[Any, ...]] | type[list[Any]]


Form = Constant | OfBatch | OfInput | Several


@dataclass
class Probe:
    """What every node gave at each of `BATCHES`, and the FLOPs per image it took itself.

    A multiply-add counts as two; only matrix products, attention and convolutions are counted.
    """

    values: dict[fx.Node, tuple[Any, ...]]
    flops: dict[fx.Node, int]
    device: torch.device
    dtype: torch.dtype

    def tensor(self, node: fx.Node, batch: int = 0) -> Tensor | None:
        """The value at one of the batch sizes, if it is a tensor."""
        value = self.values[node][batch]
        return value if isinstance(value, Tensor) else None

    def holds_tensors(self, node: fx.Node) -> bool:
        return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(self.values[node][0]))

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape at the first batch size; empty for what is no tensor."""
        value = self.tensor(node)
        return () if value is None else tuple(value.shape)

    def share_storage(self, one: fx.Node, other: fx.Node) -> bool:
        """Whether two nodes hold, or contain, tensors on one storage."""
        return bool(self._storages(one) & self._storages(other))

    def keeps_batch(self, node: fx.Node) -> bool:
        """Whether the node is a floating point tensor (batch, ...) of one shape per image."""
        tensors = [self.tensor(node, place) for place in range(len(BATCHES))]
        shapes = [tuple(tensor.shape) for tensor in tensors if tensor is not None]
        return (
            len(shapes) == len(BATCHES)
            and all(shape[:1] == (batch,) for shape, batch in zip(shapes, BATCHES, strict=True))
            and len({shape[1:] for shape in shapes}) == 1
            and cast(Tensor, tensors[0]).dtype == self.dtype
        )

    def form(self, node: fx.Node) -> Form | None:
        """How a half computes this value, which is no tensor; None if it must run the node."""
        return _form(self.values[node], self)

    def _storages(self, node: fx.Node) -> set[int]:
        leaves = pytree.tree_leaves(self.values[node][0])
        return {cast(Any, t).untyped_storage()._cdata for t in leaves if isinstance(t, Tensor)}


def probe(trace: Trace, image_shape: Sequence[int]) -> Probe:
    """Run the graph on data-free images (batch, *image_shape) at each of `BATCHES`.

    Raises `RaystitchError` naming the operation that needs the data themselves.
    """
    first = next(iter(trace.root.parameters()), torch.empty(0))
    device, dtype = first.device, first.dtype
    runs = [_run(trace, (batch, *image_shape), device, dtype) for batch in BATCHES]
    values = {node: tuple(run.values[node] for run in runs) for node in trace.graph.nodes}
    flops = {node: count // BATCHES[0] for node, count in runs[0].flops.items()}
    return Probe(values, flops, device, dtype)


def _run(
    trace: Trace, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> _Recorder:
    recorder = _Recorder(trace)
    # Attention as plain products can be counted; so can it where gradients are asked for, which
    # keeps nn.MultiheadAttention off its fused path.
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
        recorder.counter,
    ):
        images = torch.empty(shape, device=device, dtype=dtype, requires_grad=True)
        recorder.run(images)
    return recorder


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps every value and the FLOPs of every node."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.root, garbage_collect_values=False, graph=trace.graph)
        self.extra_traceback = False
        self.trace = trace
        self.counter = _FlopCounter()
        self.values: dict[fx.Node, Any] = {}
        self.flops: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = self.counter.total
        try:
            value = super().run_node(n)
        except RaystitchError:
            raise
        except Exception as fault:
            raise self.trace.fault(n, fault) from fault
        self.values[n] = value
        self.flops[n] = self.counter.total - before
        return value


class _FlopCounter(TorchDispatchMode):
    """Adds up torch's own FLOP formulas of the operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formulas: dict[Any, Callable[..., int]] = flop_registry
        if (formula := formulas.get(func._overloadpacket)) is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result


_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_PLAIN_TORCH = (torch.memory_format, torch.layout)


def _form(values: tuple[Any, ...], probe: Probe) -> Form | None:
    first = values[0]
    if isinstance(first, (tuple, list)):
        return _form_of_sequence(values, probe)
    if isinstance(first, torch.device) and first == probe.device:
        return OfInput("device")
    if isinstance(first, torch.dtype) and first == probe.dtype:
        return OfInput("dtype")
    if isinstance(first, (*_PLAIN, *_PLAIN_TORCH)) and all(value == first for value in values):
        return Constant(first)
    if all(isinstance(value, int) for value in values):
        return _of_batch(values)
    return None


def _form_of_sequence(values: tuple[Any, ...], probe: Probe) -> Form | None:
    first = values[0]
    # torch.Size is written as a tuple; named tuples and the like are left to the node itself.
    make = tuple if type(first) in (tuple, torch.Size) else list if type(first) is list else None
    if make is None or len({len(value) for value in values}) != 1:
        return None
    items = [_form(tuple(parts), probe) for parts in zip(*values, strict=True)]
    known = tuple(item for item in items if item is not None)
    return Several(known, make) if len(known) == len(items) else None


def _of_batch(values: tuple[int, ...]) -> OfBatch | None:
    scale, rest = divmod(values[1] - values[0], BATCHES[1] - BATCHES[0])
    form = OfBatch(scale, values[0] - scale * BATCHES[0])
    fits = all(
        value == form.scale * batch + form.offset
        for value, batch in zip(values, BATCHES, strict=True)
    )
    return form if rest == 0 and fits else None
