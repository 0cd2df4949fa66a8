"""Where GLUE comes from: the released files in a folder, or a prepared tensorflow-datasets one."""

from bertjax.data import glue_files, glue_tfds
from bertjax.data.glue_table import GlueExamples, GlueTask


def read(data: str, task: GlueTask) -> dict[str, GlueExamples]:
    """Reads every split of a task that is there, by name.

    Args:
      data: The folder that holds `CoLA/`, `SST-2/` ...; or `tfds:DIR`, where DIR is a data folder
        of tensorflow-datasets in which `glue/<task>` is prepared as ArrayRecord.
      task: Which task.

    Raises:
      UserError: train or a labelled split is missing, or a file is not what it should be.
    """
    scheme, _, directory = data.partition(":")
    if scheme == "tfds" and directory:
        return glue_tfds.read(directory, task)
    return glue_files.read(data, task)
