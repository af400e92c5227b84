# Sourced by end-to-end tests: one daemon in a temporary directory, found and ended by pid, nothing left behind.
#   build, work, data, mnt; serve; stop_cleanly; stop_served; kill_daemon; cairn ARGS...; expect GOT WANTED WHAT; fail TEXT
# shellcheck shell=bash disable=SC2034  # work, data, mnt are for the sourcing test
set -Eeuo pipefail
build=$(readlink -f "$1")
work=$(readlink -f "$(mktemp -d "${TMPDIR:-/tmp}/cairn-e2e.XXXXXX")") # as mounts and messages name it
data=$work/data
mnt=$work/mnt
mkdir "$mnt"
limits=(--space-reserve 64MiB) # by the size of the host's disk it would be gigabytes for greps and copies of the directory
export CAIRN_SOCKET=$work/socket
# Every process started from here carries it: that is how all of them are found, whoever their parent is by then.
export CAIRN_E2E_TEST=$work

cairn() { timeout 60 "$build/bin/cairn" --json "$@"; }
fail() {
  echo "FAIL: $*" >&2
  if [ -s "$work/log" ]; then tail -n 20 "$work/log" | cut -c1-300 >&2; fi
  exit 1
}
expect() { [ "$1" = "$2" ] || fail "$3: expected '$2', got '$1'"; }
daemon_pids() {
  local process
  find /proc -mindepth 2 -maxdepth 2 -name exe -lname "$build/bin/cairn*" -printf '%h\n' 2>/dev/null |
    while read -r process; do
      if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "CAIRN_E2E_TEST=$work"; then echo "${process#/proc/}"; fi
    done || true # a process may end while it is looked at
}
gone() { # waits until no process of the daemon is left
  local try
  for try in $(seq 600); do
    [ -n "$(daemon_pids)" ] || return 0
    sleep 0.05
  done
  return 1
}
start() { # starts it and returns when it serves (0) or has ended (1)
  "$build/bin/cairnd" --data "$data" --socket "$CAIRN_SOCKET" --listen 127.0.0.1:0 "${limits[@]}" "$@" >>"$work/log" 2>&1 &
  local try pid=$!
  for try in $(seq 300); do
    if cairn ping >/dev/null 2>&1; then return 0; fi
    kill -0 "$pid" 2>/dev/null || return 1
    sleep 0.1
  done
  return 1
}
serve() { start "$@" || fail "the daemon does not serve"; }
keeper_of() { awk '/^PPid:/ {print $2}' "/proc/$1/status"; }
stop_cleanly() {
  kill -TERM "$(keeper_of "$(cairn ping | jq -r .pid)")"
  gone || fail "the daemon does not stop on SIGTERM"
}
stop_served() { # the one on this socket, while others go on
  local pid keeper
  pid=$(cairn ping | jq -r .pid)
  keeper=$(keeper_of "$pid")
  kill -TERM "$keeper"
  for _ in $(seq 600); do
    kill -0 "$pid" 2>/dev/null || kill -0 "$keeper" 2>/dev/null || return 0
    sleep 0.05
  done
  fail "the daemon does not stop on SIGTERM"
}
kill_daemon() {
  local pids pid killed=
  for _ in $(seq 100); do
    pids=$(daemon_pids)
    [ -n "$pids" ] || break
    killed="$killed $pids"
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    sleep 0.05
  done
  # A process that ends has no program any more before its sockets are closed, and its first thread may end before the others.
  for pid in $killed; do
    for _ in $(seq 600); do
      grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/task"/*/status || break
      sleep 0.05
    done
  done
  umount -l "$mnt" 2>/dev/null || true
}
as() { # as DATA COMMAND...: with another data directory and socket
  (
    data=$1
    CAIRN_SOCKET=$work/socket.$(basename "$1")
    shift
    "$@"
  )
}
restored() { # restored DATA LIST: every file of the list is in the Environment that DATA has, byte for byte; check is clean
  local dir=$1 list=$2
  rm -rf "$work/out"
  as "$dir" cairn env export "$env" "$work/out" >/dev/null
  (cd "$work/out/workspace" && sha256sum -c --quiet "$list") || fail "$dir: a file that was fsynced before the backup is gone or changed"
  as "$dir" cairn check >/dev/null || fail "$dir: check is not clean"
}
refused_as() { # refused_as DATA PATTERN ARGS...
  local dir=$1 pattern=$2
  shift 2
  : >"$work/log"
  if as "$dir" start "$@"; then fail "the daemon starts on $dir"; fi
  grep -qE "$pattern" "$work/log" || fail "'$pattern' is not said of $dir"
}
writer() { # writer FIRST: until the mount goes, files of random bytes FIRST, FIRST+1...; a digest is noted in $work/durable once fsync returned
  local i
  for i in $(seq "$1" 100000); do
    head -c $((RANDOM % 200000 + 1)) /dev/urandom >"$work/part" 2>/dev/null || return 0
    cp "$work/part" "$mnt/workspace/$i" 2>/dev/null || return 0
    sync "$mnt/workspace/$i" 2>/dev/null || return 0
    echo "$(sha256sum <"$work/part" | cut -d' ' -f1)  $i" >>"$work/durable"
  done
}
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local status=$?
  trap - ERR
  set +e
  # shellcheck disable=SC2086  # what a test keeps going in the background
  [ -z "${loops:-}" ] || kill -KILL $loops 2>/dev/null
  kill_daemon
  for dir in $(awk -v a="$work/" 'index($2 "/", a) == 1 {print $2}' /proc/self/mounts | tac); do umount -l "$dir"; done
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
trap cleanup EXIT
trap 'exit 130' INT TERM
