"""Summarize an attempt in which no rank failed: its message, and warnings about its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefect_bt.attempts.failure_summary import format_clock_time
from prefect_bt.checkpoints.uncommitted import commit_command
from prefect_bt.ledger.records import NodeStatus, StopReason
from prefect_bt.text.durations import format_duration
from prefect_bt.text.number_ranges import format_ranks


def summarize_success(statuses: Sequence[NodeStatus], *, job_id: str) -> str:
    """Return how the ranks ended, and which checkpoints are not committed, as sentences."""
    head = format_success(statuses)
    left = [f"rank {s.rank}: {what}" for s in statuses for what in s.uncommitted]
    if not left:
        return f"{head} and their checkpoints are committed."
    kept = dict.fromkeys(s.kept_in for s in statuses if s.uncommitted and s.kept_in)
    where = "The files of a pod are deleted with it."
    if kept:
        where = f"Kept in {', '.join(kept)}; `{commit_command(job_id)} NAME` commits one as it is."
    return f"{head}. Not committed: {'; '.join(left)}. {where}"


def format_success(statuses: Sequence[NodeStatus]) -> str:
    """`All ranks exited with 0`; `Rank 0 exited with 0, rank 1 was stopped (inactive)`"""
    stopped = [s.rank for s in statuses if s.stop_reason is StopReason.STRAGGLER]
    if not stopped:
        return "All ranks exited with 0"
    done = format_ranks(s.rank for s in statuses if s.rank not in stopped)
    were = "were" if len(stopped) > 1 else "was"
    return f"{_capitalize(done)} exited with 0, {format_ranks(stopped)} {were} stopped (inactive)"


def list_warnings(statuses: Sequence[NodeStatus]) -> list[str]:
    """Return sentences about work that may be lost although the attempt succeeded."""
    return [*_warn_of_stragglers(statuses), *_warn_of_ended_processes(statuses)]


def _warn_of_stragglers(statuses: Sequence[NodeStatus]) -> Iterator[str]:
    ended = [
        s.ended_at
        for s in statuses
        if s.stop_reason is not StopReason.STRAGGLER and s.ended_at is not None
    ]
    for status in statuses:
        if status.stop_reason is not StopReason.STRAGGLER:
            continue
        waited = (status.ended_at or 0.0) - min(ended, default=0.0)
        late = f" {format_duration(max(0, round(waited)))} after another rank had exited with 0"
        since = format_clock_time(status.active_at or status.started_at)
        yield (
            f"Rank {status.rank} was stopped{late if ended else ''}: it had been inactive"
            f"{f' since {since}' if since else ''} (no log line, checkpoint or open connection, "
            "and less than 1 % of a core). If it still had work to do, give it more time with "
            "--straggler-patience."
        )


def _warn_of_ended_processes(statuses: Sequence[NodeStatus]) -> Iterator[str]:
    for status in statuses:
        count = len(status.ended_processes)
        if count:
            names = ", ".join(f"`{name}`" for name in dict.fromkeys(status.ended_processes) if name)
            many = f"{count} processes" if count > 1 else "a process"
            yield (
                f"Rank {status.rank} ended {many} that still ran in the background after the last "
                f"start command{f': {names}' if names else ''}. Start the training in the "
                "foreground (without `&` or nohup), or end the command with `wait`."
            )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
