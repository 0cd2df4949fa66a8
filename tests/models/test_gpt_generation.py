"""Generation with GPT and GPT-2 equals that of transformers: greedy, beams, no repeated n-grams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding import beam, search
from bertjax.decoding.search import TokenSampler
from bertjax.huggingface import importing
from bertjax.huggingface.model import HFModel
from bertjax.inference.language_model import LanguageModel
from bertjax.train.checkpoint.trees import nest

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
transformers = pytest.importorskip(
    "transformers", reason="parity needs transformers, of the group test-all"
)

pytestmark = pytest.mark.slow

V, END, NEW = 47, 3, 12
SIZES = {"vocab_size": V, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}
PROMPTS = np.array([[-1, -1, 7, 21, 9], [5, 40, 11, 6, 30], [-1, 8, 8, 2, 19]])
CONTROL = TokenSampler(repetition_penalty=1.3, no_repeat_ngram_size=2)


@pytest.fixture(scope="module", params=["GPT2", "OpenAIGPT"])
def reference(request):
    torch.manual_seed(1)
    config = getattr(transformers, f"{request.param}Config")(
        **SIZES, bos_token_id=END, eos_token_id=END, pad_token_id=0
    )
    model = getattr(transformers, f"{request.param}LMHeadModel")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            weight.copy_(center + 0.3 * torch.randn(weight.shape))
    return model


@pytest.fixture(scope="module")
def model(reference):
    weights = {name: value.numpy() for name, value in reference.state_dict().items()}
    released = HFModel.of(reference.config.to_dict(), weights)
    config = importing.run_config(released, "reference")
    with config.unlocked():
        config.model.precision = "float32"
    params = jax.tree.map(jnp.asarray, nest(importing.parameters(released, config)))
    return LanguageModel(importing.pretrainer(config), params, None, 40, END, config)


@pytest.fixture(scope="module")
def prompts(reference):
    """Prompts of different lengths, if the model of transformers supports them."""
    return PROMPTS if "GPT2" in type(reference).__name__ else PROMPTS[1:2]


def hf_generate(reference, prompts, **options):
    """The generated tokens, with -1 after the end instead of padding."""
    with torch.no_grad():
        found = reference.generate(
            torch.tensor(np.maximum(prompts, 0)),
            attention_mask=torch.tensor(prompts >= 0).long(),
            max_new_tokens=NEW,
            do_sample=False,
            **options,
        )
    generated = found[:, prompts.shape[1] :].numpy()
    generated = np.pad(generated, ((0, 0), (0, NEW - generated.shape[1])), constant_values=-1)
    ended = np.cumsum(generated == END, axis=1) - (generated == END) > 0
    return np.where(ended, -1, generated)


def bertjax_generate(model, prompts, follow):
    history = jnp.asarray(prompts, jnp.int32)

    def run(params):
        return follow(model.decoder(params), model.prefill(params, history, NEW), history)

    return np.asarray(jax.jit(run)(model.params))


@pytest.mark.parametrize("sampler", [search.GREEDY, CONTROL], ids=["plain", "controlled"])
def test_greedy_search_is_equal(reference, model, prompts, sampler):
    expected = hf_generate(
        reference,
        prompts,
        repetition_penalty=sampler.repetition_penalty,
        no_repeat_ngram_size=sampler.no_repeat_ngram_size,
    )

    def follow(*state):
        return search.complete(*state, max_new_tokens=NEW, end_id=END, sampler=sampler)

    np.testing.assert_array_equal(bertjax_generate(model, prompts, follow), expected)


@pytest.mark.parametrize(("width", "alpha"), [(4, 1.0), (3, 0.0), (2, 2.0)])
def test_beam_search_is_equal(reference, model, prompts, width, alpha):
    expected = hf_generate(
        reference,
        prompts,
        num_beams=width,
        length_penalty=alpha,
        no_repeat_ngram_size=CONTROL.no_repeat_ngram_size,
        repetition_penalty=CONTROL.repetition_penalty,
    )

    def follow(*state):
        options = {"max_new_tokens": NEW, "end_id": END, "sampler": CONTROL}
        return beam.search(*state, width=width, penalty=beam.power(alpha), **options)[0]

    np.testing.assert_array_equal(bertjax_generate(model, prompts, follow), expected)
