"""Use a trained model from Python: `bertjax.load` returns a `Model`.

A `Model` has the config, tokenizer, Linen module and parameters of a run, and the methods of its
heads: `fill_mask`, `generate`, `classify`, `tag`, `answer`; every encoder can `embed`, and is
accepted by `mteb.evaluate`. Functions are compiled once per shape; short texts share rows.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bertjax import build, catalog, pretrained
from bertjax.decoding.search import TokenSampler
from bertjax.errors import UserError
from bertjax.huggingface import exporting, sentence_transformers
from bertjax.huggingface.architecture import pipeline_tag
from bertjax.inference import features, fill_mask, generate, language_model, predict
from bertjax.inference.fill_mask import Candidates
from bertjax.inference.mteb_encoder import MtebEncoder
from bertjax.inference.text_encoder import Row, Text, TextEncoder, check_batch, check_texts
from bertjax.interfaces import Batch
from bertjax.io import storage
from bertjax.pretrainer import Encoded, Encoder, Pretrainer
from bertjax.runs import examples


@dataclasses.dataclass(frozen=True, repr=False)
class Model(pretrained.Pretrained, MtebEncoder):
    """A trained model with its tokenizer, for inference and for custom training loops.

    `model.module.apply({"params": model.params}, batch, train=False)` is plain Linen.

    Attributes:
      source: The run and its checkpoint.
      name: The name given to `load`; for a Hugging Face folder, that of its imported run.
      precision: As `config.model.precision`; "" for that of the run.
    """

    name: str
    precision: str = ""

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config.model.name}, heads: {', '.join(self.heads)})"

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of its objectives, or of its task."""
        config = self.config
        return (config.task.name,) if "task" in config else tuple(config.objectives)

    @functools.cached_property
    def tokenizer(self) -> TextEncoder:
        """The tokenizer: `tokenizer(texts, max_length=128)` returns a batch of numpy arrays."""
        model = self.config.model
        return TextEncoder(
            super().tokenizer,
            max_length=build.positions(model),
            cls_last=build.cls_last(model),
            max_chars_per_word=examples.max_chars_per_word(model),
        )

    @functools.cached_property
    def module(self) -> Encoder:
        """The encoder, an instance of a class in `bertjax/models/`, without heads."""
        return self.encoder()

    @property
    def params(self) -> PyTree:
        """The encoder's parameters: nested dicts of JAX arrays."""
        return self.load_params("encoder")["encoder"]

    def encoder(self, precision: str = "", **fields: Any) -> Encoder:
        """See `Pretrained.encoder`; the default precision is that of this model.

        >>> bertjax.load("runs/bert").encoder("bfloat16", hidden_dropout_prob=0.0).precision
        'bfloat16'
        """
        return super().encoder(precision or self.precision, **fields)

    def load_params(self, *parts: str) -> PyTree:
        """Parts of the parameters, such as "encoder" and "mlm", on the default device.

        >>> sorted(bertjax.load("runs/bert").load_params("encoder", "mlm"))
        ['encoder', 'mlm']
        """
        for part in parts:
            if part not in self._parts:
                self._parts[part] = jax.tree.map(jnp.asarray, super().load_params(part)[part])
        return {part: self._parts[part] for part in parts}

    def __call__(self, batch: Batch) -> Encoded:
        """Encodes a batch: `sequence` [B L D], and `pooled` [B D] of models with a pooler.

        >>> bert = bertjax.load("runs/bert")
        >>> batch = bert.tokenizer(["a text", ("a", "pair")], max_length=16)
        >>> bert(batch).sequence.shape[:2]
        (2, 16)

        Args:
          batch: `input_ids` [B L] and others, as `tokenizer` returns them.
        """
        check_batch(batch)
        return self._encode(self.params, batch)

    def logits(self, batch: Batch) -> Float[Array, "B L V"]:
        """Scores of the vocabulary at every position, of a masked or a causal language model.

        At position i a masked language model scores token i, a causal one token i + 1.

        >>> bert = bertjax.load("runs/bert")
        >>> bert.logits(bert.tokenizer("the [MASK] cat", max_length=16)).shape[:2]
        (1, 16)

        Args:
          batch: `input_ids` [B L] and others, as `tokenizer` returns them.

        Raises:
          UserError: the run was trained with neither objective.
        """
        head = self._language_head
        check_batch(batch)
        return self._token_logits(self.load_params("encoder", head), batch)

    def fill_mask(self, texts: str | Sequence[str], *, top_k: int = 5) -> Candidates | list[Any]:
        """Predicts the [MASK] tokens of texts.

        >>> bert = bertjax.load("runs/bert")
        >>> candidates = bert.fill_mask("Paris is the [MASK] of France.", top_k=3)
        >>> len(candidates), candidates[0].probability > candidates[2].probability
        (3, True)

        Args:
          texts: One or more texts; each has one or more [MASK].
          top_k: Number of candidates.

        Returns:
          For a text with one [MASK] its candidates, the most likely first; for a text with several
          a list of these, for several texts a list of results.

        Raises:
          UserError: the run has no MLM objective, or a text has no [MASK] or too many tokens.
        """
        filler = self._load_once(fill_mask.load, top_k)
        places = filler.fill([text for (text,) in check_texts(texts, max_texts=1)])
        found = [place[0] if len(place) == 1 else place for place in places]
        return found[0] if isinstance(texts, str) else found

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str = "",
        pooling: str = "",
        normalize: bool | None = None,
        layer: int = -1,
        max_length: int = 0,
        batch_size: int = 64,
    ) -> Float[np.ndarray, "... D"]:
        """Embeds texts: one vector each, from the hidden states of a layer.

        >>> bert = bertjax.load("runs/bert")
        >>> len(bert.embed(["a text", "another text"], pooling="mean"))
        2

        Args:
          texts: A text, or texts of any number.
          prompt: Put before every text; None for that of `prompt_name`.
          prompt_name: "query", "document" or another prompt of the model; "" for its default.
          pooling: "mean", "weighted" by position, or "cls"; "" for that of the model, or mean.
          normalize: Whether vectors have unit length; None for as the model specifies.
          layer: 0 is the input of the first layer, -1 the last layer.
          max_length: Longer sequences are truncated; 0 for that of the model, or 512.
          batch_size: Number of rows per batch; short texts share a row. CPUs have smaller batches.

        Returns:
          float32 [n D], or [D] for a single text.

        Raises:
          UserError: there is no such prompt, pooling or layer, or `max_length` is too long.
        """
        settings = sentence_transformers.choose(
            self.config, pooling=pooling, normalize=normalize, max_length=max_length
        )
        own = {"pooling": settings.pooling, "normalize": settings.normalize}
        own["max_seq_length"] = settings.max_length
        extractor = self._load_once(features.load, layers=str(layer), truncate=True, **own)
        before = sentence_transformers.find_prompt(settings, prompt, prompt_name)
        given = (before + text for (text,) in check_texts(texts, max_texts=1))
        chunks = features.extract(extractor, given, "texts", batch_size=batch_size)
        none = np.zeros((0, self.module.hidden_size), np.float32)
        vectors = np.concatenate([none, *(rows[:, 0] for _, rows in chunks)])
        return vectors[0] if isinstance(texts, str) else vectors

    def classify(self, texts: Text | Sequence[Row], *, task: str = "", batch_size: int = 32) -> Any:
        """Classifies texts or pairs with a model fine-tuned on a table or a task of GLUE.

        >>> classifier = bertjax.load("runs/rte")
        >>> answer = classifier.classify(("It rains in Oslo.", "It is wet in Oslo."))
        >>> answer["label"] in answer["probabilities"], sorted(answer["probabilities"])
        (True, ['entailment', 'not_entailment'])

        Args:
          texts: One or more texts, or pairs for a task of pairs; rows of a table as a list of dicts
            with the columns of the training data.
          task: For a multi-task run, the task.
          batch_size: Number of sequences per batch.

        Returns:
          For each text a dict with `label` and `probabilities`; `labels` and `probabilities` if it
          may have several; or `score` for a regression.

        Raises:
          UserError: the model has no such head, or the task has another number of texts.
        """
        predictor = self._predictor("text-classification", task)
        names = predictor.input_fields
        found = predictor.predict_rows(predictor.name_texts(texts), batch_size)
        found = [{key: row[key] for key in row if key not in names} for row in found]
        return found[0] if isinstance(texts, str | tuple) else found

    def tag(self, texts: str | Sequence[str | Sequence[str]], *, batch_size: int = 32) -> Any:
        """Tags the words of texts with a model fine-tuned on named entities or tags of a table.

        >>> ner = bertjax.load("runs/ner")
        >>> found = ner.tag("Anna came from Oslo")
        >>> found["words"], len(found["tags"])
        (['Anna', 'came', 'from', 'Oslo'], 4)

        Args:
          texts: One or more texts, split into words at white space; or lists of words, unless the
            model was fine-tuned on texts with spans.
          batch_size: Number of sequences per batch.

        Returns:
          For each text a dict with `words`, `tags`, `probabilities` and for named entities
          `entities`; of a model fine-tuned on texts with spans `text` and `spans`.

        Raises:
          UserError: the model has no such head, or a text has no words.
        """
        predictor = self._predictor("token-classification")
        task = predictor.config.task
        key, reads_text = task.get("column", "words"), task.get("reads_text", False)
        rows: list[Any] = [texts] if isinstance(texts, str) else list(texts)
        if not reads_text:
            rows = [row.split() if isinstance(row, str) else list(row) for row in rows]
        found = predictor.predict_rows([{key: row} for row in rows], batch_size)
        # Whatever the name of the column in the table.
        found = [{"text" if reads_text else "words": row.pop(key), **row} for row in found]
        return found[0] if isinstance(texts, str) else found

    def answer(self, question: str, context: str) -> dict[str, Any]:
        """Answers a question by a span of a context, with a model fine-tuned for it.

        >>> qa = bertjax.load("runs/squad2")
        >>> context = "Anna came from Oslo by the river."
        >>> qa.answer("Who came from Oslo?", context)["answer"] in context
        True

        Returns:
          `answer`, "" for none; `n_best`, the best spans with their scores; if questions may
          have no answer also `null_odds`, the score of no answer minus that of the best span.

        Raises:
          UserError: the model has no such head.
        """
        line = {"question": question, "context": context}
        (found,) = self._predictor("question-answering").predict_rows([line], 8)
        return {key: found[key] for key in found if key not in line}

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int = 100,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        num_beams: int = 1,
        stop: Sequence[str] = (),
        seed: int = 0,
        batch_size: int = 8,
    ) -> str | list[str]:
        """Continues prompts with a causal language model; greedy by default.

        >>> gpt = bertjax.load("runs/gpt2")
        >>> len(gpt.generate(["The river", "Anna came"], max_new_tokens=8))
        2

        Args:
          prompts: One or more prompts.
          max_new_tokens: Maximum number of generated tokens.
          temperature: Divides the scores before sampling; 0 selects the most likely token.
          top_k: Sample from the k most likely tokens; 0 for all.
          top_p: Sample from the most likely tokens with this total probability.
          repetition_penalty: See `decoding.search.TokenSampler`.
          no_repeat_ngram_size: Length of n-grams that occur at most once; 0 for no limit.
          num_beams: Width of beam search; 1 for none.
          stop: Texts that end the generation.
          seed: Seed of sampling.
          batch_size: Number of prompts per batch.

        Returns:
          The generated text of each prompt, without the prompt.

        Raises:
          UserError: the run has no causal LM objective, a prompt is too long, or a setting invalid.
        """
        sampler = TokenSampler(temperature, top_k, top_p, repetition_penalty, no_repeat_ngram_size)
        settings = generate.Settings(
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            num_beams=num_beams,
            stop=tuple(stop),
            seed=seed,
            batch_size=batch_size,
        )
        model = self._load_once(language_model.load)
        rows = [prompt for (prompt,) in check_texts(prompts, max_texts=1)]
        texts = [""] * len(rows)
        for chunk in generate.complete(model, generate.encode(model, rows, settings), settings):
            texts[chunk.prompt] += chunk.text
        return texts[0] if isinstance(prompts, str) else texts

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Writes a folder that `from_pretrained` of transformers opens, atomically.

        >>> bertjax.load("runs/bert").save_pretrained("bert-hf")
        >>> bertjax.load("bert-hf").config.model.name
        'bert'

        Raises:
          UserError: transformers has no such model, or the folder is not empty.
        """
        exporting.write(exporting.find(self.name), storage.to_path(folder))

    @functools.cached_property
    def _parts(self) -> dict[str, PyTree]:
        return {}

    @functools.cached_property
    def _loaded(self) -> dict[Any, Any]:
        return {}

    def _load_once(self, load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a loader once for the same arguments, so that its functions compile once."""
        key = load, arguments, tuple(sorted(options.items()))
        if key not in self._loaded:
            self._loaded[key] = load(self, *arguments, **options)
        return self._loaded[key]

    @functools.cached_property
    def _encode(self) -> Callable[[PyTree, Batch], Encoded]:
        module = self.module
        return jax.jit(lambda params, batch: module.apply({"params": params}, batch, train=False))

    @functools.cached_property
    def _language_head(self) -> str:
        for name in self.config.get("objectives", {}):
            if hasattr(catalog.load("objectives", name).Objective, "token_logits"):
                return name
        raise UserError(
            f"{self.source.run} has no language model head: expected a run trained with mlm or "
            "causal_lm"
        )

    @functools.cached_property
    def _token_logits(self) -> Callable[[PyTree, Batch], Array]:
        name = self._language_head
        whole = Pretrainer(cast(Any, self.module), {name: self.objective(name, super().tokenizer)})

        def method(module: Pretrainer, batch: Batch) -> Array:
            encoded = module.encoder(batch, train=False)
            return getattr(module, name).token_logits(module.encoder, encoded)

        return jax.jit(lambda params, batch: whole.apply({"params": params}, batch, method=method))

    def _predictor(self, kind: str, dataset: str = "") -> predict.Predictor:
        """Returns the fine-tuned model; `kind` is the `pipeline_tag` of its head."""
        if pipeline_tag(self.heads) != kind:
            raise UserError(
                f"{self.source.run} has no head for {kind}: got {', '.join(self.heads) or 'none'}, "
                "expected a run of bertjax finetune for such a task"
            )
        return self._load_once(predict.load, task=dataset)
