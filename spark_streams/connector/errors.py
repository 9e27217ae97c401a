"""All errors that spark-streams raises.

    RStreamError
    ├── OptionError           UnknownOptionError, InvalidOptionError, NotAllowedError, ConfigError
    ├── ServerError           ServerUnreachableError, RetriesExhaustedError, ReplicationError, WrongKeyTypeError,
    │   │                     IdsExhaustedError
    │   └── ServerReplyError  ServerFullError, LoginError, NotPermittedError
    ├── StreamStateError      StreamMissingError, DataLossError, GroupMissingError, GroupForgottenError,
    │   │                     GroupSharedError, GroupExistsError, ShardsError, CopyTargetError, CopyMismatchError,
    │   │                     LedgerError, OffsetError
    │   └── TakenError        ConsumerTakenError, RedriveTakenError, GroupInUseError
    ├── SchemaError           EntryIdError, RowTooLargeError, DecodeError, EncodeError
    └── RegistryError, TableError, ArchiveError, CopyFileError, TransformError, JobError, QueryError, VersionError,
        WorkerPythonError, UnsupportedError

Each message is one line: `[CONDITION] what failed: cause; remedy`. The condition is stable and can be matched: it is
the name of the class (LedgerError: RSTREAM_LEDGER). Passwords never appear in a message. docs/reference/errors.md is
printed from the classes (`python -m tools.reference`): condition, docstring (the cause) and `remedy`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from spark_streams.base.printable import printable


class RStreamError(Exception):
    """Root of all errors that spark-streams raises.

    message: one line with the failure, the cause and the remedy.
    """

    condition: ClassVar[str] = "RSTREAM_ERROR"  # of a class below: RSTREAM_ and the words of its name
    remedy: ClassVar[str] = "Read the message: it names the cause and the next step."

    def __init_subclass__(cls) -> None:
        if "condition" not in vars(cls):
            words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
            cls.condition = "_".join(["RSTREAM", *words]).upper()

    def __init__(self, message: str) -> None:
        self.message = printable(" ".join(message.split()))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"


class OptionError(RStreamError):
    """An option or a configuration file cannot be used."""

    remedy = "Correct the option that the message names."


class UnknownOptionError(OptionError):
    """No option has this name."""

    remedy = "Use the name that the message proposes, or remove the option."


class InvalidOptionError(OptionError):
    """The value does not fit the option, is missing, or contradicts another option."""

    remedy = "Correct the value. The message names the valid values."


class NotAllowedError(OptionError):
    """A variable `RSTREAM_ALLOW_…` in the driver's environment does not list the value of an option."""

    remedy = "Ask the driver's administrator to add the value to the variable."


class ConfigError(OptionError):
    """The configuration file of a job, or a `--set`, cannot be used."""

    remedy = "Correct the key that the message names. `rstream init JOB` writes a valid configuration."


class ServerError(RStreamError):
    """The server cannot be reached, or refuses a request."""

    remedy = "Run `rstream doctor --url URL`: it names what is wrong with the server."


class ServerUnreachableError(ServerError):
    """No server answers at the address, or the connection broke and could not be restored.

    passes: whether the state may be temporary. An error in the address itself is not.
    """

    remedy = (
        "Check host, port and network, and that the server runs. Start the query again: it continues from its "
        "checkpoint."
    )

    def __init__(self, message: str, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class ServerReplyError(ServerError):
    """The server answered a command with an error.

    code: the first word of the reply (`OOM`, `LOADING`, `ERR` …), by which wire.session detects temporary
    states; empty if unknown.
    """

    remedy = "Remove the cause that the server names, then start the query again."

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ServerFullError(ServerReplyError):
    """The server has used all memory that `maxmemory` allows, and accepts no command that may need more (`OOM`)."""

    remedy = (
        "Free memory (`rstream trim --acked` removes only what all groups have acknowledged), or raise `maxmemory`. "
        "`rstream doctor` shows both."
    )


class LoginError(ServerReplyError):
    """The server requires a password, or refuses the user name and password."""

    remedy = "Correct the login in `url`, or in `username` with `password`, `passwordFile` or `credentialProvider`."


class NotPermittedError(ServerReplyError):
    """The user lacks the right to a command or a key.

    right: the word of ACL SETUSER that gives it (`+xadd`, `~orders`).
    """

    remedy = (
        "Give the user the right that the message names, with `ACL SETUSER`. `rstream doctor` lists all missing rights."
    )

    def __init__(self, message: str, code: str = "", right: str = "") -> None:
        super().__init__(message, code)
        self.right = right


class RetriesExhaustedError(ServerError):
    """A temporary state of the server (`OOM`, `LOADING`, a lost connection) did not end within the time limit."""

    remedy = "Remove the cause, for example free memory, then start the query again."


class ReplicationError(ServerError):
    """Fewer replicas than `waitReplicas` acknowledged a write."""

    remedy = "Repair the replication, or lower `waitReplicas`. Rows that were written are not written again."


class WrongKeyTypeError(ServerError):
    """The key holds a value that is not a stream."""

    remedy = "Use another stream name. If no program uses the key, you can rename it (`RENAME`)."


class IdsExhaustedError(ServerError):
    """The stream has used its last possible entry ID (2^64−1-2^64−1), or has too few left."""

    remedy = "Stop its readers and writers, and rename it (`RENAME`): entries and groups stay."


class StreamStateError(RStreamError):
    """The streams on the server are not as the query left them."""

    remedy = "Follow the message: it names the stream and the choices."


class StreamMissingError(StreamStateError):
    """A named stream does not exist, or a pattern matches none."""

    remedy = "Correct the name (the message proposes the nearest one). A query creates it with `createStreams=true`."


class DataLossError(StreamStateError):
    """Entries that the query should have read are missing from the stream."""

    remedy = (
        "Find out what deleted or trimmed them. Then set `failOnDataLoss=false` for one start: the query continues "
        "and counts them."
    )


class GroupMissingError(StreamStateError):
    """The consumer group was deleted while a query used it."""

    remedy = "Create the group at the ID that the message names, or set `failOnDataLoss=false` for one start."


class GroupForgottenError(StreamStateError):
    """Entries that the group had not read may be removed, because `rstream groups prune --hold --yes` found it idle."""

    remedy = "To accept the loss and read what is left, set `failOnDataLoss=false` for one start."


class TakenError(StreamStateError):
    """Another running process holds what this process needs exclusively."""

    remedy = "Stop the other process, which the message names, or wait until it has ended."


class ConsumerTakenError(TakenError):
    """Another running query uses the same group and consumer, or this query reads one `load()` twice."""

    remedy = (
        "Stop the other query, or set another `consumer` to share its entries, or another `group` to read all entries. "
        "For a self-join, call `load()` for each side, each with its own `group`."
    )


class RedriveTakenError(TakenError):
    """Another process moves or deletes the dead letters of this stream."""

    remedy = "Wait until it has ended, then repeat the command."


class GroupInUseError(TakenError):
    """A running query, or another client, uses the group or consumer that a command would change."""

    remedy = "Stop the query first, then repeat the command."


class GroupSharedError(StreamStateError):
    """An option needs the query to be the only reader of its group, and another consumer reads from this group."""

    remedy = "Set another `group`, or remove the option that the message names."


class GroupExistsError(StreamStateError):
    """A query with `archivePath` has no checkpoint, and its group has passed entries that the stream still has."""

    remedy = "Start the query with its checkpoint. To begin without it, set `onNewCheckpoint` as the message says."


class ShardsError(StreamStateError):
    """A stream has another number of shards or another key column than expected, has none, or its shard record is
    lost.
    """

    remedy = "Set `shards` and `shardBy` to the values in the message."


class CopyTargetError(StreamStateError):
    """The target of `rstream copy` or `rstream import` has entries that the copy did not write, or has lost some."""

    remedy = "Name another target stream, or delete the target. If the message says so, run the command again."


class CopyMismatchError(StreamStateError):
    """After `rstream copy` or `rstream import`, count or checksum of the target's entries differ from the source's."""

    remedy = "Stop programs that change the target. Then copy to a new stream."


class LedgerError(StreamStateError):
    """The sink's ledger is lost, belongs to another run, or does not match the rows of this attempt."""

    remedy = (
        "Follow the message. Usual causes: a query whose rows differ on each run (`rand()`, the current time), or "
        "deleted keys `rstream:sink:…`."
    )


class OffsetError(StreamStateError):
    """The checkpoint belongs to another group or consumer, or this version cannot read its offset."""

    remedy = "Restore `group` and `consumer`, or use the checkpoint or the version that the message names."


class SchemaError(RStreamError):
    """A declared column cannot be filled, or a row cannot be written."""

    remedy = "Correct the schema, or cast the column that the message names."


class EntryIdError(SchemaError):
    """The ID of a row is not an entry ID, or is not above the last ID of its stream."""

    remedy = "Write rows in ascending order of their IDs, or remove `idColumn`: the server then generates IDs."


class RowTooLargeError(SchemaError):
    """A row, or a value in it, is larger than the server accepts."""

    remedy = "Make the row smaller, or raise the server's `proto-max-bulk-len`."


class DecodeError(SchemaError):
    """A value does not fit the type of its column, and `mode` is `FAILFAST`."""

    remedy = "Correct the declared type, or choose another `mode`."


class EncodeError(SchemaError):
    """A value does not fit the schema that `encode` writes it by."""

    remedy = "Correct or cast the field that the message names, or set `reason`."


class RegistryError(RStreamError):
    """A schema registry did not answer for a minute, refused the login, lacks a subject, or gave a wrong answer."""

    remedy = "Check `registry`, `login` and `subject`, and that the registry runs. Then start the query again."


class TableError(RStreamError):
    """A table that a job writes to has another layout, other columns or types than its rows, or cannot be loaded."""

    remedy = "Follow the message: it names the statement or the setting to change."


class ArchiveError(RStreamError):
    """The table at `archivePath` cannot be read, or the job `archive` did not write it."""

    remedy = "Follow the message: it names the path or the file."


class CopyFileError(RStreamError):
    """A file of `rstream export` or `rstream import` cannot be read or written, or a line of it is not an entry."""

    remedy = "Correct the line or row that the message names, then run the command again."


class TransformError(RStreamError):
    """A function that changes entries or repairs dead letters was not found, failed, or returned no valid fields."""

    remedy = "Correct the function, then run the command again. Nothing was changed."


class JobError(RStreamError):
    """A job cannot start here, or a file that it has loaded was changed."""

    remedy = "Follow the message."


class QueryError(RStreamError):
    """A query ended with an error of Spark or of the program (`spark_streams.run`)."""

    remedy = "Correct the cause in the message. `$RSTREAM_TRACEBACK=1` shows the traceback."


class VersionError(RStreamError):
    """An executor runs another version of spark-streams than the driver."""

    remedy = "Install the same version on the driver and on all executors."


class WorkerPythonError(RStreamError):
    """Spark would run its tasks by a Python that cannot run this package."""

    remedy = "Set `PYSPARK_PYTHON` to a Python that has the package, before the session is created."


class UnsupportedError(RStreamError):
    """The feature exists, but is not available in this environment."""

    remedy = "Use the alternative that the message names."


_IN_TEXT = re.compile(r"\[(RSTREAM_[A-Z_]+)\] ([^\n]*)")
# Python prints these lines between two exceptions, of which the later one was raised.
_CHAINED = re.compile(
    r"^[ \t]*(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)


def find_in_text(text: str) -> str | None:
    """Return the first line of an RStreamError in a longer text, such as Spark's exception with a Python traceback.

    Of a traceback with several exceptions, only the last one was raised: the ones that it replaced are used if it is
    not ours."""
    matches = map(_IN_TEXT.search, reversed(_CHAINED.split(text)))
    return next((match[0].strip() for match in matches if match is not None), None)
