"""The files for images, compose and CI: what they name is there. (No Docker and no GitHub runs in a test.)"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_streams.cli import main

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# In the image below /app, or made by its RUN; else in a volume.
MADE = ("/app/data/flights.csv",)


def steps_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a job; none if it calls another workflow."""
    steps: list[dict[str, Any]] = job.get("steps", [])
    return steps


def parsed(name: str | Path) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_every_file_that_compose_names_is_in_the_clone() -> None:
    services = parsed("compose.yaml")["services"]
    ours = {name: one["command"] for name, one in services.items() if one.get("image") == "spark-streams:local"}
    assert set(ours) == {"master", "worker", "load", "etl"}
    for name in ("load", "etl"):
        program, *words = ours[name]
        assert program == "spark-submit"
        files = [word.removeprefix("--config=").removeprefix("--properties-file=") for word in words]
        named = [word.removeprefix("/app/") for word in files if word.startswith(("/app/conf/", "/app/jobs/"))]
        assert len(named) == 3
        assert all((ROOT / one).is_file() for one in named), named
        settings = [word.removeprefix("--set=").split("=", 1) for word in words if word.startswith("--set=")]
        sample = (CONF / f"{name}.toml").read_text(encoding="utf-8")
        for key, value in settings:
            table, _, key_in_it = key.partition(".")
            assert re.search(rf"(?ms)^\[{table}\].*?^{key_in_it} = ", sample), f"{name}.toml has no {key}"
            assert value.startswith("/data/") or value in MADE
    assert {one for service in services.values() for one in service.get("depends_on", [])} <= set(services)


def test_what_the_image_is_made_of_is_in_the_clone() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^COPY (.*)$", text, re.M) == [". ."]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for needed in ("constraints.txt", "pyproject.toml", "README.md", "LICENSE", "spark_streams", "jobs", "conf"):
        assert (ROOT / needed).exists()
        assert needed not in ignored
    assert all(made.rpartition("/")[0] in text for made in MADE)
    assert "'.[spark,console,monitor]'" in text


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_script_that_ci_runs_is_in_the_clone_and_runs(path: Path) -> None:
    steps = [step for job in parsed(path)["jobs"].values() for step in steps_of(job)]
    scripts = [shlex.split(step["run"])[0] for step in steps if re.match(r"(scripts|\.ci)/", step.get("run", ""))]
    assert scripts or path.stem == "release"
    for script in scripts:
        assert (ROOT / script).stat().st_mode & 0o100, script


def test_ci_runs_every_other_spark_that_there_are_tests_on() -> None:
    known = re.findall(r"^    (4\.\d)\) echo ", (ROOT / "scripts" / "_setup.sh").read_text(encoding="utf-8"), re.M)
    assert parsed(".github/workflows/ci.yml")["jobs"]["spark"]["strategy"]["matrix"]["spark"] == known


def test_a_release_is_published_without_a_password_from_its_tag_alone() -> None:
    release = parsed(".github/workflows/release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as a truth value
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == (
        ["build", "sbom", "push", "provenance"],
        {"id-token": "write"},
    )
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_ci_checks_with_the_types_of_spark() -> None:
    """`scripts/check` alone leaves them out in a fresh clone, so that it needs ruff and mypy only."""
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "for script in scripts/check 'scripts/check --spark' scripts/docs" in run
    said = subprocess.run([ROOT / "scripts" / "check", "--other"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "usage: scripts/check [--spark | --figures]\n")


def test_pre_commit_runs_the_check_of_the_clone() -> None:
    hooks = [hook for repo in parsed(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == ["scripts/check"]
    assert (ROOT / "scripts" / "check").stat().st_mode & 0o100


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_the_hash_of_a_commit(path: Path) -> None:
    """A tag can be moved by whoever takes over the action's repository."""
    uses = re.findall(r"uses: (\S+?)@(\S+)(?: # (\S+))?", path.read_text(encoding="utf-8"))
    assert uses
    for action, commit, version in uses:
        assert re.fullmatch("[0-9a-f]{40}", commit), f"{action}@{commit}"
        assert version.startswith("v"), action


def test_a_release_is_built_with_tools_whose_hashes_are_known() -> None:
    runs = [step.get("run", "") for step in parsed(".github/workflows/release.yml")["jobs"]["build"]["steps"]]
    assert [run for run in runs if "pip" in run.split()] == ["pip install --require-hashes -r .github/build-tools.txt"]
    assert not [run for run in runs if "pipx" in run]
    assert "python -m tools.build_package" in runs
    builder = (ROOT / "tools" / "build_package.py").read_text(encoding="utf-8")
    assert '"--no-isolation"' in builder, "isolation would get setuptools without a hash"
    lock = (ROOT / ".github" / "build-tools.txt").read_text(encoding="utf-8")
    wanted = (ROOT / ".github" / "build-tools.in").read_text(encoding="utf-8").split()
    for name in (re.split("[>=<]", one)[0] for one in wanted):
        assert re.search(rf"^{name}==\S+ \\\n    --hash=sha256:[0-9a-f]{{64}}", lock, re.M), name
    assert not re.search(r"://|--index|--find-links", re.sub(r"(?m)^#.*", "", lock))


def test_who_runs_in_the_image_owns_the_data_and_nothing_else() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"chown (.*?)\s*$", text, re.M) == ["spark /data"]
    assert "\nUSER spark\nVOLUME /data\nWORKDIR /home/spark\n" in text
    assert "chmod" not in text


def test_no_module_is_imported_from_a_folder_that_others_write_to() -> None:
    """Python puts the working directory, or the script's folder, first; the volume of the data is shared."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ENV .*\bPYTHONSAFEPATH=1\b", text, re.M)
    assert re.findall(r"^WORKDIR (.*)$", text, re.M)[-1] == "/home/spark"


def test_a_bill_of_materials_is_made_by_a_tool_whose_hash_is_known_and_is_on_the_release_s_page() -> None:
    jobs = parsed(".github/workflows/release.yml")["jobs"]
    runs = [step.get("run", "") for step in jobs["sbom"]["steps"]]
    assert "pip install --require-hashes -r .github/sbom-tools.txt" in runs
    (made,) = [run for run in runs if run.startswith("cyclonedx-py environment ")]
    assert " sbom-${{ matrix.extra }}.cdx.json " in made
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(jobs["sbom"]["strategy"]["matrix"]["extra"]) == set(extras) - {"dev", "docs"}
    [page] = [step["run"] for step in jobs["release"]["steps"] if "run" in step]
    assert page.startswith("gh release create ")
    assert page.endswith(" sbom-*.cdx.json")
    lock = (ROOT / ".github" / "sbom-tools.txt").read_text(encoding="utf-8")
    assert re.search(r"^cyclonedx-bom==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.M)
    assert not re.search(r"://|--index|--find-links", re.sub(r"(?m)^#.*", "", lock))


def test_wheel_source_package_and_image_have_provenance_before_anyone_can_get_the_package() -> None:
    jobs = parsed(".github/workflows/release.yml")["jobs"]
    attested = {
        name: step["with"]
        for name, job in jobs.items()
        for step in steps_of(job)
        if step.get("uses", "").startswith("actions/attest-build-provenance@")
    }
    assert attested == {
        "provenance": {"subject-path": "dist/*"},
        "push": {
            "subject-name": "ghcr.io/${{ github.repository }}",
            "subject-digest": "${{ steps.pushed.outputs.digest }}",
            "push-to-registry": True,
        },
    }
    for name in attested:
        assert {"id-token": "write", "attestations": "write"}.items() <= jobs[name]["permissions"].items()
        assert name in jobs["publish"]["needs"]


def test_the_digest_that_is_attested_is_that_of_the_image() -> None:
    """The step's own filter, on what Docker prints."""
    steps = parsed(".github/workflows/release.yml")["jobs"]["push"]["steps"]
    [command] = [step["run"] for step in steps if step.get("id") == "pushed"]
    described = f"digest=ghcr.io/spark-streams/spark-streams@sha256:{'0f' * 32}\n"
    _, _, rest = command.partition(" | ")
    ended = subprocess.run(
        ["bash", "-ec", rest.partition(" >>")[0]], input=described, capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"digest=sha256:{'0f' * 32}\n"


def test_known_vulnerabilities_are_looked_up_each_night_and_before_a_release() -> None:
    workflow = parsed(".github/workflows/advisories.yml")
    assert {"schedule", "workflow_call"} <= workflow[True].keys()
    release = parsed(".github/workflows/release.yml")["jobs"]
    assert release["advisories"]["uses"] == "./.github/workflows/advisories.yml"
    assert "advisories" in release["build"]["needs"]
    runs = "\n".join(step.get("run", "") for step in workflow["jobs"]["packages"]["steps"])
    assert "--requirement constraints.txt" in runs
    assert "for tools in .github/*-tools.txt; do pip-audit " in runs
    lock = (ROOT / ".github" / "audit-tools.txt").read_text(encoding="utf-8")
    assert re.search(r"^pip-audit==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.M)
    assert not re.search(r"://|--index|--find-links", re.sub(r"(?m)^#.*", "", lock))
    *_, scan = [step for step in workflow["jobs"]["image"]["steps"] if "trivy-action@" in step.get("uses", "")]
    assert (scan["with"]["image-ref"], scan["with"]["exit-code"]) == ("spark-streams:local", "1")
    base = re.search(r"^FROM python:(\d+\.\d+)\.", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert base is not None
    assert scan["with"]["skip-dirs"] == f"/usr/local/lib/python{base[1]}/site-packages/pyspark/jars"


def test_each_extra_s_licences_are_looked_at_before_its_bill_of_materials() -> None:
    runs = [step.get("run", "") for step in parsed(".github/workflows/release.yml")["jobs"]["sbom"]["steps"]]
    assert "installed/bin/python -m tools.licences --strict" in runs


# Commands of jobs that may write. They run no code of this repository and none of a package.
WRITERS = (
    "git fetch",
    "git -c credential.helper='!gh auth git-credential' push",
    "gh release create",
    'echo "$TOKEN" | docker login',
)
WRITERS += ("docker load", "docker push", "docker image inspect", "docker buildx imagetools create")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_that_runs_code_of_packages_may_write_nothing(path: Path) -> None:
    """And no checkout leaves the token in a file, which such code could read."""
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        for step in steps_of(job):
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name
            if "write" in job.get("permissions", {}).values():
                assert step.get("run", WRITERS[0]).startswith(WRITERS), name
                assert "setup-python" not in step.get("uses", ""), name


def test_nothing_of_a_release_begins_before_its_tests_have_passed_and_latest_moves_last() -> None:
    jobs = parsed(".github/workflows/release.yml")["jobs"]
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in parsed(".github/workflows/ci.yml")[True]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(before, direct))

    assert all("ci" in before(name) for name in set(jobs) - {"ci"})
    movers = {name for name, job in jobs.items() if ":latest" in str(job) or "docs.yml" in job.get("uses", "")}
    assert movers == {"latest", "site"}
    assert all(before(name) == set(jobs) - movers for name in movers)
    docs = parsed(".github/workflows/docs.yml")
    assert (docs[True]["push"], "workflow_call" in docs[True]) == ({"branches": ["main"]}, True)


def test_images_have_a_complete_version() -> None:
    """A tag such as `redis:8` is another server next month."""
    images = re.findall(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    images += [
        one["image"] for one in parsed("compose.yaml")["services"].values() if one["image"] != "spark-streams:local"
    ]
    assert len(images) == 2
    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in images), images


def test_ci_runs_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = [name.split()[-1] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert parsed(".github/workflows/ci.yml")["jobs"]["python"]["strategy"]["matrix"]["python"] == known


def test_dependabot_looks_where_something_is_pinned() -> None:
    updates = parsed(".github/dependabot.yml")["updates"]
    assert sorted(one["package-ecosystem"] for one in updates) == ["docker", "docker-compose", "github-actions", "pip"]
    folders = [name for one in updates for name in one.get("directories", [one.get("directory")])]
    assert all((ROOT / name.lstrip("/")).is_dir() for name in folders)


@pytest.mark.parametrize("name", ["bug", "data_loss", "feature"])
def test_an_issue_form_has_what_github_asks_of_one(name: str) -> None:
    form = parsed(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert all(form[key] for key in ("name", "description", "labels"))
    questions = [one for one in form["body"] if one["type"] != "markdown"]
    assert (
        len({one["id"] for one in questions})
        == len({one["attributes"]["label"] for one in questions})
        == len(questions)
    )
    assert any(one.get("validations") == {"required": True} for one in questions)


SCHEDULE = ROOT / "docs" / "guide" / "on-a-schedule.md"


def test_the_manifests_of_the_page_about_schedules() -> None:
    """They parse, name our commands, and allow one run at a time. KEDA's fields are those of scaler redis-streams."""
    text = SCHEDULE.read_text(encoding="utf-8")
    argo, keda = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)]
    assert argo["spec"]["concurrencyPolicy"] == "Forbid"
    [trigger] = keda["spec"]["triggers"]
    assert (trigger["type"], keda["spec"]["maxReplicaCount"]) == ("redis-streams", 1)
    known = {"address", "passwordFromEnv", "stream", "consumerGroup", "lagCount", "activationLagCount"}
    assert set(trigger["metadata"]) == known
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    [container] = keda["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
    written = re.findall(r"rstream (?:wait|run) \w[^\n&;>\"'`]*", text)
    commands = [" ".join(container["command"]), *written]
    assert len(commands) > 6
    for command in commands:
        name, *words = shlex.split(command)[1:]
        main.commands[name].make_context(name, words, resilient_parsing=False)
