"""Embedding and generation in PyTorch, for compare_peers.py: sentence-transformers, transformers.

    python torch_inference.py FOLDER

FOLDER receives the random GPT-2 that generates, which bertjax reads too.
"""

import pathlib
import sys

import tokenizers
import torch
import transformers
from inputs import SEED, minilm_folder, prompts, sentences
from worker import Shape, Step, serve


def embedding(shape: Shape) -> tuple[Step, int]:
    """`SentenceTransformer.encode` of all sentences."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu")
    texts = sentences(shape.batch_size)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=shape.precision == "bfloat16"):
            model.encode(texts, show_progress_bar=False)

    return step, _num_parameters(model)


def generation(shape: Shape) -> tuple[Step, int]:
    """`GPT2LMHeadModel.generate`: greedy, with a key-value cache, from text to text."""
    tokenizer = _byte_tokenizer(shape.vocab_size)
    torch.manual_seed(SEED)
    model = transformers.GPT2LMHeadModel(_gpt2_config(shape)).eval()
    folder = pathlib.Path(sys.argv[1]) / shape.name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = prompts(shape)

    def step() -> None:
        inputs = tokenizer(texts, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=shape.new_tokens, do_sample=False)
        tokenizer.batch_decode(ids[:, shape.length :])

    return step, _num_parameters(model)


def _gpt2_config(shape: Shape) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=None,
        eos_token_id=None,  # so that every text has all its tokens
        pad_token_id=0,
    )


def _byte_tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """Returns a byte-level BPE without merges: letters are tokens, the others are only decoded."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    others = (f"<{number}>" for number in range(vocab_size - len(alphabet)))
    vocabulary = {token: index for index, token in enumerate([*alphabet, *others])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _num_parameters(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve({"sentence_transformers": embedding, "huggingface": generation})
