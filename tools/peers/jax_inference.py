"""Embedding and generation with bertjax, for compare_peers.py.

    python jax_inference.py FOLDER

FOLDER has the random GPT-2 that torch_inference.py wrote.
"""

import pathlib
import sys

from inputs import minilm_folder, prompts, sentences
from worker import PRECISIONS, Shape, Step, serve

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))
import bertjax
from bertjax.train.checkpoint import trees


def embedding(shape: Shape) -> tuple[Step, int]:
    """`Model.embed` of all sentences."""
    model = bertjax.load(minilm_folder(), precision=PRECISIONS[shape.precision])
    texts = sentences(shape.batch_size)
    return lambda: model.embed(texts), trees.num_parameters(model.params)


def generation(shape: Shape) -> tuple[Step, int]:
    """`Model.generate`: greedy, from text to text."""
    folder, texts = pathlib.Path(sys.argv[1]) / shape.name, prompts(shape)
    model = bertjax.load(folder, precision=PRECISIONS[shape.precision])
    options = {"max_new_tokens": shape.new_tokens, "batch_size": shape.batch_size}
    return lambda: model.generate(texts, **options), trees.num_parameters(model.params)


if __name__ == "__main__":
    tasks = {"embedding": embedding, "generation": generation}
    serve({"bertjax": lambda shape: tasks[shape.task](shape)})
