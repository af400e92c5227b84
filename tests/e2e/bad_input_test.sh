#!/usr/bin/env bash
# Bad input of every kind: each is refused with its exit code and a message that says what and what to do, and the daemon serves on.
#   bad_input_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

none=00000000000000000000000000000000
wrong=0
refused() { # refused CODE PATTERN COMMAND...: all rows are tried before the test fails
  local code=$1 pattern=$2 got=0
  shift 2
  timeout 60 "$@" >"$work/out" 2>&1 || got=$?
  if [ "$got" != "$code" ] || ! grep -qE -- "$pattern" "$work/out"; then
    echo "exit code $got, wanted $code with /$pattern/: ${*: -5}: $(head -c 400 "$work/out")" >&2
    wrong=$((wrong + 1))
  fi
}
row() { refused "$1" "$2" "$build/bin/cairn" "${@:3}"; }
digests() { (cd "$1" && find . -type f -exec sha256sum {} + | sort && find . | sort); }

# Directories that are not ours, or of another time.
mkdir "$work/foreign" && echo mine >"$work/foreign/file"
digests "$work/foreign" >"$work/before"
refused 1 "$work/foreign.*(empty|not a|foreign)" "$build/bin/cairnd" --data "$work/foreign" --listen 127.0.0.1:0
digests "$work/foreign" | cmp - "$work/before" || fail "a foreign directory was touched"

refused 1 "/dev/null: Not a directory" "$build/bin/cairnd" --data /dev/null --listen 127.0.0.1:0
refused 1 "$work/no/data: No such file" "$build/bin/cairnd" --data "$work/no/data" --listen 127.0.0.1:0
refused 64 "space-floor.*range" "$build/bin/cairnd" --data "$work/none" --space-floor 2PiB --listen 127.0.0.1:0

# Limits that leave nothing to write to are said; the daemon serves what is there.
mkdir "$work/kept"
as "$work/kept" serve --space-floor 1PiB
grep -q "space_limits_exceed_disk" "$work/log" || fail "a floor above the disk's size is not said"
as "$work/kept" stop_served

serve
org=$(cairn org create one | jq -er .id)
row 2 "no daemon answers on /dev/null/x.*Start it" --socket /dev/null/x stats
refused 1 "process $(cairn ping | jq -er .pid)" "$build/bin/cairnd" --data "$data" --socket "$work/s2" --listen 127.0.0.1:0
env=$(cairn env create --name e | jq -er .id)
other_env=$(cairn env create --name other | jq -er .id)
session=$(cairn session create | jq -er .id)
created=$(cairn key create --name k)
key=$(jq -er .id <<<"$created") secret=$(jq -er .secret <<<"$created")
mkdir "$work/m2"
echo memory >"$work/memory"

# Ids.
for id in "env_$none" env_12 "../../etc/passwd" "$session"; do row 3 "no environment.*" env show "$id"; done
row 3 "sess_$none" session show "sess_$none"
row 3 "sess_$none" session delete "sess_$none"
row 3 "sess_$none" turn start "sess_$none"
row 3 "turn_$none" turn complete "turn_$none"
row 3 "snap_$none" snapshot show "snap_$none"
row 3 "env_$none" snapshot create "env_$none"
row 3 "snap_$none" fork "snap_$none"
row 3 "art_$none" artifact get "art_$none" -o "$work/none"
row 3 "op_$none" operation show "op_$none"
row 3 "key_$none" key revoke "key_$none"
row 3 "org_$none" --org "org_$none" env list
row 3 "env_$none" session create --env "env_$none"
row 3 "env_$none" mount "env_$none" "$mnt"

# Flags and names.
row 64 "subcommand|bogus" bogus
row 64 "ENV" mount
row 64 "bogus" env create --bogus
row 64 "uid" env create --uid 4294967295
row 64 "quota" env create --quota-bytes x
row 64 "name" env create --name "$(head -c 5000 /dev/zero | tr '\0' x)"
row 64 "name is empty" org create ""
row 64 "name|UTF-8" env create --name $'a\xff'
row 64 "NAME=VALUE" session create --metadata novalue
row 64 "confirm" env delete "$env"
row 64 "confirm" env delete "$env" --confirm "$other_env"
row 64 "confirm" org delete "$org" --confirm x

# With --json a wrong command line is answered in JSON too.
for line in "bogus" "env create --uid x" "mount"; do
  # shellcheck disable=SC2086
  { "$build/bin/cairn" --json $line 2>/dev/null || true; } | jq -e '.error.code == "invalid_argument" and .error.message != ""' >/dev/null ||
    fail "cairn --json $line prints no JSON"
done

# Mounts and paths.
row 3 "$work/missing" mount "$env" "$work/missing"
row 64 "director" mount "$env" "$work/memory"
for dir in / "$data" "$data/packs" "$(dirname "$data")"; do row 64 "cover the data directory" mount "$env" "$dir"; done
cairn mount "$env" "$mnt" >/dev/null
row 4 "mounted at $mnt" mount "$env" "$work/m2"
row 4 "$mnt" mount "$other_env" "$mnt"
(cd "$mnt" && row 4 "in use|busy" umount "$env" && [ "$wrong" = 0 ]) || wrong=$((wrong + 1))
row 4 "mounted" env delete "$env" --confirm "$env"
row 4 "mounted" env import "$env" "$work/m2"
cairn umount "$env" >/dev/null
row 0 "mounted +no" umount "$env" # what was asked for is so
row 3 "$work/missing" env import "$env" "$work/missing"
row 3 "missing" env export "$env" "$work/exported" --path /missing
mkdir "$work/full" && touch "$work/full/x"
row 4 "empty" env export "$env" "$work/full"
ln -s "$data" "$work/to_data"
for dir in "$data" "$data/packs" "$work/to_data" "$(dirname "$data")" /; do
  row 64 "data directory .* name another path" env import "$env" "$dir"
  row 64 "data directory .* name another path" base import "$dir" --name copy
done
for dir in "$data" "$data/new" "$work/to_data/new" "$(dirname "$data")"; do row 64 "data directory .* name another path" env export "$env" "$dir"; done
row 64 "data directory .* name another path" pause "$env" --memory "$data/cairn.format" --vmstate "$work/memory"
row 64 "data directory .* name another path" resume "$env" --memory "$data/memory"

# Pause and resume.
row 3 "memory.*$work/missing" pause "$env" --memory "$work/missing" --vmstate "$work/memory"
row 64 "regular file" pause "$env" --memory "$work/m2" --vmstate "$work/memory"
row 4 "not suspended" resume "$env"
row 64 "snapshot" resume "$env" --allow-older
older=$(cairn pause "$env" --memory "$work/memory" --vmstate "$work/memory" | jq -er .id)
row 4 "suspended" mount "$env" "$mnt"
row 3 "$work/missing" resume "$env" --memory "$work/missing/m" --vmstate "$work/v"
cairn resume "$env" --memory "$work/m" --vmstate "$work/v" >/dev/null
cairn pause "$env" --memory "$work/memory" --vmstate "$work/memory" >/dev/null
row 4 "allow" resume "$env" --snapshot "$older" --memory "$work/m" --vmstate "$work/v"
cairn resume "$env" --snapshot "$older" --allow-older --memory "$work/m" --vmstate "$work/v" >/dev/null
cmp "$work/m" "$work/memory" || fail "resume gave other bytes"

# HTTP: what is another organization's looks as if it were not there; a revoked key is no key.
url=http://$(grep -o 'http=[0-9.:]*' "$work/log" | tail -n 1 | cut -d= -f2)/v1/agents
get() { curl -sS --max-time 20 -o "$work/body" -w '%{http_code}' -H "Authorization: Bearer $secret" "$url$1"; }
two=$(cairn org create two | jq -er .id)
foreign_session=$(cairn --org "$two" session create | jq -er .id)
foreign_env=$(cairn --org "$two" env create --name f | jq -er .id)
expect "$(get "/sessions/$session")" 200 "own Session"
for path in "/sessions/@" "/sessions/@/artifacts" "/sessions/@/artifacts/art_$none/content"; do
  expect "$(get "${path/@/$foreign_session}")" 404 "GET $path of another organization"
  cp "$work/body" "$work/foreign_body"
  expect "$(get "${path/@/sess_$none}")" 404 "GET $path of nobody"
  cmp "$work/body" "$work/foreign_body" || fail "$path tells foreign from missing"
done
expect "$(get "/environments/$foreign_env")" 404 "GET an Environment of another organization"
cp "$work/body" "$work/foreign_body"
expect "$(get "/environments/env_$none")" 404 "GET no Environment"
cmp "$work/body" "$work/foreign_body" || fail "Environments tell foreign from missing"
row 3 "$foreign_env" --org "$org" env show "$foreign_env"
cairn --org "$org" key revoke "$key" >/dev/null
expect "$(get "/sessions/$session")" 401 "a revoked key"
secret=cairn_sk_wrong
expect "$(get "/sessions/$session")" 401 "a wrong key"
grep -q "Authorization: Bearer" "$work/body" || fail "401 does not say what to give: $(cat "$work/body")"

# Malformed bytes: lengths of 0, too long, cut off, random; half requests. Each connection ends, the others are served.
python3 - "$CAIRN_SOCKET" "${url#http://}" <<'PYTHON'
import os, random, socket, struct, sys
seed = int.from_bytes(os.urandom(4)); print("seed", seed); rng = random.Random(seed)
host, port = sys.argv[2].split("/")[0].split(":")
def send(family, address, data, close):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.connect(address)  # blocking: it waits where the backlog is full
        s.settimeout(20)
        try:
            s.sendall(data)
            if not close: s.shutdown(socket.SHUT_WR)
            while not close and s.recv(65536): pass
        except (BrokenPipeError, ConnectionResetError): pass
frames = [b"", b"\0", struct.pack("<I", 0), struct.pack("<I", 2**32 - 1) + b"x" * 100, struct.pack("<I", 16 << 20) + b"x",
          struct.pack("<I", 100) + b"\xff" * 100, struct.pack("<I", 6) + b"\x0a\xff\xff\xff\xff\x7f", b"GET / HTTP/1.1\r\n\r\n"]
frames += [struct.pack("<I", n) + rng.randbytes(n) for n in (1, 2, 10, 100, 1000, 100000) for _ in range(10)]
requests = [b"", b"\r\n", b"GET", b"\0" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /%00%ff HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /v1/agents/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"POST /v1/agents/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 100000 + b"\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"]
requests += [rng.randbytes(n) for n in (1, 10, 1000, 100000) for _ in range(10)]
for close in (True, False):
    for data in frames: send(socket.AF_UNIX, sys.argv[1], data, close)
    for data in requests: send(socket.AF_INET, (host, int(port)), data, close)
PYTHON
expect "$(get "/sessions/$session")" 401 "HTTP after malformed requests"
cairn --org "$org" env show "$env" >/dev/null || fail "the socket after malformed frames"
! grep -q "server_ended\|restart" "$work/log" || fail "the server ended: $(grep "server_ended\|restart" "$work/log")"

# A directory of a newer format: not a byte of it changes.
stop_cleanly
sed -i 's/^version: 1$/version: 2/; s/^min_reader: 1$/min_reader: 2/' "$data/cairn.format"
digests "$data" >"$work/before"
refused 1 "format 2" "$build/bin/cairnd" --data "$data" --socket "$work/s2" --listen 127.0.0.1:0
digests "$data" | cmp - "$work/before" || fail "a directory of a newer format was touched"
[ "$wrong" = 0 ] || fail "$wrong rows"
echo "ok"
