"""Which batch of which query a task of a stream belongs to: Spark tells the task in the properties of its job only."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext

from bookgate.ledger.errors import WriteException

# Spark's own names: StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY, and the run id as job group.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"
_PROPERTIES = (_QUERY_ID, _BATCH_ID, _JOB_GROUP)


class QueryOfTask(NamedTuple):
    """A query, its batch, and its run: what differs from one start of the query to the next."""

    query: str
    batch: int
    run: str


def query_of_task() -> QueryOfTask:
    """Of the task that calls it. Raises WriteException."""
    context = TaskContext.get()
    properties = {} if context is None else {name: context.getLocalProperty(name) for name in _PROPERTIES}
    query, batch = properties.get(_QUERY_ID), properties.get(_BATCH_ID)
    if query is None or batch is None:
        raise WriteException(f"Spark does not say which query this task belongs to ({_QUERY_ID}, {_BATCH_ID})")
    return QueryOfTask(query, int(batch), properties.get(_JOB_GROUP) or query)
