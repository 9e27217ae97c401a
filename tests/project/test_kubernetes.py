"""The manifests of deploy/: fields that Kubernetes and the Spark operator know, options that the product knows, and
programs that start, answer their probes and stop as the manifests say. (No cluster runs in a test.)

The schemas are those of the packages kubernetes-validate and kubeflow-spark-api.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubeflow_spark_api import models

from spark_streams.base.given_text import duration
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.watch.progress import limit_of
from spark_streams.jobs.command import program
from spark_streams.jobs.job import ACCESS_SHAPE
from spark_streams.jobs.job_config import load
from spark_streams.jobs.spark_start import SHAPE as SPARK
from tools.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.37"
OPERATOR = {
    "SparkApplication": models.SparkV1beta2SparkApplication,
    "ScheduledSparkApplication": models.SparkV1beta2ScheduledSparkApplication,
}
# Values that the operator's definition allows; its Python models have only strings.
VALUES = {
    "type": {"Python"},
    "mode": {"cluster"},
    "concurrencyPolicy": {"Allow", "Forbid", "Replace"},
    "restartPolicy": {"Never", "OnFailure", "Always"},
    "secretType": {"Generic"},
}
MARGIN = 15  # seconds that a driver has to end Spark after `stop_within`

Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    """Return every manifest by kind and name."""
    read = [one for path in sorted(DEPLOY.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text("utf-8"))]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in read}


ALL = manifests()
APPLICATIONS = [name for name, one in ALL.items() if one["kind"] in OPERATOR]
DEPLOYMENTS = [name for name, one in ALL.items() if one["kind"] == "Deployment"]


def closed(schema: Any) -> Any:
    """Return a JSON schema that refuses fields which it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if isinstance(inner.get("properties"), dict) else inner


@functools.cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = closed(OPERATOR[kind].model_json_schema(by_alias=True))
    (number_or_name,) = [name for name in schema["$defs"] if name.endswith("IntOrString")]
    schema["$defs"][number_or_name] = {"type": ["integer", "string"]}  # an object, in the models
    return jsonschema.Draft202012Validator(schema)


def check(manifest: Manifest) -> None:
    """Raise ValidationError if the manifest is not one that the cluster takes as it is."""
    if manifest["kind"] not in OPERATOR:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    validator(manifest["kind"]).validate(manifest)
    assert manifest["apiVersion"] == "sparkoperator.k8s.io/v1beta2"


def spec_of(application: Manifest) -> Manifest:
    spec: Manifest = application["spec"]
    return spec.get("template", spec)


def nodes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a manifest with its value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ALL)
def test_a_manifest_has_only_fields_of_its_schema(name: str) -> None:
    check(ALL[name])


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ALL)
def test_a_misspelled_field_is_refused_at_every_depth(name: str) -> None:
    def holders(value: Any) -> Iterator[Manifest]:
        if isinstance(value, dict):
            # A map of names that the user chooses has no schema.
            free = {"labels", "matchLabels", "sparkConf", "data", "stringData", "requests", "limits"}
            free |= {"selector"} if name.startswith("Service/") else set()
            yield value
            for key, inner in value.items():
                if key not in free:
                    yield from holders(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from holders(inner)

    manifest = copy.deepcopy(ALL[name])
    for holder in list(holders(manifest)):
        holder["misspelled"] = "value"
        # Of the key and of the path to it, the error names at least the key.
        with pytest.raises(jsonschema.ValidationError, match="misspelled"):
            check(manifest)
        del holder["misspelled"]


@pytest.mark.parametrize("name", APPLICATIONS)
def test_values_are_those_that_the_operator_knows(name: str) -> None:
    spec = ALL[name]["spec"]
    for key, value in nodes(spec):
        if key in VALUES and isinstance(value, str) and (key != "type" or value not in VALUES["restartPolicy"]):
            assert value in VALUES[key] | {"RuntimeDefault"}, key
    policy = spec_of(ALL[name])["restartPolicy"]
    assert policy["type"] in VALUES["restartPolicy"]
    assert policy["type"] != "OnFailure" or {"onFailureRetries", "onSubmissionFailureRetries"} <= policy.keys()


def config_of(application: Manifest) -> tuple[str, Path]:
    """Return the job's name, and the path in the container of its configuration."""
    spec = spec_of(application)
    job = re.fullmatch(r"local:///app/jobs/(\w+)\.py", spec["mainApplicationFile"])
    (word,) = spec["arguments"]
    assert job is not None
    assert (ROOT / "jobs" / f"{job[1]}.py").is_file()
    return job[1], Path(word.removeprefix("--config="))


def toml_of(application: Manifest) -> str:
    """Return the configuration of a job, from the config map that the driver mounts at its path."""
    _, path = config_of(application)
    (mounted,) = [one for one in spec_of(application)["driver"]["configMaps"] if one["path"] == str(path.parent)]
    text: str = ALL[f"ConfigMap/{mounted['name']}"]["data"][path.name]
    return text


def check_config(application: Manifest, text: str, folder: Path) -> None:
    """Check a configuration as the job does before it asks the server. Raises RStreamError."""
    job, _ = config_of(application)
    file = folder / f"{job}.toml"
    file.write_text(text, encoding="utf-8")
    of_job = program(job)
    config = load(str(file), (), {**ACCESS_SHAPE, "spark": SPARK, **of_job.shape}, of_job.required)
    access = {key: config[key] for key in ACCESS_SHAPE if key in config}
    texts = {key: {name: str(value) for name, value in config.get(key, {}).items()} for key in ("source", *SINKS)}
    SourceOptions.parse({**access, **texts["source"]})
    for key in SINKS:
        if key in config:
            SinkOptions.parse({**access, **texts[key]})


SINKS = ("sink", "dead_letters")


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_configuration_has_only_keys_and_options_of_the_product(name: str, tmp_path: Path) -> None:
    text = toml_of(ALL[name])
    check_config(ALL[name], text, tmp_path)
    for table in set(re.findall(r"(?m)^\[(\w+)\]", text)) - {"columns"}:
        if table == "table":
            continue  # checked with the table, in the job
        misspelled = text.replace(f"[{table}]\n", f'[{table}]\nmisspelled = "value"\n', 1)
        assert misspelled != text
        with pytest.raises(RStreamError, match="misspelled"):
            check_config(ALL[name], misspelled, tmp_path)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_driver_has_time_to_finish_its_batch(name: str) -> None:
    within = tomllib.loads(toml_of(ALL[name]))["job"]["stop_within"]
    assert spec_of(ALL[name])["driver"]["terminationGracePeriodSeconds"] >= duration(within) / 1000 + MARGIN


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_driver_is_asked_whether_its_query_lives(name: str) -> None:
    """At the port of its metrics. If there is a template, only a label makes the operator's webhook add the rest."""
    job = tomllib.loads(toml_of(ALL[name]))["job"]
    driver = spec_of(ALL[name])["driver"]
    (container,) = driver["template"]["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    assert driver["labels"] == {"sparkoperator.k8s.io/mutated-by-spark-operator": "true"}
    assert container["ports"] == [{"name": "metrics", "containerPort": job["metrics_port"]}]
    assert job["metrics_host"] == "0.0.0.0"
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert limit_of(job["unhealthy_after"]) > 0


@pytest.mark.parametrize("name", APPLICATIONS)
def test_driver_and_executors_have_the_same_logins_and_storage(name: str) -> None:
    spec = spec_of(ALL[name])
    config = tomllib.loads(toml_of(ALL[name]))
    for role in (spec["driver"], spec["executor"]):
        (login,) = role["secrets"]
        assert config["passwordFile"] == f"{login['path']}/{'password'}"
        assert "password" in ALL[f"Secret/{login['name']}"]["stringData"]
        (data,) = role["volumeMounts"]
        stored = [config["job"]["checkpoint"], *([config["table"]["path"]] if "table" in config else [])]
        assert all(path.startswith(f"{data['mountPath']}/") for path in stored)
    (volume,) = spec["volumes"]
    claim = ALL[f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_image_spark_and_server_are_the_same_everywhere() -> None:
    found = [(key, value) for one in ALL.values() for key, value in nodes(one)]
    images = {value for key, value in found if key == "image"}
    assert len({image for image in images if "oauth2-proxy:v" not in image}) == 1  # which: test_release_state.py
    pinned = re.search(r"(?m)^pyspark==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"))
    assert pinned is not None
    assert {value for key, value in found if key == "sparkVersion"} == {pinned[1]}
    urls = {re.search(r'(?m)^url = "(.*)"$', toml_of(ALL[name]))[1] for name in APPLICATIONS}  # type: ignore[index]
    urls |= {one["value"] for _, one in found if isinstance(one, dict) and one.get("name") == "RSTREAM_URL"}
    assert urls == {"redis://redis:6379/0"}
    user = re.search(r"useradd .*--uid (\d+) spark", (ROOT / "Dockerfile").read_text("utf-8"))
    assert user is not None
    assert {value for key, value in found if key == "runAsUser"} == {int(user[1])}
    log4j = {value.partition("=/app/")[2] for key, value in found if key == "javaOptions"}
    assert all((ROOT / path).is_file() for path in log4j)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pod_is_locked_down_and_bounded(name: str) -> None:
    pod = ALL[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    labels = ALL[name]["spec"]["template"]["metadata"]["labels"]
    service = ALL[f"Service/{ALL[name]['metadata']['name']}"]["spec"]
    assert service["selector"] == labels
    ports = {port["name"] for container in pod["containers"] for port in container.get("ports", [])}
    assert {port["targetPort"] for port in service["ports"]} <= ports


def policy_of(labels: Manifest) -> Manifest:
    """Return the one NetworkPolicy of pods with these labels."""
    policies = [one["spec"] for one in ALL.values() if one["kind"] == "NetworkPolicy"]
    (policy,) = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels.items()]
    assert policy["policyTypes"] == ["Ingress"]
    return policy


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_server_is_reached_from_one_namespace_by_its_port_alone(name: str) -> None:
    template = ALL[name]["spec"]["template"]
    (rule,) = policy_of(template["metadata"]["labels"])["ingress"]
    (origin,) = rule["from"]
    assert list(origin) == ["namespaceSelector"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container.get("ports", [])}
    assert {one["port"] for one in rule["ports"]} == ports


def test_a_driver_s_pages_are_reached_by_no_pod_and_end_no_task() -> None:
    """Spark's operator and Spark itself give a driver and its executors the label spark-role."""
    (rule,) = policy_of({"spark-role": "driver"})["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"spark-role": "executor"}}}]
    ports = {one["port"] for one in rule["ports"]}
    assert ports == {7078, 7079}, "the ports of Spark on Kubernetes for the driver and its block manager; not 4040"
    (executors,) = policy_of({"spark-role": "executor"})["ingress"]
    assert all(list(one) == ["podSelector"] for one in executors["from"])
    for name in APPLICATIONS:
        settings = spec_of(ALL[name])["sparkConf"]
        assert settings["spark.ui.killEnabled"] == "false"
        assert not {"spark.driver.port", "spark.blockManager.port", "spark.driver.blockManager.port"} & settings.keys()


@pytest.mark.in_turn
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_program_answers_its_probes_and_stops_in_time(name: str, redis_server: Server, tmp_path: Path) -> None:
    """As the manifest starts it, with its files in a folder of the test and another port."""
    pod = ALL[name]["spec"]["template"]["spec"]
    (container,) = [one for one in pod["containers"] if one["image"].startswith("spark-streams:")]
    (tmp_path / "password").write_text("secret\n", encoding="utf-8")
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "rstream", "reset", "on", ">secret", "+@all", "~*", "&*")
    places = {
        "/etc/rstream/login/password": str(tmp_path / "password"),
        "redis://redis:6379/0": redis_server.url,
    }
    (port,) = [word.removeprefix("--port=") for word in container["args"] if word.startswith("--port=")]
    assert port in {str(one["containerPort"]) for one in container.get("ports", [])} or "--behind-proxy" in str(
        container
    )
    words = [word.replace(f"--port={port}", "--port=0") for word in container["args"]]
    assert words[0] == "rstream"
    environment = {one["name"]: places.get(one["value"], one["value"]) for one in container["env"]}
    process = subprocess.Popen(
        [sys.executable, "-c", "from spark_streams.cli import main; main()", *words[1:]],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        listens = re.search(r"http://(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)/", line)
        assert listens is not None, line
        for probe in (container["readinessProbe"], container["livenessProbe"]):
            if "httpGet" in probe:
                assert answer(int(listens[1]), probe["httpGet"]) == 200
            if "exec" in probe:
                words = [word.replace(f":{port}/", f":{listens[1]}/") for word in probe["exec"]["command"]]
                assert words[0] == "python"
                subprocess.run([sys.executable, *words[1:]], check=True)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(pod["terminationGracePeriodSeconds"]) == 0
        assert time.monotonic() - began < pod["terminationGracePeriodSeconds"] / 2
    finally:
        process.kill()
        process.wait()
        with redis_server.client() as client:
            client.execute_command("ACL", "DELUSER", "rstream")


def answer(port: int, probe: Manifest) -> int:
    """Return the status of a request as the kubelet sends it: Host is the pod's address if no header is set."""
    headers = {one["name"]: one["value"] for one in probe.get("httpHeaders", [])}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{probe['path']}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def run_entrypoint(folder: Path, *words: str, **environment: str) -> list[str]:
    """Return the command line that the entrypoint runs."""
    for name in ("spark-submit", "java", "rstream"):
        stub = folder / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n', encoding="utf-8")
        stub.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SPARK_CONF_DIR": "/opt/spark/conf", **environment}
    ran = subprocess.run(
        [DEPLOY / "entrypoint", *words], env=environment, capture_output=True, text=True, check=True, timeout=20
    )
    return ran.stdout.splitlines()


def test_the_entrypoint_starts_driver_executor_and_commands(tmp_path: Path) -> None:
    words = ("--properties-file", "/opt/spark/conf/spark.properties", "local:///app/jobs/etl.py", "--config=a b")
    driver = run_entrypoint(tmp_path, "driver", *words, SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    client = ["--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client"]
    assert driver == ["spark-submit", *client, *words]
    facts = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    given = {f"SPARK_{name}": f"of {name}" for name in (*facts, "EXECUTOR_POD_NAME")}
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn{number}=a b" for number in range(12)}
    executor = run_entrypoint(tmp_path, "executor", SPARK_HOME="/spark", SPARK_EXECUTOR_MEMORY="1g", **given, **options)
    assert executor[:13] == ["java", *[f"-Dn{number}=a b" for number in range(12)]]
    assert executor[13:17] == ["-Xms1g", "-Xmx1g", "-cp", "/opt/spark/conf:/spark/jars/*"]
    assert executor[17] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert executor[19::2] == [*given.values()]
    assert run_entrypoint(tmp_path, "rstream", "lag") == ["rstream", "lag"]
    assert run_entrypoint(tmp_path, "executor", SPARK_HOME="/spark", SPARK_EXECUTOR_MEMORY="1g", **given)[1] == "-Xms1g"


def test_the_image_runs_the_entrypoint_and_ends_orphans() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert '\nENTRYPOINT ["tini", "-s", "--", "/app/deploy/entrypoint"]\n' in text
    assert re.search(r"apt-get install .* tini\b", text)
    assert os.access(DEPLOY / "entrypoint", os.X_OK)
