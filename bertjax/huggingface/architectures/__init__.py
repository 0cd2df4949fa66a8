"""One file per `model_type` of Hugging Face: its config and array names, and those of bertjax.

To add an architecture, add a file. It defines

  PREFIX         first component of the encoder's array names in a model with heads; empty if they
                 have the same names with heads and without
  CLASSES        the class of transformers for each set of heads; () is the encoder alone
  parts()        the array maps (`huggingface/name_map.py`) of each part, which is a folder of the
                 bertjax parameters: "encoder" is always present; "encoder/pooler", other parts of
                 the encoder and the heads (named like objectives and tasks) are present if the
                 model has them. A task's head may contain a pooler, and share its array names with
                 other tasks. A head without arrays is always present
  fields(hf_config, parts)
                 the fields of the bertjax model, from the config and the parts in the file; refuses
                 configs that the bertjax model does not support
  config(model, heads)
                 the HF config, from the fields of the bertjax model and the heads of the class
  describes(run) whether the config of a run has this architecture; true of at most one file, and
                 always false for an architecture that is only imported

and, for the checks of `fields` and for tests,

  WORDS          the bertjax field of each HF field with the same meaning; an export requires them
  READ           HF fields that are read in another way
  FIXED          HF fields with the one value that bertjax supports; others are refused
  FIXED_BY_HEAD  the same for fields that only one of the parts reads
  IRRELEVANT     HF fields that do not change the outputs of the parts, and why; an import keeps
                 them for the export

It may define (defaults: `huggingface/architecture.py`)

  TIED_ARRAYS    names of arrays that repeat another one (tied weights), and the name of that one;
                 written only with REMOTE_CODE
  CLASSIFIER_DROPOUT
                 for the head of a task the HF field of the dropout before it
  CLASSIFIER_ACT the activation of the pooler before a classifier; empty: that of the encoder
  TOKEN_TRANSFORM
                 whether heads over tokens begin with the transform of a prediction head
  HEAD_ACT       for a head whose activation is not that of the model and not in the HF config, this
                 activation
  ACT_FIELD      the field of the bertjax model with the activation that other heads have
  HAS_SEGMENTS   whether the model distinguishes segments; default: type_vocab_size > 1
  NOT_EXPORTED   for objectives that are not part of the exported model, the reason
  MERGED_FIELDS  for fields of the bertjax model that HF does not have, the field whose value HF
                 uses in their place
  REMOTE_CODE    whether transformers has no class, and folders contain remote code: CLASSES are
                 its classes, the array names determine the architecture instead of `model_type`,
                 and an export keeps the names of types and classes of an imported folder
  SPECIALS       special tokens of released vocabularies that only pretraining used
  EXTRA_EMBEDDING_ROWS
                 whether released word embeddings have more rows than the tokenizer has tokens
  BUFFERS        endings of the names of constants that files contain among the weights
  fields_of_code(code)
                 fields of the HF config that the text of a folder's Python files determines
  constants(hf_config)
                 the constants that an export adds to the weights, with names that end as in BUFFERS
  generator(run, arrays)
                 the config and arrays of a run's generator as a separate masked LM, or None
"""
