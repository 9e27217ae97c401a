"""Files beside the data of a table, on any file system of Spark's."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_streams.base.untyped import JavaObject


def located(spark: SparkSession, path: str, *below: str) -> tuple[JavaObject, JavaObject]:
    """Return a path, and its file system."""
    jvm: JavaObject = spark.sparkContext._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    for name in below:
        location = jvm.org.apache.hadoop.fs.Path(location, name)
    return location, location.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def exists(spark: SparkSession, path: str, name: str) -> bool:
    """Whether the folder has a file or a folder of this name."""
    file, store = located(spark, path, name)
    return bool(store.exists(file))


def read_text(spark: SparkSession, path: str, name: str) -> str | None:
    """Return the text of a file, None if there is none. Bytes that are no UTF-8 are replaced."""
    file, store = located(spark, path, name)
    if not store.exists(file):
        return None
    stream = store.open(file)
    try:
        return bytes(stream.readAllBytes()).decode(errors="replace")
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, name: str, text: str, *, replace: bool) -> bool:
    """Write a file as a whole: no crash cuts it short. Return whether it was written.

    replace: whether a file that exists is replaced. Otherwise only one of several writers writes it.
    """
    folder, store = located(spark, path)
    store.mkdirs(folder)
    file, _ = located(spark, path, name)
    try:
        stream = _checkpoint_files(spark, folder).createAtomic(file, replace)
        stream.write(text.encode())
        stream.close()
    except Py4JJavaError as error:
        if not replace and "FileAlreadyExistsException" in str(error.java_exception.getClass().getName()):
            return False
        raise
    return True


def names_in(spark: SparkSession, path: str) -> Sequence[str]:
    """Return the names of the files and folders in a folder. One call of the JVM, however many they are."""
    folder, store = located(spark, path)
    if not store.exists(folder):
        return ()
    jvm: JavaObject = spark.sparkContext._jvm
    paths = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(store.listStatus(folder))
    if not len(paths):
        return ()
    above = f"{paths[0].getParent().toString()}/"  # each name in the text follows it
    text: str = jvm.scala.runtime.ScalaRunTime.stringOf(paths)  # Array(…, …)
    return text[text.index("(") + 1 : -1].removeprefix(above).split(f", {above}")


def is_folder(spark: SparkSession, path: str, name: str) -> bool:
    """Whether this is a folder."""
    file, store = located(spark, path, name)
    return bool(store.exists(file) and store.getFileStatus(file).isDirectory())


def _checkpoint_files(spark: SparkSession, folder: JavaObject) -> JavaObject:
    """Return Spark's own writer of whole files, which Spark 4.1 has moved."""
    streaming = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming  # type: ignore[union-attr]
    moved = streaming.checkpointing.CheckpointFileManager
    manager = moved if isinstance(moved, JavaClass) else streaming.CheckpointFileManager
    return manager.create(folder, spark.sparkContext._jsc.hadoopConfiguration())
