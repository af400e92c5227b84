#!/usr/bin/env bash
# clang's thread-safety analysis really refuses an unguarded access, and for that reason only.
# usage: thread_safety_test.sh SOURCE_DIR FILE
set -euo pipefail
compile() {
  clang++-19 -std=c++23 -fsyntax-only -Wall -Wextra -Werror -Wthread-safety -I "$1" "${@:3}" "$2" 2>&1
}
if ! compile "$1" "$2" -DLOCKED; then
  echo "FAIL: with the lock held it does not compile"
  exit 1
fi
if output=$(compile "$1" "$2"); then
  echo "FAIL: an unguarded access compiles"
  exit 1
fi
if ! grep -q "count_.*requires holding mutex 'mutex_'" <<<"$output"; then
  printf 'FAIL: refused for another reason:\n%s\n' "$output"
  exit 1
fi
echo "ok: the unguarded access is refused"
