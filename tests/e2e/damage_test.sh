#!/usr/bin/env bash
# One flipped bit in each kind of structure: check (or the refusal to open) names the structure and whom it hurts; a damaged block hurts its file alone
# and the daemon goes on.   damage_test.sh BUILD_DIR [SEED]
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
seed=${2:-$RANDOM}
echo "seed $seed"
RANDOM=$seed

flip() { # flip FILE OFFSET: changes one bit
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  printf "%b" "\\x$(printf '%02x' $((byte ^ (1 << (RANDOM % 8)))))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
fresh() { # the prepared directory again: a copy, so it is to be adopted
  kill_daemon
  rm -rf "$data"
  cp -a "$work/$1" "$data"
}
size() { stat -c %s "$1"; }
# frame KIND RAW_LENGTH: "pack offset" of the first frame of that kind (and, unless 0, that plaintext length), below $data/packs.
frame() {
  python3 - "$data/packs" "$1" "$2" <<'PY'
import glob, struct, sys
for path in sorted(glob.glob(sys.argv[1] + '/*/*.pack')):
    data, at = open(path, 'rb').read(), 160
    while data[at:at + 4] == b'CFRM':
        kind, raw, stored = data[at + 4], *struct.unpack_from('<II', data, at + 8)
        if kind == int(sys.argv[2]) and int(sys.argv[3]) in (0, raw):
            print(path, at)
            sys.exit()
        at += (64 + stored + 7) & ~7
sys.exit('no such frame')
PY
}
damage_of() { # runs check, which must find damage; prints it
  local code=0
  cairn check >"$work/check" 2>&1 || code=$?
  expect "$code" 5 "exit code of check ($(cat "$work/check"))"
  jq -c '.damages[]' "$work/check"
}
named() { # named TEXT PATTERN... : every pattern is in the text
  local text=$1 pattern
  shift
  for pattern in "$@"; do grep -qE "$pattern" <<<"$text" || fail "'$pattern' is not named in: $text"; done
}

# ---- a directory with everything in it ----
serve
org=$(cairn org create damage | jq -er .id)
session=$(cairn session create | jq -er .id)
env=$(cairn session show "$session" | jq -er .env)
cairn mount "$env" "$mnt" >/dev/null
w=$mnt/workspace
head -c 1000 /dev/urandom >"$w/small"
head -c 100000 /dev/urandom >"$w/medium"
head -c 5000000 /dev/urandom >"$w/large"
mkdir "$w/many" && for i in $(seq 300); do echo "$i" >"$w/many/$i"; done
head -c 50000 /dev/urandom >"$w/outputs/artifact"
turn=$(cairn turn start "$session" | jq -er .id)
cairn turn complete "$turn" >/dev/null
snapshot=$(cairn snapshot create "$env" | jq -er .id)
head -c 3000000 /dev/urandom >"$work/memory"
echo state >"$work/vmstate"
paused=$(cairn pause "$env" --memory "$work/memory" --vmstate "$work/vmstate" | jq -er .id)
stop_cleanly
cp -a "$data" "$work/sealed"
serve
cairn check >/dev/null || fail "the prepared directory is not clean"
cairn resume "$env" --memory "$work/out" --vmstate "$work/out_state" >/dev/null
cairn mount "$env" "$mnt" >/dev/null
for i in $(seq 50); do head -c 3000 /dev/urandom >"$w/unsealed$i"; done
sync "$w"/unsealed*
kill_daemon
cp -a "$data" "$work/unsealed"

# ---- pack frame of a file ----
fresh sealed
serve --adopt
cairn resume "$env" --memory "$work/out" --vmstate "$work/out_state" >/dev/null
cairn mount "$env" "$mnt" >/dev/null
sha256sum "$w/small" "$w/medium" "$w/large" "$w/outputs/artifact" >"$work/sums"
stop_cleanly
cp -a "$data" "$work/resumed"
fresh resumed
read -r path at < <(frame 1 65536) # a data block of a whole window: of the large file or of the medium one's first
[ -n "$path" ] || fail "no data frame found"
pack=$(basename "$path")
flip "$path" $((at + 64 + RANDOM % 60000))
serve --adopt
found=$(damage_of)
hurt=$(grep -oE "$env /workspace/(large|medium)" <<<"$found" | head -1 | sed 's:.*/::')
[ -n "$hurt" ] || fail "no file is named: $found"
named "$found" frame "$pack" "environment $env /workspace/$hurt" "snapshot $snapshot"
cairn mount "$env" "$mnt" >/dev/null
timeout 60 cat "$w/$hurt" >/dev/null 2>"$work/error" && fail "a damaged file reads"
grep -q "Input/output error" "$work/error" || fail "not EIO: $(cat "$work/error")"
grep -v "/$hurt" "$work/sums" | timeout 60 sha256sum -c --quiet || fail "a damaged block hurts another file"
grep -i "data_loss" "$work/log" | grep -q "${pack%.pack}" || fail "the log names no pack"
echo new >"$w/new" && sync "$w/new" || fail "the daemon does not go on"
echo "ok   frame: EIO to its file alone, owner named, daemon goes on"

# ---- pack header ----
fresh sealed
read -r path at < <(frame 1 65536)
flip "$path" $((16 + RANDOM % 16))
serve --adopt
named "$(damage_of)" "pack header" "$(basename "$path")" "organization $org"
echo "ok   pack header"

# ---- pack footer ----
fresh sealed
read -r path at < <(frame 1 65536)
flip "$path" $(($(size "$path") - 120))
serve --adopt
named "$(damage_of)" "pack footer" "$(basename "$path")" "organization $org"
echo "ok   pack footer"

# ---- a tree node ----
fresh sealed
read -r path at < <(frame 2 0)
flip "$path" $((at + 64 + RANDOM % 100))
serve --adopt
named "$(damage_of)" frame "$(basename "$path")" "$env|$snapshot|$turn|art_"
echo "ok   tree node"

# ---- index ----
fresh sealed
sst=$(find "$data/index" -name '*.sst' -printf '%s %p\n' | sort -rn | head -1 | cut -d' ' -f2)
if [ -n "$sst" ]; then
  flip "$sst" $((RANDOM % ($(size "$sst") / 2)))
  if start --adopt; then
    if cairn check >"$work/check" 2>&1; then
      grep -q "index" "$work/log" || fail "a damaged index is neither found nor rebuilt"
    else
      named "$(jq -c '.damages[]' "$work/check")" index
      cairn check --rebuild-index >"$work/check" 2>&1 || fail "the index is not healed from the packs: $(cat "$work/check")"
    fi
  else
    fail "a damaged index keeps the daemon from starting"
  fi
  cairn check >/dev/null || fail "check is not clean after the index was rebuilt"
  echo "ok   index"
else
  fail "no index table to damage"
fi

# ---- catalog ----
fresh sealed
sst=$(find "$data/catalog" -name '*.sst' -printf '%s %p\n' | sort -rn | head -1 | cut -d' ' -f2)
[ -n "$sst" ] || fail "no catalog table to damage"
flip "$sst" $((RANDOM % ($(size "$sst") / 2)))
: >"$work/log"
if start --adopt; then
  named "$(damage_of)" catalog "$(basename "$sst")|org_|env|session|snapshot"
else
  named "$(cat "$work/log")" "catalog" "$(basename "$sst")" "backup"
fi
echo "ok   catalog"

# ---- no catalog at all ----
for gone in catalog catalog/db catalog/db/CURRENT; do
  fresh sealed
  rm -rf "${data:?}/$gone"
  : >"$work/log"
  ! start --adopt || fail "a directory without $gone is served as if it were new"
  named "$(cat "$work/log")" "catalog" "backup"
done
echo "ok   no catalog"

# ---- journal ----
fresh unsealed
journal=$(find "$data/volumes" -name '*.journal' -printf '%s %T@ %p\n' | sort -k2 -rn | awk '$1 > 8192 {print $3; exit}')
flip "$journal" $((6000 + RANDOM % 20000))
serve --adopt
found=$(damage_of)
named "$found" journal "$(basename "$journal")" "environment $env"
code=0
cairn mount "$env" "$mnt" >"$work/refused" 2>&1 || code=$?
[ "$code" -ne 0 ] || fail "a volume with a damaged journal mounts"
named "$(cat "$work/refused")" "data_loss" "journal"
other=$(cairn env create --name other | jq -er .id)
cairn mount "$other" "$mnt" >/dev/null || fail "a damaged journal hurts another Environment"
echo "ok   journal: named, that volume refused, others go on"

# ---- files that a kill left behind and somebody removed ----
for what in removed "cut short"; do
  fresh unsealed
  journal=$(find "$data/volumes" -name '*.journal' -printf '%s %T@ %p\n' | sort -k2 -rn | awk '$1 > 8192 {print $3; exit}')
  if [ "$what" = removed ]; then rm "$journal"; else truncate -s 50000 "$journal"; fi
  serve --adopt
  named "$(damage_of)" journal "$(basename "$journal")" "environment $env"
  ! cairn mount "$env" "$mnt" >"$work/refused" 2>&1 || fail "a volume whose journal was $what mounts"
  named "$(cat "$work/refused")" "data_loss" "$(basename "$journal")"
  kill_daemon
  [ "$what" != removed ] || [ ! -e "$journal" ] || fail "the lost journal was begun again"

  fresh unsealed
  log=$(find "$data/catalog/db" -name '*.log' -size +0 | sort | tail -1)
  [ -n "$log" ] || fail "no catalog log after a kill"
  if [ "$what" = removed ]; then rm "$log"; else truncate -s 20 "$log"; fi
  : >"$work/log"
  ! start --adopt || fail "a catalog whose log was $what is served"
  named "$(cat "$work/log")" "data_loss" "acknowledged" "backup"
done
echo "ok   journal or catalog log removed or cut: noticed"
