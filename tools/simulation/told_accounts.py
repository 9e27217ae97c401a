"""Plans by hand: the begin of a query, shared groups, what is reserved, and a server whose keys were put back."""

from __future__ import annotations

from collections.abc import Mapping

from tools.simulation.histories import more
from tools.simulation.step import Step
from tools.simulation.told_plan import Told, at, told

BOB_READS_ONE = Step("read")
BOB_READS_ALL = Step("read", amount=0.9)
BOB_LEAVES = Step("leave")
TWO = "s:0,s:1"
OF_THE_SECOND = 0.9  # choice of the second stream
ERROR = r"\[RSTREAM"


def more_of_the_second(count: int) -> Step:
    """So many entries of the second stream."""
    return Step("add", choice=OF_THE_SECOND, amount=(count - 0.5) / 8)


ACCOUNTS: Mapping[str, Told] = {
    "an older copy that does not know the stream": told(
        (), Step("restart", options=(("streams", "s:0"),)), "trigger", more(2), "trigger",
        Step("restart", options=(("streams", TWO),)), more_of_the_second(3), "trigger", more_of_the_second(2),
        "trigger", "trigger", Step("rollback", amount=0.9, how=0.9), "trigger", streams=TWO,
    ),
    "a new checkpoint of a group that is shared for a while": told(
        (), "trigger", more(3), BOB_READS_ALL, "trigger", Step("renew"), "trigger", more(3), BOB_READS_ALL,
        BOB_LEAVES, "trigger", more(2), "trigger", never=ERROR,
    ),
    "others join a stream without a batch": told(
        (), "trigger", more_of_the_second(3), "trigger", Step("read", choice=OF_THE_SECOND), more(2), "trigger",
        more_of_the_second(3), Step("read", choice=OF_THE_SECOND, amount=0.4), Step("leave", choice=OF_THE_SECOND),
        "trigger", streams=TWO, never=ERROR,
    ),
    "added below the begin": told(
        (), "trigger", more(3), "trigger", Step("clock", how=0.6), more(2), "trigger", "trigger",
        startingOffsets="1700000000900-0", never=ERROR,
    ),
    "killed before the first trigger": told(
        "batch 0: 6, 7, 8", Step("kill", 24), "trigger", more(3), "trigger", "trigger", startingOffsets="latest"
    ),
    "numbers of another checkpoint": told(
        '43-0 3.', "trigger", more(1), "trigger", "trigger", Step("renew"), more(1), "trigger"
    ),
    "killed with reserved entries": told(
        "batch 2: 9, 10", "trigger", more(3), Step("kill", 7), "trigger", more(2), "trigger", "trigger"
    ),
    "trimmed before it is reserved ahead": told(
        ("offsets/0", "[RSTREAM_DATA_LOSS]", "batch 1"), more(2), "trigger", Step("trim", amount=3 / 7), "trigger",
        "trigger", maxEntriesPerTrigger="2", ahead=1,
    ),
    "one stream put back": told(
        "It has returned to an older state", "trigger", "trigger", Step("backup"),
        Step("restart", options=(("streams", TWO), ("maxEntriesPerTrigger", "1"))), more(1), more_of_the_second(1),
        "trigger", Step("import_backup"), "trigger", "trigger", streams=TWO,
    ),
    "all keys put back": told(
        (), "trigger", more(2), "trigger", Step("backup"), more(2), "trigger", "trigger", "trigger",
        Step("import_backup", how=0.9), "trigger", "trigger", failOnDataLoss="false",
    ),
    "sought to the checkpoint below a batch of another stream": told(
        (), more_of_the_second(2), "trigger", more_of_the_second(2), "trigger", more_of_the_second(2), "trigger",
        "trigger", Step("kill"), Step("seek", how=0.99), more(2), "trigger", Step("kill"), "trigger", streams=TWO,
        never=ERROR,
    ),
    "handed over below a batch of the second backlog": told(
        ("batch 2: 8", "batch 3: 6"), "trigger", more(3), BOB_READS_ALL, more(1), "trigger",
        Step("give", amount=0.01, how=0.9), "trigger", at("EXISTS rstream:notes", "give", amount=0.01), "trigger",
        "trigger", "trigger",
    ),
    "put back under a query that reserves ahead": told(
        (), "trigger", Step("backup"), "trigger", Step("import_backup", how=0.3), "trigger", "trigger",
        maxEntriesPerTrigger="1", ahead=1,
    ),
    "one stream and the dead letters put back": told(
        ("XADD dead", "import_backup", "XADD dead"), "trigger", more_of_the_second(1), "misfit", "trigger",
        Step("backup"), "trigger", Step("kill"), Step("import_backup", how=0.3), "trigger", "trigger", streams=TWO,
        mode="DEADLETTER", deadLetterStream="dead",
    ),
    "set back below a deleted entry": told(
        "is at 0-0, below the checkpoint", "trigger", "trigger", Step("delete", amount=0.99, how=0.76), Step("setid"),
        "trigger",
    ),
    "others join before it is reserved ahead": told(
        (), more(2), "trigger", BOB_READS_ONE, "trigger", "trigger", maxEntriesPerTrigger="2", ahead=1,
        never=r"\(background\)[^\n]*XREADGROUP",
    ),
    "others read amid a range": told(
        "batch 2: 9, 10, 11, 12, 13", "trigger", more(1), BOB_READS_ONE, more(1), "trigger", more(6), Step("read", 8),
        "trigger", "trigger",
    ),
    "deleted before others join and read nothing": told(
        "counted: 2", "trigger", "trigger", BOB_READS_ONE, more(5), Step("delete", amount=0.3, how=0.43), "trigger",
        "trigger", failOnDataLoss="false",
    ),
    "others leave before the connection breaks": told(
        (), "trigger", more(2), BOB_READS_ONE, "trigger", BOB_LEAVES, "trigger", "trigger", "trigger", more(3),
        Step("delete", amount=0.99, how=0.3), Step("cut", how=0.1), "trigger", "trigger", "trigger",
        failOnDataLoss="false", never="at least 1 entry above",
    ),
    "without a pending list below a deleted entry": told(
        (), "trigger", Step("kill"), Step("delete", amount=0.99, how=0.2),
        Step("restart", options=(("streams", "s:0"),)),
        "trigger", "trigger", noAck="true", never=ERROR,
    ),
    "killed before a batch with old entries is acknowledged": told(
        ("batch 2: 6, 9", "batch 3: 10"), "trigger", more(3), BOB_READS_ONE, "trigger", Step("give", amount=0.99),
        more(1), "trigger", more(1), at("XACK", "kill"), "trigger", "trigger", "trigger",
    ),
    "killed before the group of a new stream exists": told(
        ("killed", "batch 1: 11, 12"), Step("restart", options=(("streams", "s:0"),)), "trigger", more(2),
        more_of_the_second(3), "trigger", Step("restart", options=(("streams", TWO),)), at("XGROUP CREATE", "kill"),
        "trigger", more_of_the_second(2), "trigger", "trigger", streams=TWO, startingOffsets="latest",
    ),
    "a shared group without a pending list": told(
        "[RSTREAM_GROUP_SHARED]", "trigger", BOB_READS_ONE, Step("kill"), "trigger", noAck="true"
    ),
}  # fmt: skip
