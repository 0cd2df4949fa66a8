"""One file for each `model_type` of Hugging Face: its config and array names as bertjax's.

A file defines

  PREFIX         what the encoder's names begin with in a file that has heads too
  CLASSES        the class of transformers for each set of heads; () is the bare encoder
  CLASSIFIER_DROPOUT
                 for each head of a task their word for the dropout before it, where they have one
  CLASSIFIER_ACT the activation of the pooler before the classes
  HEAD_ACT       for each head with an activation of its own that their config does not change, this
                 activation; may be left out
  WORDS          our field for each field of their config that is the same
  READ           fields of their config that are read in another way
  FIXED          fields of their config with the one value that bertjax has; others are refused
  FIXED_BY_HEAD  the same for fields that only one of the parts reads
  IRRELEVANT     fields of their config that change no output of the parts, and why; an import keeps
                 them for the export
  SAME           names of theirs that repeat another array, by the name that counts
  parts()        the pairs of names (`huggingface/name_map.py`) of each part of our parameters,
                 which is a folder of them: "encoder" is always there; "encoder/pooler", others of
                 the encoder, and the heads, named as the objectives and tasks are, come and go
                 with the fields of our model; a task's head may have its own pooler, and share its
                 names with another task's; a head without arrays is always there
  fields(theirs, parts)
                 the fields of our model, of their config and the parts that the file has; refuses
                 what our model cannot be
  config(ours, heads)
                 their config, of the fields of our model and the heads that go with it
  describes(run) whether a run's config is of this architecture; at most one file says so
"""
