r"""ViT (Dosovitskiy et al. 2021): `configs/vit.py:SIZE`, tiny, digits, base, large or huge.

    bertjax pretrain --config configs/vit.py:digits --workdir runs/digits
    bertjax pretrain --config configs/vit.py:base --workdir runs/vit \
        --config.data.input="('imagenet.npz',)" --config.data.batch_size=1024 \
        --config.optimizer.learning_rate=1e-3 --config.num_train_steps=375000

Recipe (section 4.1 and appendix B.1, ImageNet): patches of 16 x 16 pixels (huge: 14 x 14) of images
of 224 x 224; 300 epochs of batches of 4,096, Adam with a learning rate of 3e-3, warmup of 10,000
steps, cosine decay, weight decay 0.3, dropout 0.1, gradients clipped to a norm of 1.

    size    layers  width  heads   feed-forward   parameters   as published
    base        12    768     12          3,072    85,798,656    86 M
    large       24  1,024     16          4,096   303,301,632   307 M
    huge        32  1,280     16          5,120   630,764,800   632 M
    digits       4     64      4            128       135,488   (see below)
    tiny         2     32      2             64        17,888   (a demonstration)

The learning rate of smaller batches is smaller, as in the example. All images of a data set are one
array in host memory, which is 193 GB for ImageNet at this resolution.

Parameters are those of the encoder; published counts include the classifier, for instance 1.3 M for
1,000 classes in huge.

Where we differ: images are not augmented (published: random crops and reflections); the classifier
is linear (published, in pretraining: with a hidden layer); no dropout between the two layers of a
feed-forward net.

`digits` classifies scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, in patches of 2 x 2, of
which a fifth is held out: the accuracy is 98.1% after its 1,000 steps, 96.7% after 500.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "digits", "base", "large", "huge")
_SHAPES = {
    # Layers, width, heads, feed-forward, patch.
    "tiny": (2, 32, 2, 64, 2),
    "digits": (4, 64, 4, 128, 2),
    "base": (12, 768, 12, 3072, 16),
    "large": (24, 1024, 16, 4096, 16),
    "huge": (32, 1280, 16, 5120, 14),
}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=93_800))
    config.best_metric = "held_out/image_class/loss"
    config.model = _model(size)
    config.data = common.data(format="images", pair="none")
    config.data.max_seq_length, config.data.batch_size = 1, 4096
    config.objectives = ConfigDict({"image_class": {"weight": 1.0, "num_labels": 1000}})
    config.optimizer = common.adamw(learning_rate=3e-3, warmup_steps=10_000)
    config.optimizer.schedule, config.optimizer.weight_decay = "cosine", 0.3
    config.mesh = common.mesh()
    return _digits_config(config, size) if size in ("tiny", "digits") else config


def _digits_config(config: ConfigDict, size: str) -> ConfigDict:
    steps = 1000 if size == "digits" else 60
    config.num_train_steps, config.log_every = steps, steps // 10
    config.eval_every = config.checkpoint_every = steps // 2
    config.data.input, config.data.validation_fraction = ("digits",), 0.2
    config.data.batch_size, config.objectives.image_class.num_labels = 64, 10
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 2e-3, steps // 10
    config.optimizer.weight_decay = 0.05
    return config


def _model(size: str) -> ConfigDict:
    layers, width, heads, intermediate, patch = _SHAPES[size]
    digits = size in ("tiny", "digits")
    return ConfigDict(
        {
            "name": "vit",
            "size": size,
            "image_size": 8 if digits else 224,
            "patch_size": patch,
            "num_channels": 1 if digits else 3,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.0,
            "num_pooler_layers": 0,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-6,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )
