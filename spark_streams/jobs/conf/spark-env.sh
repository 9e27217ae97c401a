#!/usr/bin/env bash
# Spark sources this before it starts a JVM when SPARK_CONF_DIR names this folder.
# The JVM itself, before any logging, warns of two options that Spark passes; no setting turns that off, so a filter drops them.
exec 2> >(grep --line-buffered -vE \
  '^WARNING: (Using incubator modules: jdk\.incubator\.vector|package sun\.security\.action not in java\.base)$' >&2)
