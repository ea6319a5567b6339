"""A decoder-only transformer: the Llama architecture, with weights in the format of safetensors.

The same model runs on PyTorch (a GPU, or the CPU) and on numpy, which is enough for a tiny model. Called by worker.py.
"""

from __future__ import annotations

import ctypes
import json
import math
import platform
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EPSILON = 1e-5
#: Standard deviation of random weights.
DEVIATION = 0.02
#: Alignment of the first tensor of a file.
ALIGN = 64


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    context: int = 256

    @property
    def head(self) -> int:
        return self.width // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors by name. The embedding is the output layer, too."""
        kv = self.kv_heads * self.head
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, self.width), "norm": (self.width,)}
        for layer in range(self.layers):
            shapes |= {
                f"{layer}.attention_norm": (self.width,),
                f"{layer}.query": (self.width, self.width),
                f"{layer}.key": (self.width, kv),
                f"{layer}.value": (self.width, kv),
                f"{layer}.output": (self.width, self.width),
                f"{layer}.hidden_norm": (self.width,),
                f"{layer}.gate": (self.width, self.hidden),
                f"{layer}.up": (self.width, self.hidden),
                f"{layer}.down": (self.hidden, self.width),
            }
        return shapes

    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes().values())


SIZES = {
    "tiny": Config(layers=4, width=192, heads=6, kv_heads=2, hidden=512, vocabulary=1024),
    "1b": Config(layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, vocabulary=65_536),
    "3b": Config(layers=28, width=3072, heads=24, kv_heads=8, hidden=8192, vocabulary=65_536),
    "8b": Config(layers=32, width=4096, heads=32, kv_heads=8, hidden=14_336, vocabulary=128_256),
}


class NumpyBackend:
    """numpy on the CPU."""

    dtype, item_bytes = "F32", 4

    def __init__(self) -> None:
        import numpy

        self.np: Any = numpy
        self.device = f"CPU ({platform.machine()}, numpy {numpy.__version__})"

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        return self.np.random.default_rng(seed).standard_normal(shape, self.np.float32) * self.np.float32(DEVIATION)

    def ones(self, shape: tuple[int, ...]) -> Any:
        return self.np.ones(shape, self.np.float32)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.np.zeros(shape, self.np.float32)

    def array(self, values: list[Any]) -> Any:
        return self.np.array(values, self.np.float32)

    def tokens(self, tokens: list[int]) -> Any:
        return self.np.array(tokens)

    def raw(self, tensor: Any) -> memoryview:
        return memoryview(self.np.ascontiguousarray(tensor)).cast("B")

    def read(self, path: Path, tensors: dict[str, tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
        def one(offset: int, shape: tuple[int, ...]) -> Any:
            return self.np.fromfile(path, self.np.float32, math.prod(shape), offset=offset).reshape(shape)

        return {name: one(*place) for name, place in tensors.items()}

    def norm(self, x: Any, weight: Any) -> Any:
        return x / self.np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight

    def softmax(self, x: Any) -> Any:
        exponentials = self.np.exp(x - x.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def silu(self, x: Any) -> Any:
        return x / (1 + self.np.exp(-x))

    def concatenate(self, parts: list[Any]) -> Any:
        return self.np.concatenate(parts, -1)

    def greedy(self, logits: Any) -> Any:
        return logits.argmax(-1)

    def finish(self) -> None:
        """All operations have ended when they return."""

    def release(self) -> None:
        """The memory of a dropped model is free at once."""


class TorchBackend:
    """PyTorch in bfloat16, on a GPU or on the CPU."""

    dtype, item_bytes = "BF16", 2

    def __init__(self, device: str) -> None:
        import torch

        torch.set_grad_enabled(False)
        self.torch: Any = torch
        self.place = torch.device(device)
        self.on_gpu = self.place.type == "cuda"
        name = torch.cuda.get_device_name(self.place) if self.on_gpu else f"CPU ({platform.machine()})"
        self.device = f"{name}, PyTorch {torch.__version__}"

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        generator = self.torch.Generator(self.place).manual_seed(seed)
        return self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.place).normal_(0, DEVIATION, generator=generator)

    def ones(self, shape: tuple[int, ...]) -> Any:
        return self.torch.ones(shape, dtype=self.torch.bfloat16, device=self.place)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.torch.zeros(shape, dtype=self.torch.bfloat16, device=self.place)

    def array(self, values: list[Any]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.bfloat16, device=self.place)

    def tokens(self, tokens: list[int]) -> Any:
        return self.torch.tensor(tokens, device=self.place)

    def raw(self, tensor: Any) -> memoryview:
        tensor = tensor.contiguous().cpu()
        size = tensor.numel() * tensor.element_size()
        # The copy lets go of the tensor's memory.
        return memoryview(bytes((ctypes.c_char * size).from_address(tensor.data_ptr())))

    def read(self, path: Path, tensors: dict[str, tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
        mapped = self.torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=self.torch.uint8)

        def one(offset: int, shape: tuple[int, ...]) -> Any:
            part = mapped[offset : offset + math.prod(shape) * self.item_bytes]
            return part.view(self.torch.bfloat16).reshape(shape).to(self.place, copy=True)

        return {name: one(*place) for name, place in tensors.items()}

    def norm(self, x: Any, weight: Any) -> Any:
        return self.torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1, dtype=self.torch.float32).to(x.dtype)

    def silu(self, x: Any) -> Any:
        return self.torch.nn.functional.silu(x)

    def concatenate(self, parts: list[Any]) -> Any:
        return self.torch.cat(parts, -1)

    def greedy(self, logits: Any) -> Any:
        return logits.argmax(-1)

    def finish(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize(self.place)

    def release(self) -> None:
        if self.on_gpu:
            self.torch.cuda.empty_cache()


Backend = NumpyBackend | TorchBackend


def backend(device: str) -> Backend:
    """`auto` is a GPU if PyTorch finds one, then numpy, then PyTorch on the CPU."""
    if device == "numpy":
        return NumpyBackend()
    if device != "auto":
        return TorchBackend(device)
    try:
        import torch

        if torch.cuda.is_available():
            return TorchBackend("cuda")
    except ImportError:
        return NumpyBackend()
    try:
        return NumpyBackend()
    except ImportError:
        return TorchBackend("cpu")


def write_random(path: Path, config: Config, seed: int, compute: Backend) -> None:
    """Writes a model with random weights."""
    header: dict[str, Any] = {"__metadata__": {"config": json.dumps(asdict(config))}}
    end = 0
    for name, shape in config.shapes().items():
        start, end = end, end + math.prod(shape) * compute.item_bytes
        header[name] = {"dtype": compute.dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (name, shape) in enumerate(config.shapes().items()):
            tensor = compute.ones(shape) if name.endswith("norm") else compute.random(shape, seed * 10_000 + number)
            file.write(compute.raw(tensor))
    part.rename(path)


class Transformer:
    """A loaded model."""

    def __init__(self, path: Path, compute: Backend) -> None:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        self.config = Config(**json.loads(header.pop("__metadata__")["config"]))
        places = {name: (8 + size + one["data_offsets"][0], tuple(one["shape"])) for name, one in header.items()}
        self.compute = compute
        self.weights = compute.read(path, places)
        half = self.config.head // 2
        angles = [[at / 10_000 ** (pair / half) for pair in range(half)] for at in range(self.config.context)]
        self.cosines = compute.array([[math.cos(angle) for angle in row] for row in angles])
        self.sines = compute.array([[math.sin(angle) for angle in row] for row in angles])
        compute.finish()

    def _rotate(self, x: Any, start: int) -> Any:
        """Rotary embedding of the position. `x` is head × position × width."""
        end, half = start + x.shape[1], self.config.head // 2
        cosines, sines = self.cosines[start:end], self.sines[start:end]
        first, second = x[..., :half], x[..., half:]
        return self.compute.concatenate([first * cosines - second * sines, second * cosines + first * sines])

    def _attend(self, layer: int, x: Any, start: int, cache: tuple[Any, Any]) -> Any:
        config, weights, count = self.config, self.weights, x.shape[0]
        end, groups = start + count, config.heads // config.kv_heads

        def heads(name: str, number: int) -> Any:
            return (x @ weights[f"{layer}.{name}"]).reshape(count, number, config.head).swapaxes(0, 1)

        keys, values = cache
        keys[:, start:end] = self._rotate(heads("key", config.kv_heads), start)
        values[:, start:end] = heads("value", config.kv_heads)
        queries = self._rotate(heads("query", config.heads), start).reshape(config.kv_heads, groups * count, config.head)
        scores = queries @ keys[:, :end].swapaxes(1, 2) * config.head**-0.5
        if count > 1:
            # A token attends to itself and to those before it.
            mask = [[0.0 if at <= start + row else -1e9 for at in range(end)] for row in range(count)]
            scores = scores.reshape(config.kv_heads, groups, count, end) + self.compute.array(mask)
            scores = scores.reshape(config.kv_heads, groups * count, end)
        mixed = (self.compute.softmax(scores) @ values[:, :end]).reshape(config.heads, count, config.head)
        return mixed.swapaxes(0, 1).reshape(count, config.width) @ weights[f"{layer}.output"]

    def _forward(self, tokens: Any, start: int, caches: list[tuple[Any, Any]]) -> Any:
        """The logits after the last of these tokens."""
        compute, weights = self.compute, self.weights
        x = weights["embedding"][tokens]
        for layer in range(self.config.layers):
            x = x + self._attend(layer, compute.norm(x, weights[f"{layer}.attention_norm"]), start, caches[layer])
            inner = compute.norm(x, weights[f"{layer}.hidden_norm"])
            gate = compute.silu(inner @ weights[f"{layer}.gate"])
            x = x + (gate * (inner @ weights[f"{layer}.up"])) @ weights[f"{layer}.down"]
        return compute.norm(x[-1:], weights["norm"]) @ weights["embedding"].swapaxes(0, 1)

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Continues the prompt by `count` tokens, the most probable one each time."""
        config, compute = self.config, self.compute
        if not prompt or len(prompt) + count > config.context:
            raise ValueError(f"prompt and answer need 1 to {config.context} tokens; they have {len(prompt) + count}")
        shape = (config.kv_heads, len(prompt) + count, config.head)
        caches = [(compute.zeros(shape), compute.zeros(shape)) for _ in range(config.layers)]
        tokens, start, made = compute.tokens([token % config.vocabulary for token in prompt]), 0, []
        for _ in range(count):
            logits = self._forward(tokens, start, caches)
            start += tokens.shape[0]
            tokens = compute.greedy(logits)
            made.append(tokens)
        # Tokens stay on the device until here, so that the device never waits for this program.
        return [int(token[0]) for token in made]
