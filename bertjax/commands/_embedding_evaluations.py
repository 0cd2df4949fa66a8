"""Subcommands of `bertjax evaluate` for embeddings: sentence similarity and retrieval."""

import sys

from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, constraint_action
from bertjax.validation.unused_options import UnusedOptions, check_flags

_STS = """\
examples:
  bertjax evaluate sts --model runs/minilm --data glue
  bertjax evaluate sts --model runs/bert --data glue/STS-B/test_labelled.tsv --json
  bertjax evaluate sts --model runs/bert --data pairs.csv --text a --text_pair b --label score

--data is the folder with GLUE's STS-B/, of which the dev split is read, or a
table (.tsv, .csv, .jsonl, .parquet) with a pair of sentences and a score per row.

Prints the correlations, Pearson and Spearman, of the scores with the cosines of
the embeddings, or with their dot products if the model was trained with
margin_mse or has the similarity_fn_name dot of sentence-transformers.
Publications report Spearman (Reimers and Gurevych 2019).
--precision float32 is slower, and gives the results of PyTorch.
"""

_RETRIEVAL = """\
examples:
  bertjax evaluate retrieval --model runs/minilm --data beir/scifact
  bertjax evaluate retrieval --model runs/bert --data beir/nfcorpus --max_length 256 --json
  bertjax evaluate retrieval --model runs/minilm --data beir/hotpotqa --index HNSW32
  bertjax evaluate retrieval --model e5-base/ --data beir/scifact --query_prompt 'query: ' \\
      --document_prompt 'passage: '
  bertjax evaluate retrieval --model bm25 --data beir/scifact
  bertjax evaluate retrieval --model bm25 --reranker runs/cross_encoder --data beir/scifact

--data is a folder in the layout of BEIR (Thakur et al. 2021):
  corpus.jsonl      {"_id": "d1", "title": "Cats", "text": "Cats eat."}
  queries.jsonl     {"_id": "q1", "text": "what do cats eat"}
  qrels/test.tsv    query-id, corpus-id, score: a header, and a judgement per row
The files may be compressed.

Each query is compared with all documents (title and text) by the cosine of the
embeddings, or their dot product as for sts (--index DESCRIPTION searches an index
of FAISS instead: pip install 'bertjax[faiss]'); by MaxSim of token vectors if the
model is a run of bertjax finetune --config colbert; with --model bm25 by BM25 on
their words (pip install 'bertjax[bm25]'; a folder of this name is ./bm25). With
--reranker, a model of bertjax finetune --config cross_encoder reads the query with
each of the first --rerank_depth documents, and sorts them. The prompts of the model
are put before queries and documents, except those of the reranker. Prints nDCG@10,
MRR@10 and Recall@100 as trec_eval computes them, means over the judged queries.
Where queries are documents of the collection, as in ArguAna and Quora,
--ignore_identical_ids drops the document that has the id of the query from its
ranking, as BEIR does. --precision float32 is slower, and gives the results of PyTorch.

--output writes the ranking of each query: {"query": "q1", "documents": ["d1", ...]}.
Until it is written, finished parts are in .FILE.unfinished next to it, and the same
command resumes after an interruption; with other options it is an error until this
folder is removed.
"""


def _sts(arguments) -> dict[str, float]:
    return _evaluate(arguments, "text", "text_pair", "label", "prompt", "prompt_name")


_UNUSED_OPTIONS = (
    UnusedOptions(
        ("rerank_depth",),
        "reranker",
        lambda reranker: not reranker,
        "a cross-encoder, since without it no document is reranked",
        "set --reranker, or leave it out",
    ),
)
_UNUSED_BY_WORDS = (
    UnusedOptions(
        ("batch_size", "precision"),
        "model",
        lambda model: model == "bm25",
        "a model, since bm25 has none",
        "leave it out",
    ),
)
"""Without a reranker."""


def _retrieval(arguments) -> dict[str, float]:
    check_flags(_UNUSED_OPTIONS, vars(arguments), arguments.parser.get_default)
    if not arguments.reranker:
        check_flags(_UNUSED_BY_WORDS, vars(arguments), arguments.parser.get_default)
    names = ("split", "ignore_identical_ids", "index", "query_prompt", "document_prompt")
    found = _evaluate(arguments, *names, "reranker", "rerank_depth", "output")
    if found["unjudged"]:
        print(
            f"note: queries without judgements, left out: {found['unjudged']:,}; judged: "
            f"{found['queries']:,}",
            file=sys.stderr,
        )
    return found


def _evaluate(arguments, *names: str) -> dict[str, float]:
    from bertjax.inference import evaluation
    from bertjax.runtime.progress import progress_display

    names = (*names, "pooling", "dim", "max_length", "batch_size", "precision")
    options = {name: getattr(arguments, name) for name in names}
    with progress_display() as display:
        return evaluation.evaluate(
            arguments.command, arguments.model, arguments.data, progress=display.update, **options
        )


def add_sts(commands) -> None:
    """Adds `sts`, whose `run` returns the results."""
    parser = _flags.add_command(
        commands,
        "sts",
        "Compare similarities of sentence embeddings with human scores.",
        _STS,
        _sts,
    )
    add = parser.add_argument
    _flags.add_model(parser)
    add("--data", required=True, metavar="PATH", help="folder of GLUE, tfds:DIR, or a table")
    columns = {"text": "first sentence", "text_pair": "second sentence", "label": "score"}
    for name, content in columns.items():
        help_text = f"column of the {content} in a table (default: detected)"
        add(f"--{name}", default="", metavar="COLUMN", help=help_text)
    _flags.add_prompt(parser)
    _add_embedding(parser, "sentences")


def add_retrieval(commands) -> None:
    """Adds `retrieval`, whose `run` returns the results."""
    parser = _flags.add_command(
        commands,
        "retrieval",
        "Search documents by embeddings or BM25, rerank them, and score the rankings.",
        _RETRIEVAL,
        _retrieval,
    )
    add = parser.add_argument
    _flags.add_model(parser, f"{_flags.MODEL}; or bm25")
    add("--data", required=True, metavar="DIR", help="folder in BEIR's layout")
    add("--split", default="test", metavar="NAME", help="name of the judgements in qrels/")
    help_text = "drop the document with the id of the query, as BEIR does"
    add("--ignore_identical_ids", action="store_true", help=help_text)
    help_text = (
        "index of faiss that is searched, such as HNSW32 or 'IVF4096,Flat nprobe=32' (default: "
        "exact search)"
    )
    add("--index", default="", metavar="DESCRIPTION", help=help_text)
    help_text = "cross-encoder that reranks the top documents (default: none)"
    add("--reranker", default="", metavar="MODEL", help=help_text)
    add(
        "--rerank_depth",
        action=constraint_action(PositiveInt),
        default=100,
        metavar="N",
        help="number of documents that it sorts",
    )
    help_text = "also write the ranking of each query, as JSON lines"
    add("--output", metavar="FILE", default="", help=help_text)
    _flags.add_retrieval_prompts(parser)
    _add_embedding(parser, "texts")


def _add_embedding(parser, unit: str) -> None:
    _flags.add_pooling(parser)
    _flags.add_dim(parser)
    _flags.add_max_length(parser)
    _flags.add_batch_size(parser, 64, unit)
    _flags.add_precision(parser, "auto")
    _flags.add_json(parser)
