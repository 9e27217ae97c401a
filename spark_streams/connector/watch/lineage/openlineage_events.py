"""Events of OpenLineage. Pure. They need the package openlineage-python: import this module only for lineage."""

from __future__ import annotations

from collections.abc import Iterable

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)

from spark_streams.base.version import RELEASED, __version__
from spark_streams.connector.watch.lineage.datasets import Dataset

_REPOSITORY = "https://github.com/spark-streams/spark-streams"
_REF = f"v{__version__}" if __version__ == RELEASED else "main"  # a version that is not released has no tag
PRODUCER = f"{_REPOSITORY}/tree/{_REF}"
_FACET = "RstreamConsumerGroupInputDatasetFacet"
SCHEMA_URL = f"{_REPOSITORY}/raw/{_REF}/spark_streams/connector/watch/lineage/{_FACET}.json#/$defs/{_FACET}"


@attr.define
class ConsumerGroupFacet(InputDatasetFacet):
    """The consumer group by which a query reads a stream."""

    group: str = attr.field(kw_only=True)
    consumer: str = attr.field(kw_only=True)

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA_URL


def run_event(
    kind: str, time: str, run: str, job: tuple[str, str], inputs: Iterable[Dataset], outputs: Iterable[Dataset],
    spark_version: str, error: str | None,
) -> RunEvent:  # fmt: skip
    """Return an event. kind: START, RUNNING, COMPLETE or FAIL; time: ISO-8601; job: namespace and name."""
    engine = processing_engine_run.ProcessingEngineRunFacet(spark_version, "spark", __version__, producer=PRODUCER)
    facets: dict[str, RunFacet] = {"processing_engine": engine}
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "PYTHON", producer=PRODUCER)
    return RunEvent(
        eventType=RunState[kind],
        eventTime=time,
        run=Run(run, facets),
        job=Job(*job, {"jobType": job_type_job.JobTypeJobFacet("STREAMING", "SPARK", "JOB", producer=PRODUCER)}),
        inputs=[_input(one) for one in inputs],
        outputs=[OutputDataset(one.namespace, one.name, facets=_schema(one)) for one in outputs],
        producer=PRODUCER,
    )


def _input(one: Dataset) -> InputDataset:
    facet = ConsumerGroupFacet(group=one.group, consumer=one.consumer, producer=PRODUCER)
    return InputDataset(one.namespace, one.name, {"rstream_consumerGroup": facet}, facets=_schema(one))


def _schema(one: Dataset) -> dict[str, DatasetFacet]:
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in one.columns]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)} if fields else {}
