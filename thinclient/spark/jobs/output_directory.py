"""The directory of a job's complete result, on any file system that Spark writes to.

A run replaces what the job's earlier run left there, and nothing else: an empty file, named after the job, is written
before the first result. Its name begins with `_`, so Spark and similar tools ignore it. A directory that is neither
empty nor has that file is rejected, untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OutputException(Exception):
    """The directory contains something else; the message says what to do."""


def make_ready(spark: SparkSession, output: str, job: str) -> None:
    """Empties the directory except for the job's mark. Raises OutputException."""
    session = cast(Any, spark)
    path_of = session._jvm.org.apache.hadoop.fs.Path
    directory = path_of(output)
    files = directory.getFileSystem(session._jsc.hadoopConfiguration())
    mark = path_of(directory, f"_bookgate_{job}")
    if files.exists(directory):
        found = [status.getPath() for status in files.listStatus(directory)]
        if found and not files.exists(mark):
            raise OutputException(
                f"--output {output}: the directory holds {found[0].getName()!r}, and is no output of {job} of this "
                "release: it is left as it is. Name a new or empty directory"
            )
        for each in found:
            if each.getName() != mark.getName():
                files.delete(each, True)
    files.create(mark, True).close()
