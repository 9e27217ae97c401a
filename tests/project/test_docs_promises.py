"""Each row of the four pages of promises and limits names the tests that show it: a new row needs one, and a row that
changes its first words is looked at again.

The id of a row is its first words: of a table's first cell, of an item of a list, of a paragraph that begins in bold;
of a section without any, its heading. A test is `file::name`, without `test_`. A plan is a rule of the tables of
tests/simulation/test_process.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.simulation.test_process import DOCUMENTED, EXCUSED

ROOT = Path(__file__).resolve().parents[2]
_PAGES = {page.stem: page for page in (ROOT / "docs").glob("*/*.md")}
_LONGEST_ID = 60


def rows_of(page: str) -> list[str]:
    """Return the ids of the rows of a page."""
    found = []
    page = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.DOTALL | re.MULTILINE)
    for level, heading, section in re.findall(r"^(#+) (.+)\n((?:(?!^#).*\n?)*)", page, re.MULTILINE):
        lines = re.sub(r"\n {2,}(?=\S)", " ", section).splitlines()
        heads = {lines[number - 1] for number, line in enumerate(lines) if line.startswith("|---")}
        items = [line for line in lines if re.match(r"\| |- |\d+\. |\*\*", line) and line not in heads]
        found += [_id(item) for item in items] or ([heading] if section.strip() and level != "#" else [])
    earlier = [found[:place].count(name) for place, name in enumerate(found)]
    return [f"{name}, {count + 1}" if count else name for name, count in zip(found, earlier, strict=True)]


def _id(row: str) -> str:
    text = re.sub(r"^\| |^- |^\d+\. |\[|\]\([^)]*\)|\*\*|`", "", row)
    words = re.split(r"(?<=\w)\. |\. \| | \| |\.$|: ", text)[0]
    return words if len(words) <= _LONGEST_ID else words[:_LONGEST_ID].rpartition(" ")[0] + " …"


SHOWN: Mapping[str, Mapping[str, Sequence[str]]] = {
    "guarantees": {
        "A micro-batch is exactly what the consumer group delivered …": [
            "batch_stream::a_batch_is_read_and_settled_when_the_next_one_is_asked_for",
            "planning_of_replays::a_replay_is_the_whole_batch_whatever_became_of_the_pending_list",
        ],
        "An entry is acknowledged only after Spark has committed its …": [
            "stream_reader_batch_starts::a_batch_that_was_not_committed_is_run_again_before_anything_is_acknowledged",
        ],
        "A query that is killed reads the same entries again": [
            "batch_stream::a_restart_with_an_unfinished_batch_reads_the_same_rows",
        ],
        "The sink writes each row once, through retries, replays and …": [
            "kills::a_kill_at_any_moment_loses_nothing_and_writes_nothing_twice",
            "in_spark::a_second_attempt_of_a_task_writes_no_row_twice",
        ],
        "Lost entries stop the query, or are counted …": [
            "batch_stream::entries_gone_before_they_are_read_stop_the_query_or_are_passed_over",
        ],
        "An entry that cannot be read becomes a dead letter with all …": [
            "notes::an_entry_that_does_not_fit_becomes_one_dead_letter_with_its_fields_untouched",
        ],
        "The query waits for an unreachable server, and no outage …": [
            "stream_reader_without_server::a_query_that_is_started_again_while_the_server_is_away_waits_for_it",
            "poison_batch_at_random::no_entry_becomes_a_dead_letter_because_a_server_was_down",
        ],
        "Trimming on commit never removes an entry that a group …": [
            "acknowledge_and_remove::what_another_group_needs_stays",
        ],
        "Two queries never share a consumer name": [
            "source_options::a_second_query_with_the_same_consumer_is_refused_and_the_first_goes_on",
        ],
        "Older state is read, or refused by a named error; it is …": [
            "offset::format_1_is_read_as_it_was_written",
            "version_1::the_ledger_of_a_sink",
        ],
        "A table has each row once by its own commit": [
            "tables::the_jobs_write_each_row_once",
            "killed_driver::nothing_is_lost_doubled_or_left_pending",
        ],
        "Your foreachBatch runs again if Spark repeats the …": [
            "sink::every_write_of_a_foreach_batch_is_written",
            "sink::named_writes_within_foreach_batch_are_written_once",
        ],
        "source, default": [
            "killed_driver::nothing_is_lost_doubled_or_left_pending",
        ],
        "noAck=true": [
            "trigger::no_ack_leaves_nothing_pending_and_the_checkpoint_protects",
            "trigger::no_ack_counts_missing_entries",
        ],
        "failOnDataLoss=false": [
            "recovery_findings::entries_trimmed_before_they_were_read_are_counted_once",
        ],
        "ordered=true, shards": [
            "trigger::an_ordered_stream_is_one_task_in_stream_order",
            "shards::each_key_stays_in_order_from_shards_to_shards",
        ],
        "sink, default": [
            "in_spark::a_killed_driver_leaves_no_row_twice",
        ],
        "delivery=at-least-once": [
            "delivery_exactly_once::without_a_ledger_a_connection_that_is_lost_at_any_request_loses_nothing",
        ],
        "df.write": [
            "in_spark::a_second_attempt_of_a_task_writes_no_row_twice",
            "sink::every_write_of_a_foreach_batch_is_written",
        ],
        "transaction in foreachBatch": [
            "sink::named_writes_within_foreach_batch_are_written_once",
        ],
        "When readers see rows": [
            "chunk_writer::readers_see_all_of_a_chunk_or_nothing",
        ],
        "keys between batches": [
            "chunk_writer::the_ledger_takes_the_bytes_that_the_page_says",
        ],
        "keys during a batch": [
            "chunk_writer::the_ledger_takes_the_bytes_that_the_page_says",
        ],
        "rate": [
            "docs_numbers::each_number_on_a_page_is_a_figure_or_has_a_source",
        ],
        "from XADD to the row in all, half of the entries": [
            "docs_numbers::each_number_on_a_page_is_a_figure_or_has_a_source",
        ],
        "A kill before Spark's offset log has the batch": [
            "bookmark::a_query_that_is_killed_goes_on_wherever_that_was",
        ],
        "A kill after Spark's commit, before the acknowledgement": [
            "bookmark::a_query_that_is_killed_goes_on_wherever_that_was",
        ],
        "The group is moved, deleted or created again": [
            "batch_contents_ahead::without_a_pending_list_a_group_that_was_moved_is_set_back",
        ],
        "Another client reads from the group": [
            "trigger::no_ack_is_refused_where_others_read_from_the_group",
        ],
        "Another client hands entries to the query (XCLAIM)": [
            "batch_contents::a_query_with_no_ack_refuses_them_and_a_run_without_it_reads_them",
        ],
        "A task is retried or has a speculative copy, or Spark …": [
            "failed_tasks::a_speculative_twin_leaves_one_copy",
            "delivery_exactly_once::twins_write_the_rows_once",
        ],
        "The connection breaks after a chunk was sent": [
            "delivery_exactly_once::a_connection_that_is_lost_at_any_request_loses_and_doubles_nothing",
        ],
        "A task is suspended, and continues after its batch has ended": [
            "zombies::a_task_that_wakes_up_batches_later_writes_nothing",
        ],
        "A replica that lagged becomes the master, in the middle of …": [
            "batch_commit::without_waiting_a_task_says_what_a_failover_has_lost",
        ],
        "The same, after the batch was complete": [
            "lost_by_the_server::the_lost_end_of_the_batch_before_is_an_error_and_its_remedy_doubles_nothing",
        ],
        "The query returns other rows when it runs again (rand())": [
            "delivery_exactly_once::a_retry_with_other_rows_is_an_error",
        ],
        "The server may evict keys (maxmemory, allkeys-…)": [
            "batch_commit_runs::a_server_that_may_drop_the_ledger_is_refused",
        ],
        "Rows have their own IDs (idColumn)": [
            "fields::rows_that_are_there_under_their_ids_are_passed_over_when_a_batch_is_replayed",
        ],
        "The batch is the group's": [
            "planning_of_replays::a_shared_batch_that_lost_pending_entries_is_an_error_not_a_smaller_batch",
            "endings::the_end_of_a_run_leaves_nothing_pending",
        ],
        "Only the driver moves the group": [
            "batch_contents_ahead::what_a_crash_leaves_reserved_is_the_next_runs",
        ],
        "Groups may be shared with any other client (how). A second …": [
            "source_options::another_client_of_the_group_reads_at_the_same_time",
            "source_options::a_second_query_with_the_same_consumer_is_refused_and_the_first_goes_on",
            "source_options::a_self_join_of_one_load_names_the_cause_and_leaves_no_source_behind",
        ],
        "A query answers for entries from its first batch on": [
            "compare_account::what_a_group_had_missed_before_the_query_is_no_loss_of_it",
        ],
        "A new checkpoint continues where the group stands": [
            "compare_at_begin::entries_that_a_killed_run_has_acknowledged_are_not_lost_for_a_new_checkpoint",
            "compare_at_begin::the_earlier_checkpoint_is_an_older_one_after_a_new_one_has_read",
            "compare_at_begin::entries_that_were_removed_before_the_first_offset_are_still_a_loss",
        ],
        "latest is fixed on the server when the group is created": [
            "batch_stream::a_crash_in_the_first_batch_starts_at_the_same_place",
        ],
        "Entries of dead consumers are claimed if claimIdle is set": [
            "claim::entries_of_a_dead_consumer_are_taken_over_once",
            "drivers::what_was_written_and_not_acknowledged_may_come_again_if_another_driver_claims_it",
            "planning_of_claimed_replays::a_strict_replay_names_the_entries_that_another_consumer_has_claimed",
        ],
        "Released entries (XNACK, Redis 8.8, or rstream groups …": [
            "claim_of_released::released_entries_are_taken_at_once_and_once",
            "claim_of_released::a_fatal_entry_is_a_dead_letter",
            "claim_of_released::a_query_without_a_pending_list_refuses_a_group_with_released_entries",
        ],
        "Handed-over entries (XCLAIM, XAUTOCLAIM, rstream groups …": [
            "batch_contents::a_query_that_shares_its_group_reads_them",
        ],
        "Order": [
            "claim::claimed_entries_come_before_new_ones_where_a_stream_is_ordered",
            "claim::claimed_entries_above_the_position_and_others_come_in_stream_order",
        ],
        "Losses are named or counted": [
            "batch_stream::entries_trimmed_before_they_were_delivered_are_counted",
            "compare_account::entries_deleted_unread_amid_others_are_noticed_when_the_group_has_come_to_the_end",
            "batch_stream::a_checkpoint_of_another_consumer_or_group_is_refused",
        ],
        "Versions": [
            "offset::an_offset_of_a_newer_version_is_refused_with_what_to_do",
            "offset::format_1_is_read_as_it_was_written",
        ],
        "With noAck the group is a bookmark, set to the end of each …": [
            "bookmark::batches_have_the_limit_and_the_group_shows_exactly_what_is_read",
            "batch_contents::a_query_with_no_ack_refuses_them_and_a_run_without_it_reads_them",
        ],
        "Entries that do not fit are kept": [
            "notes::missing_notes_end_the_query_before_anything_is_acknowledged",
            "notes::a_dead_letter_that_the_server_has_forgotten_is_written_again",
        ],
        "Entries that no task reads": [
            "notes::entries_that_no_task_reads_are_acknowledged_and_become_no_dead_letters",
        ],
        "Entries that kill the query": [
            "poison_batch::the_entry_that_kills_is_found_and_the_others_flow_once",
            "poison_batch::restarts_add_two_to_the_servers_count_at_most",
        ],
        "Retries": [
            "retries::killed_before_or_after_any_command_each_entry_is_tried_once_a_time_and_dies_once",
            "retries_due::an_entry_is_returned_in_the_millisecond_in_which_its_delay_is_over",
        ],
        "No outage makes a dead letter": [
            "poison_record::no_good_entry_is_given_up_whatever_else_comes_and_goes",
            "poison_record::how_many_starts_it_takes_to_find_a_killer",
        ],
        "Each row once, also if a shuffle gives the rows another …": [
            "delivery_exactly_once::a_retry_writes_what_is_missing_in_whatever_order",
            "batch_commit_runs::a_driver_whose_clock_is_behind_takes_over_from_the_killed_run",
        ],
        "Rows must be repeatable": [
            "delivery_exactly_once::a_retry_with_other_rows_is_an_error",
            "fewer_entries::rows_of_an_earlier_run_stay_and_are_counted",
        ],
        "Eviction": [
            "begin_server_checks::a_query_that_would_lose_entries_in_silence_is_refused",
            "batch_commit_runs::a_user_who_may_not_ask_for_the_policy_goes_on",
        ],
        "Order, 2": [
            "lost_by_the_server::batches_that_a_checkpoint_was_set_back_to_may_be_written_without_the_ledger",
        ],
        "Two servers": [
            "sink_elsewhere::a_batch_that_was_cut_or_has_lost_entries_stops_at_such_a_sink",
        ],
        "Shards": [
            "sink::connections_that_break_at_any_point_keep_the_order",
            "sink::twins_side_by_side_keep_the_order",
        ],
        "Removal on commit (onCommit) waits for every group, and for …": [
            "acknowledge_and_remove::what_another_group_needs_stays",
            "compare_removed_entries::a_group_that_is_made_later_reads_what_is_left",
        ],
        "Outages": [
            "stream_reader_without_server::a_server_that_stays_away_from_a_query_that_knew_it_ends_it_after_a_minute",
            "stream_reader_without_server::a_first_start_waits_for_a_moment_and_then_says_that_nobody_answers",
        ],
    },
    "unnoticed": {
        "A master is lost before its replicas had the last writes": [
            "network::a_failover_at_any_moment_loses_only_what_was_written_since",
        ],
        "A server loses a complete batch of the sink with its ledger": [
            "reasons_unnoticed::a_batch_of_a_job_that_has_ended_is_lost_in_silence",
            "lost_by_the_server::a_batch_without_rows_says_what_the_one_before_has_lost",
        ],
        "A server is restored to an older state, and producers add …": [
            "plan: restored, and as many have left as were read",
        ],
        "Lenient, and a server is restored once more, to a newer …": [
            "plan: restored once more, to a newer state",
        ],
        "A server is restored to a state after rstream groups seek, …": [
            "reasons_unnoticed::a_query_moves_once_more_on_a_server_from_after_a_seek",
        ],
        "A server is restored under a running query, and has the …": [
            "streams_lease::a_process_that_a_server_has_again_with_its_session_may_live",
        ],
        "Lenient, and a server is restored to a state before the …": [
            "plan: before the query's group was created (or it is then destroyed)",
        ],
        "A server is restored to an older state, or an older copy of …": [
            "plan: If they are not pending now, they are not reported",
        ],
        "Redis 7.0 restarts or fails over": [
            "reasons_unnoticed::what_is_removed_unread_behind_a_forgotten_count_is_not_noticed",
        ],
        "rstream:committed:…": [
            "plan: the mark is deleted, restored, or not written yet",
        ],
        "rstream:notes:…, single fields, or all amid a trigger": [
            "plan: Their entries are acknowledged without a dead letter",
            "reasons_unnoticed::an_entry_whose_note_alone_is_deleted_gets_no_dead_letter",
            "notes::missing_notes_end_the_query_before_anything_is_acknowledged",
        ],
        "rstream:retry:…, rstream:returned:…": [
            "reasons_unnoticed::entries_that_wait_for_a_retry_are_lost_with_their_key",
        ],
        "rstream:redrive:…, or only the dead-letter stream is …": [
            "plan: Dead letters are sent back again",
        ],
        "rstream:sink:…:parts or …:carried of a batch that is cut; …": [
            "plan: Its rows are written again",
        ],
        "rstream:missing:…, or the server is restored to a state …": [
            "reasons_unnoticed::what_tasks_have_found_missing_is_not_counted_if_its_key_is_deleted",
        ],
        "rstream:begun:…, rstream:first:…, before the first …": [
            "plan: The query begins at the stream's end at that moment, or at the ID",
        ],
        "the ledger, and the checkpoint is an older copy": [
            "lost_by_the_server::batches_that_a_checkpoint_was_set_back_to_may_be_written_without_the_ledger",
        ],
        "A group is moved or created again while its query takes or …": [
            "plan: A group is moved or created again while its query takes or reserves a batch",
        ],
        "A group is moved before the first batch of its query": [
            "plan: shared at the last batch, and set forward",
        ],
        "A group is set back, and entries that were pending above …": [
            "reasons_unnoticed::what_has_left_the_stream_stays_pending_until_the_group_passes_it_again",
        ],
        "An older copy of the checkpoint was used; then the newer …": [
            "plan: an older copy of the checkpoint has replaced the record",
        ],
        "Spark's commit log lost its last file": [
            "compare_removed_entries::a_batch_that_is_read_again_after_its_commit_lacks_what_the_query_has_removed",
        ],
        "Lenient, the checkpoint is set back, and a later batch had …": [
            "found::an_older_checkpoint_that_lacks_only_claimed_entries_is_documented",
        ],
        "Lenient, the checkpoint is set back, and a batch of a used …": [
            "found::rows_that_a_kept_batch_does_not_have_are_documented",
        ],
        "Lenient, and the group is missing": [
            "plan: as many have left as were read, or others had read",
        ],
        "Spark 4.0 and 4.1": [
            "unknown_query::a_batch_under_a_new_query_id_is_refused_before_it_is_written_twice",
            "unknown_query::a_named_write_may_begin_with_any_batch",
        ],
        "maxDeliveries, and the driver is killed that often in one …": [
            "found::a_batch_that_is_done_in_the_sink_is_not_set_aside",
        ],
        "A stream is deleted and created again between two triggers": [
            "plan: below where the query begins",
        ],
        "The same while the query is down within a batch": [
            "plan: read in the place of deleted entries",
        ],
        "XDEL of an entry above the position of a shared group, also …": [
            "plan: A strict query stops at each start until the group has passed the entry",
        ],
        "A sink, a retry or a redrive writes to a stream": [
            "reasons_unnoticed::rows_are_missing_if_a_task_is_killed_before_it_knows_that_its_stream_was_replaced",
        ],
        "The right to write notes (HSET) is revoked just when the …": [
            "post::where_rights_are_taken_away_within_the_transaction_the_entries_are_pending_again",
        ],
        "Lenient, and an entry is deleted between two attempts of a …": [
            "plan: only one of two executions of a task has read it",
        ],
        "Entries are removed unread, and a consumer (they, or the …": [
            "reasons_unnoticed::what_is_removed_unread_is_not_noticed_if_another_consumer_reads_past_it",
        ],
        "They acknowledge entries that were claimed, handed over or …": [
            "plan: passed over by `seek`, or left pending by an earlier checkpoint",
        ],
        "Several of these happen within one trigger": [
            "reasons_unnoticed::others_who_join_read_and_leave_stop_the_query_without_need",
        ],
        "They join the group of a query that was alone, read, and …": [
            "reasons_unnoticed::others_who_join_read_and_leave_stop_the_query_without_need",
        ],
        "They join such a group, and delete entries that they have …": [
            "reasons_unnoticed::others_who_join_and_delete_what_they_have_read_hide_an_earlier_deletion",
        ],
        "XCLAIM with IDLE or TIME in the past, or the server's clock …": [
            "reasons_unnoticed::an_entry_handed_over_with_a_past_time_is_acknowledged_unread",
        ],
        "XCLAIM of pending entries from a query with claimIdle, …": [
            "reasons_unnoticed::entries_claimed_from_a_query_with_claim_idle_while_it_takes_a_batch_come_after_later_ones",
        ],
        "XCLAIM … FORCE of entries that a stopped query has committed": [
            "reasons_unnoticed::an_entry_that_is_claimed_by_force_after_its_commit_is_acknowledged_unread",
        ],
        "XNACK of entries of a batch that a query is reading": [
            "reasons_unnoticed::an_entry_that_is_released_while_its_batch_is_read_is_read_twice",
        ],
        "Another query takes over pieces of a batch that was cut by …": [
            "reasons_unnoticed::pieces_of_a_cut_batch_that_another_query_takes_are_reported_as_lost",
        ],
    },
    "data-loss": {
        "true (the default)": [
            "recovery::a_group_is_mended_as_the_error_says",
        ],
        "false": [
            "compare::alone_the_checkpoint_decides",
            "compare::shared_the_group_decides",
            "source_options::a_counted_loss_is_told_in_the_progress",
        ],
        "Normally they are in this order, or equal": [
            "observe::where_a_query_has_begun_is_not_taken_for_what_it_has_committed",
        ],
        "If the commit mark is of a batch that the checkpoint does …": [
            "observe::an_older_copy_of_the_checkpoint_is_noticed",
        ],
        "If rstream groups seek has moved the group, the commit mark …": [
            "core_model::a_query_goes_on_where_an_operator_has_set_its_group",
        ],
        "The stream is missing, and so is its group": [
            "recovery_findings::a_missing_stream_stops_a_strict_query",
            "streams::a_stream_that_vanishes_stops_the_query_or_is_counted",
        ],
        "The group is missing, and the stream is not the one that …": [
            "observe::a_stream_created_again_and_one_whose_group_is_missing_differ_in_what_they_lost",
        ],
        "The group is missing": [
            "recovery_findings::a_destroyed_group_is_made_again_at_the_checkpoint",
        ],
        "The group is below the checkpoint": [
            "batch_stream::a_group_set_back_below_the_checkpoint_is_set_to_it",
            "recovery::a_shared_group_that_was_set_back_is_mended_as_the_error_says",
        ],
        "The group is above the checkpoint, and the entries in …": [
            "observe::a_group_that_is_set_forward_is_noticed",
        ],
        "The checkpoint is an older copy": [
            "observe::an_older_copy_of_the_checkpoint_is_noticed",
            "observe::a_missing_commit_mark_is_noticed",
        ],
        "The server has returned to an older state, without entries …": [
            "observe::entries_lost_by_a_restarted_server_are_named_or_counted",
        ],
        "Entries are missing that no batch has read": [
            "compare_account::trimming_between_the_look_and_the_reserving_is_noticed",
            "recovery_findings::entries_trimmed_before_they_were_read_are_counted_once",
        ],
        "The notes of a batch (mode=DEADLETTER) or its record …": [
            "notes::missing_notes_end_the_query_before_anything_is_acknowledged",
            "poison_batch::a_record_that_is_lost_before_its_batch_is_acknowledged_is_noticed",
        ],
        "A query that is alone does not stop if its group is below …": [
            "observe::a_group_that_was_set_back_is_set_to_the_checkpoint",
        ],
        "If only the mark is missing, and the checkpoint is the one …": [
            "observe::a_missing_commit_mark_is_noticed",
        ],
        "With noAck a group at another place is no finding": [
            "batch_contents_ahead::without_a_pending_list_a_group_that_was_moved_is_set_back",
        ],
        "A query over a pattern stops reading a stream that is …": [
            "streams::a_stream_that_vanishes_stops_the_query_or_is_counted",
        ],
        "acknowledgements": [
            "trigger_after_failover::after_a_failover_committed_entries_are_not_read_again",
            "plan: or while entries are pending that no batch has",
        ],
        "notes of tasks (mode=DEADLETTER), amid their batch": [
            "reasons_unnoticed::notes_that_a_failover_loses_amid_their_batch_are_not_missed",
        ],
        "deliveries of an uncommitted batch": [
            "trigger_after_failover::after_a_failover_committed_entries_are_not_read_again",
        ],
        "deliveries of a committed batch, alone in the group": [
            "trigger_after_failover::after_a_failover_committed_entries_are_not_read_again",
        ],
        "deliveries of a committed batch, shared group": [
            "recovery::a_shared_group_that_was_set_back_is_mended_as_the_error_says",
        ],
        "entries of a committed batch": [
            "observe::entries_lost_by_a_restarted_server_are_named_or_counted",
        ],
        "entries that were not read yet": [
            "network::a_failover_at_any_moment_loses_only_what_was_written_since",
        ],
        "rows of an incomplete batch": [
            "ledger_damaged::rows_that_a_failover_has_lost_are_written_when_the_query_is_started_again",
        ],
        "rows and the end of their batch together": [
            "lost_by_the_server::the_lost_end_of_the_batch_before_is_an_error_and_its_remedy_doubles_nothing",
        ],
        "the same of a job (df.write) that has ended": [
            "reasons_unnoticed::a_batch_of_a_job_that_has_ended_is_lost_in_silence",
        ],
        "an outbox together with its dead letter": [
            "dead_letters::an_outbox_that_a_killed_query_left_keeps_the_entry_from_a_second_dead_letter",
        ],
        "only the acknowledgement of a dead letter": [
            "reasons_unnoticed::an_entry_whose_acknowledgement_alone_is_lost_is_a_dead_letter_twice",
        ],
        "Rows and the end of their batch together": [
            "lost_by_the_server::the_lost_end_of_the_batch_before_is_an_error_and_its_remedy_doubles_nothing",
        ],
        "In a cluster, the query's record (rstream:sink:<query>, …": [
            "lost_by_the_server::what_a_stream_has_lost_alone_is_an_error",
        ],
        "On one server, or if the record is lost with the stream, …": [
            "lost_by_the_server::a_batch_without_rows_says_what_the_one_before_has_lost",
            "unknown_query::a_query_that_wrote_elsewhere_before_goes_on_as_the_error_says",
        ],
        "waitReplicas reduces the risk only": [
            "batch_commit::a_replica_that_has_not_confirmed_may_become_the_master",
        ],
    },
    "exactly-once": {
        "The source delivers the same entries again after a crash": [
            "batch_stream::a_restart_with_an_unfinished_batch_reads_the_same_rows",
        ],
        "The sink keeps a *ledger*": [
            "delivery_exactly_once::a_killed_run_is_kept_from_writing_on",
        ],
        "Keep the checkpoint": [
            "reasons_unnoticed::a_marker_of_an_earlier_checkpoint_stands_for_a_batch_of_a_new_one",
        ],
        "Give the same rows for the same entries": [
            "delivery_exactly_once::a_retry_with_other_rows_is_an_error",
            "routing::the_time_of_a_batch_is_its_current_timestamp_also_when_it_is_run_again",
        ],
        "Use a server that keeps its keys": [
            "batch_commit_runs::a_server_that_may_drop_the_ledger_is_refused",
        ],
        "Use a server that keeps what it has confirmed": [
            "lost_by_the_server::a_batch_that_is_run_again_writes_what_the_server_has_lost",
        ],
        "Within foreachBatch": [
            "sink::named_writes_within_foreach_batch_are_written_once",
            "guide_blocks::the_blocks_run",
        ],
        "Rows of complete batches only": [
            "guide_blocks::the_blocks_run",
            "reasons_unnoticed::a_marker_of_an_earlier_checkpoint_stands_for_a_batch_of_a_new_one",
        ],
        "Parquet and other files": [
            "killed_driver::a_batch_that_the_sink_has_and_the_commit_log_has_not_is_written_again_in_its_place",
        ],
        "Delta and Iceberg tables": [
            "tables::the_jobs_write_each_row_once",
        ],
        "Redis hashes": [
            "hashes::an_older_batch_never_replaces_a_newer_one",
        ],
        "a database": [
            "killed::what_is_there_in_the_end_is_what_a_batch_gives",
        ],
        "counters (HINCRBY)": [
            "killed_driver::a_batch_that_the_sink_has_and_the_commit_log_has_not_is_written_again_in_its_place",
        ],
        "Choose how to read": [
            "trigger::no_ack_leaves_nothing_pending_and_the_checkpoint_protects",
            "fields::rows_that_are_there_under_their_ids_are_passed_over_when_a_batch_is_replayed",
        ],
        "Two groups, or two queries with different checkpoints, are …": [
            "acknowledge_and_remove::every_group_gets_every_entry_once_whichever_query_dies_when",
        ],
        "An aggregation needs output mode append with a watermark, …": [
            "sink::an_aggregation_needs_append_as_spark_gives_python_sinks_no_update_mode",
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("page", SHOWN)
def test_each_row_names_the_tests_that_show_it(page: str) -> None:
    rows, known = rows_of(_PAGES[page].read_text(encoding="utf-8")), SHOWN[page]
    assert [row for row in rows if row not in known] == [], "name a test that shows the new row"
    assert [row for row in known if row not in rows] == [], "the row is gone"


@pytest.mark.parametrize("page", SHOWN)
def test_each_test_of_a_row_is_there(page: str) -> None:
    plans = {f"plan: {rule}" for rule in (*DOCUMENTED, *EXCUSED)}
    files = [(path.stem[5:], path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {f"{stem}::{name}" for stem, text in files for name in re.findall(r"^def test_(\w+)", text, re.MULTILINE)}
    assert {one for shown in SHOWN[page].values() for one in shown} - plans - tests == set()


def test_a_row_that_is_added_or_changed_is_found() -> None:
    """Planted: a row of a table, an item of a list, and a word of a first cell."""
    page = _PAGES["unnoticed"].read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| Several of these"))
    planted = page.replace(row, f"{row}\n| A new case. | It is lost. | Nothing. |").replace(
        "| Redis 7.0", "| Redis 6.2"
    )
    assert set(rows_of(f"{planted}\n- **A new rule.** Text.\n")) ^ set(SHOWN["unnoticed"]) == {
        "A new case", "A new rule", "Redis 7.0 restarts or fails over",
        "Redis 6.2 restarts or fails over",
    }  # fmt: skip
