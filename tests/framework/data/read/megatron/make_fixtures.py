"""Writes the datasets in this folder with Megatron's own writer.

    pip download megatron-core==0.16.1 --no-deps
    unzip megatron_core-*.whl -d core
    pip install numpy
    python3 make_fixtures.py core .

It loads only the module of the writer, without PyTorch, whose names that module
uses only in declarations.
"""

import sys
import types
from types import SimpleNamespace

import numpy

TYPES = ("uint8", "int8", "int16", "int32", "int64", "uint16")

# Each document is a list of sequences, which Megatron calls sentences.
DOCUMENTS = [[[11, 12, 13]], [[14]], [], [[15, 16], [17, 100, 19, 20]], [[21]]]


def stub(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def load_writer(core):
    """Returns Megatron's IndexedDatasetBuilder, from the wheel in `core`."""
    stub("torch", Tensor=object,
         utils=SimpleNamespace(data=SimpleNamespace(Dataset=object)))
    for package in ("megatron", "megatron.core", "megatron.core.datasets"):
        stub(package, __path__=[f"{core}/{package.replace('.', '/')}"])
    stub("megatron.core.utils", log_single_rank=lambda *args: None)
    from megatron.core.datasets import indexed_dataset
    return indexed_dataset.IndexedDatasetBuilder


def main():
    core, out = sys.argv[1:]
    builder_class = load_writer(core)
    for name in TYPES:
        builder = builder_class(f"{out}/{name}.bin", getattr(numpy, name))
        for document in DOCUMENTS:
            builder.add_document(sum(document, []), [len(s) for s in document])
        builder.finalize(f"{out}/{name}.idx")


if __name__ == "__main__":
    main()
