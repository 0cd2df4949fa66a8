"""Training steps in PyTorch, for compare_peers.py: transformers, eager or compiled, and tuned.

The tuned step has a separate model, which computes logits of the masked positions alone, with one
matmul for queries, keys and values, PyTorch's fused attention and AdamW, and is compiled.
"""

import contextlib

import torch
import transformers
from torch import nn
from torch.nn import functional
from worker import LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY, Shape, Step, random_batch, serve

NO_LABEL = -100
"""The label that the loss of transformers ignores."""


def huggingface_step(shape: Shape, *, compiled: bool = False) -> tuple[Step, int]:
    """`BertForMaskedLM` or `GPT2LMHeadModel` with the labels of their collators."""
    model, inputs = {"mlm": _bert, "causal_lm": _gpt2}[shape.task](shape)
    called = torch.compile(model) if compiled else model
    return _step(model, lambda: called(**inputs).loss, shape, fused=False)


def _bert(shape: Shape) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """All positions have logits, and those that are not masked have no label."""
    tokens, positions, labels = _batch(shape)
    everywhere = torch.full_like(tokens, NO_LABEL).scatter(1, positions, labels)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": everywhere}
    return transformers.BertForMaskedLM(bert_config(shape)).train(), inputs


def bert_config(shape: Shape) -> transformers.BertConfig:
    """Returns the config of a BERT of this shape."""
    return transformers.BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
    )


def _gpt2(shape: Shape) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Every token is predicted from those before it."""
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=shape.dropout,
        embd_pdrop=shape.dropout,
        attn_pdrop=shape.dropout,
        use_cache=False,
    )
    tokens, _, _ = _batch(shape)
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def huggingface_compiled_step(shape: Shape) -> tuple[Step, int]:
    """The same, compiled."""
    return huggingface_step(shape, compiled=True)


def tuned_step(shape: Shape) -> tuple[Step, int]:
    """The tuned model, compiled together with its loss."""
    model = Bert(shape).train()
    batch = _batch(shape)
    called = torch.compile(model)
    return _step(model, lambda: called(*batch), shape, fused=True)


class Bert(nn.Module):
    """BERT with a masked-language-model head; returns the loss."""

    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.words = nn.Embedding(shape.vocab_size, width)
        self.positions = nn.Embedding(shape.length, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(shape.dropout)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width)
        self.decoder_bias = nn.Parameter(torch.zeros(shape.vocab_size))

    def forward(self, tokens, positions, labels):
        x = self.dropout(self.norm(self.words(tokens) + self.positions.weight))
        for layer in self.layers:
            x = layer(x)
        masked = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        hidden = self.transform_norm(functional.gelu(self.transform(masked)))
        logits = functional.linear(hidden, self.words.weight, self.decoder_bias)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Layer(nn.Module):
    """A block of BERT."""

    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.heads, self.rate = shape.heads, shape.dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x):
        batch_size, length, width = x.shape
        split = self.qkv(x).view(batch_size, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.rate if self.training else 0.0
        )
        attended = attended.transpose(1, 2).reshape(batch_size, length, width)
        x = self.attention_norm(x + self.dropout(self.output(attended)))
        return self.ffn_norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))


def _batch(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, masked positions and their labels."""
    return tuple(torch.tensor(array) for array in random_batch(shape).values())


def _step(model: nn.Module, loss, shape: Shape, *, fused: bool) -> tuple[Step, int]:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=fused or None
    )
    low = shape.precision == "bfloat16"
    cast = torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext()

    def step() -> None:
        with cast:
            found = loss()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(
        {
            "huggingface": huggingface_step,
            "huggingface_compiled": huggingface_compiled_step,
            "tuned_pytorch": tuned_step,
        }
    )
