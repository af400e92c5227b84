#!/usr/bin/env bash
# The command line against a real daemon: the basics of every group of verbs, the exit codes, what a refused start leaves.
#   cli_test.sh BUILD_DIR
set -euo pipefail
bin=$(readlink -f "$1")/bin
work=$(mktemp -d /tmp/cairn_cli.XXXXXX)
export CAIRN_SOCKET=$work/s
keeper=""
cleanup() {
  status=$?
  trap - EXIT
  set +e
  if [ -n "$keeper" ]; then
    kill -TERM "$keeper" 2>/dev/null
    for _ in $(seq 100); do kill -0 "$keeper" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$keeper" 2>/dev/null
  fi
  for dir in "$work"/m*; do mountpoint -q "$dir" 2>/dev/null && umount -l "$dir"; done
  [ "$status" -eq 0 ] || tail -n 30 "$work"/log* >&2
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
cairn() { timeout 60 "$bin/cairn" "$@"; }
json() { timeout 60 "$bin/cairn" --json "$@"; }
exits() {  # exits CODE COMMAND...
  local want=$1 code=0
  shift
  "$@" >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$want" ] || fail "exit code $code, not $want: $* : $(cat "$work/out")"
}
says() { grep -q -- "$1" "$work/out" || fail "no '$1' in: $(cat "$work/out")"; }
start() {
  timeout 300 "$bin/cairnd" --data "$work/data" --listen 127.0.0.1:0 >>"$work/log" 2>&1 & # CAIRN_SOCKET is for both
  keeper=$!
  for _ in $(seq 300); do
    kill -0 "$keeper" 2>/dev/null || fail "the daemon ended while starting"
    if cairn ping >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "the daemon was not ready in 30 s"
}
stop() {
  local code=0
  kill -TERM "$keeper"
  wait "$keeper" || code=$?
  keeper=""
  [ "$code" -eq 0 ] || fail "the daemon's exit code was $code"
}

# No daemon, wrong usage.
exits 2 cairn stats; says "$work/s"
exits 64 cairn nonsense; says "no verb nonsense: cairn has org, "
exits 64 cairn; says "verb is missing: cairn has org, "
exits 64 cairn env lst; says "no verb lst: cairn env has create, "
exits 64 cairn env list --nmae x; says "cairn env list takes no --nmae x (help: cairn env list --help)"
exits 64 cairn mount; says "ENV is required"
{ json env lst 2>/dev/null || true; } | jq -e '.error.code == "invalid_argument"' >/dev/null || fail "a wrong command line is not JSON"
exits 0 cairn env --help; says "--socket"
for number in x 10GB -1 18446744073709551616; do exits 64 cairn env create --quota-bytes "$number"; says "whole number"; done
[ "$(cairn --version) $("$bin/cairnd" --version)" = "cairn 0.1.0 cairnd 0.1.0" ] || fail "versions"
exits 64 timeout 20 "$bin/cairnd" --dta "$work/data"; says "takes no --dta"
exits 1 timeout 20 "$bin/cairnd" --data "$work/no/such" --listen 127.0.0.1:0; says "$work/no/such: No such file or directory"
exits 64 timeout 20 "$bin/cairnd" --data "$work/data" --listen 0.0.0.0:7070; says insecure-listen-anywhere
exits 64 timeout 20 "$bin/cairnd" --data "$work/data" --listen localhost:7070
[ ! -e "$work/data" ] || fail "a refused command line made the data directory"
exits 1 timeout 20 "$bin/cairnd" --data /etc --listen 127.0.0.1:0; says /etc

# Without --socket and CAIRN_SOCKET both meet in /run/cairn, which the daemon makes.
# shellcheck disable=SC2016
env -u CAIRN_SOCKET bin="$bin" work="$work" unshare -m bash -ec '
  mount -t tmpfs tmpfs /run
  "$bin/cairnd" --data "$work/data0" --listen 127.0.0.1:0 >"$work/log0" 2>&1 &
  for _ in $(seq 300); do kill -0 $! && "$bin/cairn" ping >/dev/null 2>&1 && break; sleep 0.1; done
  "$bin/cairn" ping >/dev/null
  [ "$(stat -c %a /run/cairn)" = 700 ]
  kill -TERM $!
  wait $!' || fail "the default socket"

start
exits 1 timeout 20 "$bin/cairnd" --data "$work/data" --socket "$work/s2" --listen 127.0.0.1:0; says "process"
others=$(find "$work/data" -perm /077)
[ -z "$others" ] || fail "others may read: $others"
[ "$(stat -c %a "$work/s")" = 600 ] || fail "the socket's mode is $(stat -c %a "$work/s")"

exits 4 cairn env list; says "no_organization"
org=$(json org create one | jq -er .id)
json key create --name k | jq -er '.secret | startswith("cairn_sk_")' >/dev/null
exits 64 cairn key create --expires-ms "$(date +%s)"; says "milliseconds since 1970"
exits 0 cairn key list; grep -q cairn_sk_ "$work/out" && fail "a list shows a secret"
env=$(json env create --name e --uid 1000 --gid 1000 | jq -er .id)
[ "$(json env list | jq -er '.data | length')" = 1 ] || fail "env list"
exits 3 cairn env show env_00000000000000000000000000000000
exits 3 cairn env show '../../etc/passwd'

# Mount, write, remount.
mkdir "$work/m1" "$work/m2"
cairn mount "$env" "$work/m1" >/dev/null
findmnt -no OPTIONS "$work/m1" | grep -q 'nosuid,nodev' || fail "mounted without nosuid,nodev"
[ "$(stat -c %u "$work/m1/workspace")" = 1000 ] || fail "owner of /workspace"
exits 4 cairn mount "$env" "$work/m2"; says "$work/m1: unmount it first"
second=$(json env create --name second | jq -er .id)
exits 4 cairn mount "$second" "$work/m1"; says "is mounted there already: unmount it first"
exits 4 cairn mount "$second" "$work/m1/workspace"; says "inside the mount at $work/m1:"
exits 3 cairn mount "$second" "$work/none"; says "at $work/none: No such file or directory: name an existing directory"
exits 64 cairn mount "$second" /etc/passwd; says "Not a directory: name an existing directory"
cairn env delete "$second" --confirm "$second" >/dev/null
echo hello >"$work/m1/workspace/a"
ln "$work/m1/workspace/a" "$work/m1/workspace/b"
(cd "$work/m1" && exits 4 cairn umount "$env")
exits 4 cairn env delete "$env" --confirm "$env"; says environment_mounted
(cd "$work" && cairn umount m1 >/dev/null)
exits 3 cairn umount "$work/m1"
cairn mount "$env" "$work/m2" --ro >/dev/null
[ "$(cat "$work/m2/workspace/b")" = hello ] || fail "the file did not survive"
touch "$work/m2/workspace/c" 2>/dev/null && fail "a read-only mount took a write"
cairn umount "$env" >/dev/null

# Import, export.
mkdir -p "$work/in/d"; echo x >"$work/in/d/f"; ln -s f "$work/in/d/l"
(cd "$work" && cairn env import "$env" in --path /workspace/in >/dev/null && cairn env export "$env" exported --path /workspace/in >/dev/null)
diff -r --no-dereference "$work/in" "$work/exported" || fail "import and export changed something"
exits 4 cairn env export "$env" "$work/exported"

# A turn and its Artifact.
session=$(json session create --metadata a=b | jq -er .id)
own=$(json session show "$session" | jq -er .env)
cairn mount "$own" "$work/m1" >/dev/null
head -c 100000 /dev/urandom >"$work/m1/workspace/outputs/data"
turn=$(json turn start "$session" | jq -er .id)
exits 4 cairn turn start "$session"; says "$turn"
[ "$(json session show "$session" | jq -er .status) $(json turn show "$turn" | jq -er .status)" = "in_progress in_progress" ] || fail "status"
artifact=$(json turn complete "$turn" | jq -er '.published[0].id')
exits 4 cairn turn fail "$turn"; says "ended: completed"
cairn artifact get "$artifact" -o "$work/data.out" >/dev/null
cmp "$work/data.out" "$work/m1/workspace/outputs/data" || fail "the download differs"
cairn artifact get "$artifact" -o - | cmp - "$work/data.out" || fail "the download to standard output differs"
exits 3 cairn artifact get art_00000000000000000000000000000000 -o "$work/none"
[ ! -e "$work/none" ] || fail "a failed download left a file"
exits 4 cairn env delete "$own" --confirm "$own"; says "$session"
exits 64 cairn env delete "$own" --confirm "$env"

# Snapshot, fork, pause, resume.
snapshot=$(json snapshot create "$own" --name s | jq -er .id)
fork=$(json fork "$snapshot" --name f | jq -er .id)
[ "$(json env show "$fork" | jq -er .lifetime)" = standalone ] || fail "lifetime of a fork"
head -c 1000000 /dev/urandom >"$work/memory"; truncate -s 16M "$work/memory"; echo state >"$work/vmstate"
exits 64 cairn pause "$own" --memory "$work/m1/workspace/outputs/data" --vmstate "$work/vmstate"; says FUSE
cairn pause "$own" --memory "$work/memory" --vmstate "$work/vmstate" >/dev/null
[ "$(json env show "$own" | jq -er .state)" = suspended ] || fail "state after the pause"
stop
start
cairn resume "$own" --memory "$work/memory2" --vmstate "$work/vmstate2" >/dev/null
cmp "$work/memory" "$work/memory2" && cmp "$work/vmstate" "$work/vmstate2" || fail "resume gave other bytes"
exits 4 cairn resume "$own"

# The end.
cairn session delete "$session" >/dev/null
exits 3 cairn session show "$session"
for e in "$env" "$fork"; do cairn env delete "$e" --confirm "$e" >/dev/null; done
cairn reap --dry-run >/dev/null
cairn reap >/dev/null
cairn gc --now >/dev/null
exits 0 cairn check
[ "$(json stats | jq -er .environments)" = 0 ] || fail "stats count what is deleted"
exits 64 cairn org delete "$org" --confirm x
cairn org delete "$org" --confirm "$org" >/dev/null
stop
[ ! -e "$work/s" ] || fail "the socket was left behind"
! findmnt -n | grep -q "$work" || fail "a mount was left behind"
echo "cli: all passed"
