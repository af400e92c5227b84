#!/usr/bin/env bash
# Nothing that a guest wrote is in any file of the data directory in plain text: contents, names, xattrs, link targets, memory, device
# state, Artifact paths; while unsealed, after kill -9, after sealing. And nothing of it is in the log. Then the organization is deleted, under
# load and with kill -9 at any moment: its wrapped keys are in no file and in no block of the device. The plain keys (master, organizations', the
# base realm's, the catalog's) are in no file of the directory at any time.   canary_test.sh BUILD_DIR [SEED]
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
seed=${2:-$RANDOM}
echo "seed $seed"
RANDOM=$seed

canaries=()
canary() { # a fresh one of 32 bytes, in $c
  c=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  canaries+=("$c")
}
search() {
  printf '%s\n' "${canaries[@]}" >"$work/canaries"
  sync -f "$data"
  if grep -rsqaFf "$work/canaries" "$data"; then fail "$1: canary found in $(grep -rslaFf "$work/canaries" "$data" | head -3)"; fi
  if grep -qaFf "$work/canaries" "$work/log"; then fail "$1: canary found in the log"; fi
}

serve
canary && cairn org create "$c" >/dev/null
session=$(cairn session create | jq -er .id)
env=$(cairn session show "$session" | jq -er .env)
cairn mount "$env" "$mnt" >/dev/null
w=$mnt/workspace
canary && { printf '%s' "$c" && head -c 992 /dev/zero; } >"$w/small"
canary && { head -c 60000 /dev/zero && printf '%s' "$c" && head -c 40000 /dev/zero; } >"$w/large"
canary && echo x >"$w/$c"
canary && setfattr -n user.canary -v "$c" "$w/small"
canary && ln -s "/$c/target" "$w/link"
canary && mkdir "$w/outputs/dir" && echo published >"$w/outputs/dir/$c"
canary && echo "$c" >"$w/outputs/content"
sync "$w/small" "$w/large" "$w/outputs/content" "$w" "$w/outputs/dir"
search "unsealed"
# The same search does find one in the middle of a file of the deepest folder there is.
folder=$(find "$data/volumes" -mindepth 1 -type d | head -1)
{ head -c 100000 /dev/urandom && printf '%s' "${canaries[1]}" && head -c 100000 /dev/urandom; } >"$folder/planted"
if (search "planted") >"$work/search" 2>&1; then fail "the search finds nothing at all"; fi
grep -q "planted: canary found in $folder/planted" "$work/search" || fail "not what was planted: $(cat "$work/search")"
rm "$folder/planted"
kill_daemon
search "after kill -9"
serve
cairn mount "$env" "$mnt" >/dev/null
expect "$(getfattr --only-values -n user.canary "$w/small" 2>/dev/null)" "${canaries[4]}" "xattr after kill -9"
turn=$(cairn turn start "$session" | jq -er .id)
expect "$(cairn turn complete "$turn" | jq -er .artifact_count)" 2 "published files"
canary && { head -c 1000000 /dev/zero && printf '%s' "$c" && head -c 4000000 /dev/zero; } >"$work/memory"
canary && printf '%s' "$c" >"$work/vmstate"
cairn pause "$env" --memory "$work/memory" --vmstate "$work/vmstate" >/dev/null
search "published and paused"
stop_cleanly
search "sealed and stopped"
echo "ok: ${#canaries[@]} canaries, none found in $(find "$data" -type f | wc -l) files"

# ---- deletion: on a device of its own, so that it can be searched block by block ----
truncate -s 400M "$work/image"
mkfs.ext4 -q -m 0 "$work/image"
mkdir "$work/disk"
mount -o loop "$work/image" "$work/disk"
data=$work/disk/data
: >"$work/log"
limits+=(--master-key "$work/master") # elsewhere, as OPERATIONS.md asks for
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/master")
cp "$work/master" "$work/plain"
echo >>"$work/plain"
# unwrap FILE...: the keys that key files hold, unwrapped by the master key, in hex (docs/formats/keys.md). A tag that does not verify ends it.
unwrap() {
  python3 - "$work/master" "$@" <<'PY'
import ctypes, os, struct, sys
crypto = ctypes.CDLL('libcrypto.so.3')
for name in ('EVP_CIPHER_CTX_new', 'EVP_aes_256_gcm'): getattr(crypto, name).restype = ctypes.c_void_p
master = bytes.fromhex(open(sys.argv[1]).read())
def opened(wrapped, associated):
    ctx, size, out = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new()), ctypes.c_int(), ctypes.create_string_buffer(64)
    ok = crypto.EVP_DecryptInit_ex(ctx, ctypes.c_void_p(crypto.EVP_aes_256_gcm()), None, master, wrapped[:12])
    ok &= crypto.EVP_DecryptUpdate(ctx, None, ctypes.byref(size), associated, len(associated))
    ok &= crypto.EVP_DecryptUpdate(ctx, out, ctypes.byref(size), wrapped[12:44], 32)
    ok &= crypto.EVP_CIPHER_CTX_ctrl(ctx, 0x11, 16, wrapped[44:60])  # EVP_CTRL_AEAD_SET_TAG
    rest = ctypes.create_string_buffer(16)
    ok &= crypto.EVP_DecryptFinal_ex(ctx, rest, ctypes.byref(size)) > 0
    if not ok: sys.exit('a wrapped key does not open')
    return out.raw[:32]
for path in sys.argv[2:]:
    data = open(path, 'rb').read()
    for slot in (data[:8192], data[8192:]):
        kind, count = struct.unpack_from('<HI', slot, 10)
        if slot[:8] != b'CAIRNKY\n' or kind == 3: continue
        realm = slot[24:40]
        keys = [] if kind == 2 else [(0, slot[56:116])]
        keys += [(struct.unpack_from('<I', slot, 116 + 64 * i)[0], slot[120 + 64 * i:180 + 64 * i]) for i in range(count)]
        for id, wrapped in keys:
            print(opened(wrapped, b'cairn key' + struct.pack('<H', kind) + realm + struct.pack('<I', id)).hex())
PY
}
# no_plain_key WHAT: none of $work/plain in any file of the directory or in the log: raw (either half), in hex or in base64.
no_plain_key() {
  sync -f "$data"
  python3 - "$work/plain" "$data" "$work/log" <<'PY' >"$work/found" || fail "$1: a plain key in $(head -3 "$work/found")"
import base64, os, sys
patterns = []
for line in set(open(sys.argv[1]).read().split()):
    key = bytes.fromhex(line)
    patterns += [key[:16], key[16:], line.encode(), line.upper().encode(), base64.b64encode(key).rstrip(b'='), base64.urlsafe_b64encode(key).rstrip(b'=')]
paths = [os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[2]) for name in names] + [sys.argv[3]]
found = 0
for path in paths:
    try:
        data = open(path, 'rb').read()
    except FileNotFoundError:
        continue  # removed meanwhile
    if any(pattern in data for pattern in patterns): print(path); found = 1
sys.exit(found)
PY
}
# wrapped FILE: the wrapped keys that a key file holds (docs/formats/keys.md), in hex.
wrapped() {
  python3 - "$1" <<'PY'
import struct, sys
data = open(sys.argv[1], 'rb').read()
for slot in (data[:8192], data[8192:]):
    if slot[:8] == b'CAIRNKY\n' and struct.unpack_from('<H', slot, 10)[0] == 1:
        print(slot[56:116].hex())
        for i in range(struct.unpack_from('<I', slot, 12)[0]):
            print(slot[120 + 64 * i:180 + 64 * i].hex())
PY
}
# on_device LIST: how many of the keys listed in hex have a quarter somewhere in the image.
on_device() {
  python3 - "$work/image" "$1" <<'PY'
import mmap, sys
with open(sys.argv[1], 'rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as image:
    keys = [bytes.fromhex(line) for line in open(sys.argv[2])]
    print(sum(any(image.find(key[i:i + 15]) >= 0 for i in range(0, 60, 15)) for key in keys))
PY
}
settle() { # everything to the device
  sync -f "$work/disk"
  echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}
writer() { # until the mount goes
  local i
  for i in $(seq 1 100000); do
    { head -c 30000 /dev/urandom >"$mnt/workspace/$((i % 100))"; } 2>/dev/null || return 0
    sync "$mnt/workspace/$((i % 100))" 2>/dev/null || return 0
  done
}
serve
cairn base import /usr/include/linux --name headers >/dev/null
kept=$(cairn org create kept | jq -er .id)
kept_env=$(cairn --org "$kept" env create --base headers | jq -er .id)
unwrap "$data"/keys/*.key >>"$work/plain"
expect "$(sort -u "$work/plain" | wc -l)" 6 "the master key, the catalog's, and two of the base realm and of each organization"
n=0
for form in "bytes.fromhex(k)" "k.encode()" "__import__('base64').b64encode(bytes.fromhex(k))"; do # the search finds one that is there
  n=$((n + 2))
  python3 -c "import os, sys; k = sys.argv[1]; sys.stdout.buffer.write(os.urandom(5000) + $form + os.urandom(5000))" \
    "$(sort -u "$work/plain" | sed -n "${n}p")" >"$data/packs/planted"
  if (no_plain_key "planted") >"$work/search" 2>&1; then fail "a plain key is not found as $form"; fi
  grep -q "planted: a plain key in $data/packs/planted" "$work/search" || fail "not what was planted: $(cat "$work/search")"
done
rm "$data/packs/planted"
no_plain_key "two realms"
mkdir "$work/kept"
cairn --org "$kept" mount "$kept_env" "$work/kept" >/dev/null
echo stays >"$work/kept/workspace/file" && sync "$work/kept/workspace/file"
for round in 1 2 3 4; do
  canary
  org=$(cairn org create "doomed $c" | jq -er .id)
  key_file=$(find "$data/keys" -name '*.key' -newer "$work/log" -printf '%C@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
  wrapped "$key_file" >"$work/wrapped"
  cairn org rotate-key "$org" >/dev/null
  wrapped "$key_file" >>"$work/wrapped"
  expect "$(wc -l <"$work/wrapped")" 5 "wrapped keys"
  unwrap "$key_file" >>"$work/plain"
  realm=$(basename "$key_file" .key)
  env=$(cairn --org "$org" env create | jq -er .id)
  cairn --org "$org" mount "$env" "$mnt" >/dev/null
  canary && echo "$c" >"$mnt/workspace/x" && sync "$mnt/workspace/x"
  canary && echo "$c" >"$mnt/workspace/$c" && sync "$mnt/workspace/$c"
  cairn --org "$org" snapshot create "$env" >/dev/null
  volume=$(find "$data/volumes" -mindepth 1 -maxdepth 1 -newer "$key_file" -printf '%C@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
  settle
  [ "$(on_device "$work/wrapped")" -ge 3 ] || fail "the search finds no key that is there"
  writer &
  writing=$!
  sleep 0.3
  search "round $round, under load"
  no_plain_key "round $round, under load"
  if [ "$round" -eq 1 ]; then
    cairn org delete "$org" --confirm "$org" >"$work/out" 2>&1 && fail "an organization with a mount is deleted unasked"
    cairn org delete "$org" --confirm "$org" --force >/dev/null
  else
    cairn org delete "$org" --confirm "$org" --force >/dev/null 2>&1 &
    sleep "0.0$((RANDOM % 10))"
    kill_daemon
    umount -l "$work/kept" 2>/dev/null || true
    wait || true
    search "round $round, killed while it is deleted"
    no_plain_key "round $round, killed while it is deleted"
    serve
    if cairn org show "$org" >/dev/null 2>&1; then # not begun when the kill came
      cairn org delete "$org" --confirm "$org" >/dev/null
    fi
    cairn --org "$kept" mount "$kept_env" "$work/kept" >/dev/null
  fi
  wait "$writing" 2>/dev/null || true
  umount -l "$mnt" 2>/dev/null || true
  cairn org show "$org" >/dev/null 2>&1 && fail "round $round: the organization is there"
  for gone in "$key_file" "$volume" "$data/packs/$realm"; do [ ! -e "$gone" ] || fail "round $round: $gone is left"; done
  expect "$(cat "$work/kept/workspace/file")" stays "the other organization's file"
  search "round $round, deleted"
  no_plain_key "round $round, deleted"
  cmp /usr/include/linux/fs.h "$work/kept/fs.h" || fail "round $round: a file of the base image"
  settle
  expect "$(on_device "$work/wrapped")" 0 "round $round: wrapped keys on the device"
done
cairn check >/dev/null || fail "check is not clean"
umount "$work/kept"
cairn key rotate-master >/dev/null
{ cat "$work/master" && echo; } >>"$work/plain"
no_plain_key "after the rotation of the master key"
stop_cleanly
settle
expect "$(on_device "$work/wrapped")" 0 "wrapped keys on the device after a stop"
no_plain_key "after a stop"
echo "ok: $(sort -u "$work/plain" | grep -c .) plain keys, in no file"
echo "ok: no wrapped key of a deleted organization in $(stat -c %s "$work/image") bytes of device"
