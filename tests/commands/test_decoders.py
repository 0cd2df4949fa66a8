"""bertjax generate and evaluate (perplexity, choices), with a GPT as saved by transformers."""

import contextlib
import io
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import cli
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.inference import generate, language_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
V, D, N, LONGEST = len(WORDS), 12, 2, 24
CONFIG = {"model_type": "gpt2", "vocab_size": V, "n_embd": D, "n_layer": N, "n_head": 3}
CONFIG |= {"n_positions": LONGEST, "n_inner": 20}


def shapes():
    found = {"wte.weight": (V, D), "wpe.weight": (LONGEST, D)}
    found |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    for layer in (f"h.{number}" for number in range(N)):
        for norm in ("ln_1", "ln_2"):
            found |= {f"{layer}.{norm}.weight": (D,), f"{layer}.{norm}.bias": (D,)}
        maps = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D)}
        maps |= {"mlp.c_fc": (D, 20), "mlp.c_proj": (20, D)}
        for name, shape in maps.items():
            found |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[1:]}
    return {f"transformer.{name}": shape for name, shape in found.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    import safetensors.numpy as library

    folder = tmp_path_factory.mktemp("decoders")
    hf_folder, random = folder / "hf_model", np.random.default_rng(0)
    hf_folder.mkdir()
    arrays = {name: random.normal(0, 0.5, shape).astype("f") for name, shape in shapes().items()}
    library.save_file(arrays, hf_folder / "model.safetensors", {"format": "pt"})
    (hf_folder / "config.json").write_text(json.dumps(CONFIG))
    (hf_folder / "vocab.txt").write_text("\n".join([*WORDS, ""]))
    importing.write(importing.read(hf_folder), folder / "run")
    return folder / "run"


def run_cli(*words) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), errors.getvalue()


def test_prompts_are_continued_in_order(run):
    prompts = ["a b c", "q", "x y"]
    options = ("--max_new_tokens", 5, "--batch_size", 2)
    status, out, errors = run_cli("generate", "--model", run, *prompts, *options)
    assert status == 0
    texts = out.removesuffix("\n").split("\n\n")
    assert [text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True)]
    assert "tokens per second" in errors
    status, out, _ = run_cli("generate", "--model", run, *prompts, *options, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] + row["text"] for row in rows] == texts
    alone = run_cli("generate", "--model", run, "x y", *options, "--json")[1]
    assert json.loads(alone)["text"] == rows[2]["text"]


def test_a_prompt_starts_like_the_documents_of_the_run(run, tmp_path):
    own = shutil.copytree(run, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    del config["imported"]
    (own / "config.json").write_text(json.dumps(config))
    ids = [WORDS.index(word) for word in "ab"]
    for name, before in ((run, []), (own, [WORDS.index("[SEP]")])):
        model = language_model.load(str(name))
        assert generate.encode(model, ["a b"], generate.Settings(4)) == [before + ids]
    status, out, _ = run_cli("generate", "--model", own, "a b", "--max_new_tokens", 5)
    assert status == 0
    assert out.startswith("a b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "--model", "RUN", ""], "prompt 1 is empty"),
        (
            ["generate", "--model", "RUN", "a " * 30],
            "prompt 1 is too long: got 30 tokens, expected at most 24",
        ),
        (
            ["generate", "--model", "RUN", "a b", "--max_new_tokens", "23"],
            "prompt 1 with max_new_tokens is too long: got 25 tokens",
        ),
        (
            ["generate", "--model", "RUN", "a", "--num_beams", "99"],
            "invalid beam width: got 99, expected 1 to the vocabulary size 31",
        ),
        (
            ["generate", "--model", "RUN", "a", "--num_beams", "2", "--temperature", "1"],
            "set one of the two",
        ),
        (["evaluate", "perplexity", "--model", "RUN", "--input", "nowhere/*"], "nowhere"),
    ],
)
def test_a_user_error_is_one_line(run, words, message):
    status, out, errors = run_cli(*[str(run) if word == "RUN" else word for word in words])
    assert status == 2
    assert message in errors
    assert out == ""
    assert errors.count("\n") == 1


def test_perplexity_and_questions(run, tmp_path):
    (tmp_path / "text.txt").write_text("a b c d e f g\n\nh i j k l m n o p q r s t u v w x y z\n")
    words = (
        "evaluate",
        "perplexity",
        "--model",
        run,
        "--input",
        tmp_path / "text.txt",
        "--max_length",
        8,
        "--json",
    )
    found = json.loads(run_cli(*words)[1])
    assert found == bertjax.evaluate(
        "perplexity", str(run), [str(tmp_path / "text.txt")], max_length=8
    )
    with pytest.raises(UserError, match="did you mean 'choices'"):
        bertjax.evaluate("choice", str(run), "x")
    assert found["tokens"] == 26
    assert found["perplexity"] == pytest.approx(np.exp(found["nats_per_token"]))
    questions = tmp_path / "questions.jsonl"
    rows = [{"question": "a b", "choices": ["c", "d"], "answer": 0}] * 2
    rows += [{"question": "b c", "choices": ["c", "d", "e"], "answer": 1}]
    questions.write_text("\n".join(map(json.dumps, rows)))
    words = (
        "evaluate",
        "choices",
        "--model",
        run,
        "--input",
        questions,
        "--num_fewshot",
        1,
        "--json",
    )
    found = json.loads(run_cli(*words, "--output", tmp_path / "answers.jsonl")[1])
    assert (found["questions"], found["num_fewshot"]) == (3, 1)
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    scores = [json.loads(line)["log_probabilities"] for line in answers]
    assert [len(row) for row in scores] == [2, 2, 3]
    assert np.all(np.concatenate(scores) < 0)
    right = [
        np.argmax(row) == question["answer"] for row, question in zip(scores, rows, strict=True)
    ]
    assert found["accuracy"] == pytest.approx(np.mean(right))

    pairs = tmp_path / "pairs.jsonl"
    rows = [{"sentence_good": "a b c", "sentence_bad": "a", "UID": "shorter"}]
    rows += [{"sentence_good": "d", "sentence_bad": "a b c d e", "UID": "longer"}]
    pairs.write_text("\n".join(map(json.dumps, rows)))
    words = ("evaluate", "blimp", "--model", run, "--input", pairs, "--json")
    found = json.loads(run_cli(*words, "--output", tmp_path / "pairs_scores.jsonl")[1])
    assert found.keys() == {"shorter", "longer", "accuracy", "pairs"}
    lines = (tmp_path / "pairs_scores.jsonl").read_text().splitlines()
    scores = [json.loads(line)["log_probabilities"] for line in lines]
    assert found["longer"] == (scores[1][0] > scores[1][1])
    model = language_model.load(str(run))
    ids = jnp.asarray([[model.end_id, *model.tokenizer.encode_batch(["a b c"])[0]]])
    expected = model.score_tokens(model.params, ids, jnp.ones(ids.shape, bool))[0].sum()
    assert scores[0][0] == pytest.approx(float(expected), abs=1e-4)
    with pytest.raises(UserError, match="within_word applies to masked language models"):
        bertjax.evaluate("blimp", str(run), str(pairs), within_word=True)
