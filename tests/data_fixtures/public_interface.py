"""Types that a type checker infers in a user's script; checked by mypy, never run."""

from typing import assert_type

import bertjax

model = bertjax.load("runs/bert", precision="float32")
assert_type(model, bertjax.Model)
assert_type(model.generate(["a", "b"]), str | list[str])
assert_type(model.heads, tuple[str, ...])
# Calls that a type checker must refuse: mypy reports an ignore that is not needed.
bertjax.load()  # type: ignore[call-arg]
model.embed("a", pooling=1)  # type: ignore[arg-type]
