#!/usr/bin/env bash
# Spark sources this file before it starts a JVM, if SPARK_CONF_DIR names this folder.
# Before any logging, the JVM warns about two options that Spark passes. No setting prevents it, so a filter drops the lines.
exec 2> >(grep --line-buffered -vE \
  '^WARNING: (Using incubator modules: jdk\.incubator\.vector|package sun\.security\.action not in java\.base)$' >&2)
