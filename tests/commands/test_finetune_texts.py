"""What `bertjax finetune` says of the data before it starts."""

from bertjax.commands import finetune


def test_examples_that_are_left_out_are_counted_and_named():
    told = finetune._left_out({"train": [f"q{n}" for n in range(7)], "dev": (), "test": ["x"]})
    assert told == ("left out of train: 7: q0, q1, q2, q3, q4 and 2 more\nleft out of test: 1: x\n")
