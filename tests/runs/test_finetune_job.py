"""The description of a fine-tuning run, logged before its first step."""

from bertjax.runs import finetune_job


def test_examples_that_are_left_out_are_counted_and_named():
    lines = finetune_job.describe_left_out(
        {"train": [f"q{n}" for n in range(7)], "dev": (), "test": ["x"]}
    )
    assert lines == "left out of train: 7: q0, q1, q2, q3, q4 and 2 more\nleft out of test: 1: x\n"
