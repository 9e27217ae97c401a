"""Every error that spark-streams raises on purpose.

    RStreamError                        the root; catch this one
    ├── OptionError                     what a user typed into .option(…) or a config file
    │   ├── UnknownOptionError          no such option; the message names the nearest
    │   ├── InvalidOptionError          the value does not fit the option
    │   ├── NotAllowedError             a variable RSTREAM_ALLOW_… of the driver's environment does not list the value
    │   └── ConfigError                 a job's config file, or a --set, cannot be used
    ├── ServerError                     between us and the stream server
    │   ├── ServerUnreachableError      nothing answers at the address
    │   ├── ServerReplyError            the server answered with an error
    │   │   ├── LoginError              it wants a password, or refuses the url's user and password
    │   │   └── NotPermittedError       the url's user has no right to a command or a key
    │   ├── RetriesExhaustedError       what should have passed by itself (OOM, LOADING, a lost server …) did not
    │   ├── ReplicationError            fewer replicas than waitReplicas have what was written
    │   ├── WrongKeyTypeError           the key holds something that is not a stream
    │   └── IdsExhaustedError           the stream has given out its last possible id, or is about to
    ├── StreamStateError                the streams are not as the query left them
    │   ├── StreamMissingError          a stream that is named does not exist; the message names the nearest
    │   ├── DataLossError               entries that belong to the query are gone
    │   ├── GroupMissingError           the consumer group was destroyed under the query
    │   ├── TakenError                  another running process has what this one wants for itself
    │   │   ├── ConsumerTakenError      another running query has this group and consumer
    │   │   ├── RedriveTakenError       another process moves or purges its dead letters
    │   │   └── GroupInUseError         a query lives in the group or consumer that was to be changed
    │   ├── GroupSharedError            noAck wants a group of its own, and others read from it
    │   ├── ShardsError                 a stream is in other shards than is wanted, or in none, or its shards are lost
    │   ├── LedgerError                 rows that were written before are not those of this attempt, or are lost
    │   └── OffsetError                 a checkpoint's offset cannot be read
    ├── TransformError                  a function that was to repair dead letters
    ├── SchemaError                     a declared column cannot be filled, or a row cannot be written
    │   ├── EntryIdError                a row's id is no entry id, or not above the last one of its stream
    │   ├── RowTooLargeError            a row is larger than the server takes
    │   └── DecodeError                 a value does not fit the declared type (mode=FAILFAST)
    ├── QueryError                      a query was ended by an error that is none of these: Spark's, or its own code's
    ├── VersionError                    an executor has another version of spark-streams than the driver
    └── UnsupportedError                known, and not available here; the message says what to do instead

Each message is one line: `[CONDITION] what was wrong, where; what to do`. The condition is stable and can be matched.
Passwords never appear in a message.
"""

from __future__ import annotations

import re
from typing import ClassVar

from spark_streams.printable import printable


class RStreamError(Exception):
    """The root of the tree above.

    message: one line that says what was wrong, where, and what to do.
    """

    condition: ClassVar[str] = "RSTREAM_ERROR"

    def __init__(self, message: str) -> None:
        self.message = printable(" ".join(message.split()))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"


class OptionError(RStreamError):
    """What a user typed into an option or a config file cannot be used."""

    condition = "RSTREAM_OPTION"


class UnknownOptionError(OptionError):
    """No option has this name."""

    condition = "RSTREAM_UNKNOWN_OPTION"


class InvalidOptionError(OptionError):
    """The value does not fit the option, is missing, or contradicts another option."""

    condition = "RSTREAM_INVALID_OPTION"


class NotAllowedError(OptionError):
    """A variable `RSTREAM_ALLOW_…` of the driver's environment does not list what an option names."""

    condition = "RSTREAM_NOT_ALLOWED"


class ConfigError(OptionError):
    """A job's config file or a `--set` cannot be used."""

    condition = "RSTREAM_CONFIG"


class ServerError(RStreamError):
    """Between us and the stream server."""

    condition = "RSTREAM_SERVER"


class ServerUnreachableError(ServerError):
    """Nothing answers at the address, or the connection broke and could not be made again.

    passes: whether that may pass by itself; what is wrong with the address itself does not.
    """

    condition = "RSTREAM_SERVER_UNREACHABLE"

    def __init__(self, message: str, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class ServerReplyError(ServerError):
    """The server answered a command with an error.

    code: the first word of what it said (`OOM`, `LOADING`, `ERR` …), by which wire.retry tells what passes by itself;
    empty where that is not known.
    """

    condition = "RSTREAM_SERVER_REPLY"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class LoginError(ServerReplyError):
    """The server wants a password, or refuses the user and password of the url."""

    condition = "RSTREAM_LOGIN"


class NotPermittedError(ServerReplyError):
    """The url's user has no right to a command or a key.

    right: the word of ACL SETUSER that gives it (`+xadd`, `~orders`).
    """

    condition = "RSTREAM_NOT_PERMITTED"

    def __init__(self, message: str, code: str = "", right: str = "") -> None:
        super().__init__(message, code)
        self.right = right


class RetriesExhaustedError(ServerError):
    """A state of the server that passes by itself has not passed within the limit (wire.retry)."""

    condition = "RSTREAM_RETRIES_EXHAUSTED"


class ReplicationError(ServerError):
    """Fewer replicas than `waitReplicas` have acknowledged what was written."""

    condition = "RSTREAM_REPLICATION"


class WrongKeyTypeError(ServerError):
    """The key holds something that is not a stream."""

    condition = "RSTREAM_WRONG_KEY_TYPE"


class IdsExhaustedError(ServerError):
    """The stream has given out its last possible id (2^64−1-2^64−1), or has too few left: nothing can be added."""

    condition = "RSTREAM_IDS_EXHAUSTED"


class StreamStateError(RStreamError):
    """The streams on the server are not as the query left them."""

    condition = "RSTREAM_STREAM_STATE"


class StreamMissingError(StreamStateError):
    """A stream that is named does not exist, and is not to be waited for."""

    condition = "RSTREAM_STREAM_MISSING"


class DataLossError(StreamStateError):
    """Entries that were delivered to the query are gone from the stream."""

    condition = "RSTREAM_DATA_LOSS"


class GroupMissingError(StreamStateError):
    """The consumer group was destroyed under the query."""

    condition = "RSTREAM_GROUP_MISSING"


class TakenError(StreamStateError):
    """Another running process has what this one wants for itself."""

    condition = "RSTREAM_TAKEN"


class ConsumerTakenError(TakenError):
    """Another running query reads under the same group and consumer: they would take each other's entries."""

    condition = "RSTREAM_CONSUMER_TAKEN"


class RedriveTakenError(TakenError):
    """Another process moves or purges the dead letters of this stream."""

    condition = "RSTREAM_REDRIVE_TAKEN"


class GroupInUseError(TakenError):
    """A query lives in the group or consumer that was to be changed, or another client is at work there."""

    condition = "RSTREAM_GROUP_IN_USE"


class GroupSharedError(StreamStateError):
    """A query with noAck must have its group for itself, and another consumer reads from it."""

    condition = "RSTREAM_GROUP_SHARED"


class ShardsError(StreamStateError):
    """A stream is in other shards than is wanted, in none, or by another column; or what says so is lost."""

    condition = "RSTREAM_SHARDS"


class LedgerError(StreamStateError):
    """What the sink's ledger says was written is lost, not this run's, or cannot be proved equal to what it has."""

    condition = "RSTREAM_LEDGER"


class OffsetError(StreamStateError):
    """A checkpoint's offset cannot be read by this version."""

    condition = "RSTREAM_OFFSET"


class SchemaError(RStreamError):
    """A declared column cannot be filled, or a row cannot be written."""

    condition = "RSTREAM_SCHEMA"


class EntryIdError(SchemaError):
    """The id that a row brings along is no entry id, or not above the last id of its stream."""

    condition = "RSTREAM_ENTRY_ID"


class RowTooLargeError(SchemaError):
    """A row has a value, or is one, beyond what the server takes in one argument or request."""

    condition = "RSTREAM_ROW_TOO_LARGE"


class DecodeError(SchemaError):
    """A value does not fit its column's declared type and `mode` is FAILFAST."""

    condition = "RSTREAM_DECODE"


class TransformError(RStreamError):
    """A function that was to repair dead letters cannot be found, failed, or gave something that is no entry."""

    condition = "RSTREAM_TRANSFORM"


class QueryError(RStreamError):
    """What ended a query (spark_streams.run) is an error of somebody else's: of Spark, or of the query's own code."""

    condition = "RSTREAM_QUERY"


class VersionError(RStreamError):
    """An executor's Python has another version of spark-streams than the driver's."""

    condition = "RSTREAM_VERSION"


class UnsupportedError(RStreamError):
    """Known, and not available here; the message says what to do instead."""

    condition = "RSTREAM_UNSUPPORTED"


_IN_TEXT = re.compile(r"\[(RSTREAM_[A-Z_]+)\] ([^\n]*)")


def find_in_text(text: str) -> str | None:
    """The first of our error lines inside a longer text, such as a Spark exception that carries a Python traceback."""
    found = _IN_TEXT.search(text)
    return found.group(0).strip() if found else None
