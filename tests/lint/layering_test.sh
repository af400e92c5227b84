#!/usr/bin/env bash
# shellcheck disable=SC2015
# cmake/layering.cmake passes the tree as it is and fails, naming file and line, for each rule broken once.
# Works on a copy; usage: layering_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

fresh_copy() {
  rm -rf "${copy:?}/tree"
  mkdir "$copy/tree"
  # Tracked files and those about to be; without git (an unpacked archive) everything but the build folder.
  if git -C "$source_dir" rev-parse --git-dir >"$copy/git" 2>&1; then
    git -C "$source_dir" ls-files -z --cached --others --exclude-standard |
      (cd "$source_dir" && xargs -0 -r ls -d 2>"$copy/deleted" || true) |
      tar -C "$source_dir" -T - -c | tar -C "$copy/tree" -x
  else
    tar -C "$source_dir" --exclude=./build -c . | tar -C "$copy/tree" -x
  fi
  cd "$copy/tree"
}

check() { cmake -D ROOT="$copy/tree" -P "$source_dir/cmake/layering.cmake" >"$copy/out" 2>&1; }

failures=0
expect_fault() {  # expect_fault NAME PATTERN: the check fails and prints a line that holds PATTERN
  if check; then
    echo "FAIL $1: the check passed"
    failures=$((failures + 1))
  elif ! grep -qF -- "$2" "$copy/out"; then
    echo "FAIL $1: no line says '$2':"
    cat "$copy/out"
    failures=$((failures + 1))
  else
    echo "ok   $1"
  fi
  fresh_copy
}

fresh_copy
if check; then
  echo "ok   the tree as it is"
else
  echo "FAIL the tree as it is:"
  cat "$copy/out"
  exit 1
fi

sed -i '3i #include "api/injected.h"' store/base/hex.cc
expect_fault "upward include" 'store/base/hex.cc:3: #include "api/injected.h": module store_base does not name api'

echo '#include "store/block_store.h"' >fuse/injected.h
expect_fault "include of a module that DEPENDS does not name" 'fuse/injected.h:1: #include "store/block_store.h": module fuse does not name store'

echo '#include "cmd/injected.h"' >catalog/injected.h
expect_fault "module includes cmd" 'catalog/injected.h:1: #include "cmd/injected.h": catalog may not include cmd'

echo '#include "tests/support/injected.h"' >volume/injected.h
expect_fault "module includes tests" 'volume/injected.h:1:'

printf '\n  #  include "store/injected_internal.h"\n' >volume/injected.h
expect_fault "another module's internal header" 'volume/injected.h:2: #include "store/injected_internal.h": only store and tests/store'

echo '#include "store/injected_internal.h"' >tests/volume/injected.h
expect_fault "another module's internal header in a test" 'tests/volume/injected.h:1:'

echo '#include "block_store.h"' >store/injected.h
expect_fault "include not from the root" 'store/injected.h:1: #include "block_store.h": a quoted include starts at the root'

echo 'int injected;' >volume/injected.cc
expect_fault "unlisted source" 'volume/injected.cc:1: no CMakeLists.txt lists this source'

echo 'int injected;' >tests/volume/injected_test.cc
echo '# injected_test.cc' >>tests/volume/CMakeLists.txt
expect_fault "test listed only in a comment" 'tests/volume/injected_test.cc:1: no CMakeLists.txt lists this source'

mkdir loose && echo '#pragma once' >loose/injected.h
expect_fault "file in no module" 'loose/injected.h:1: this file is in no module'

sed -i 's/^cairn_module(store_base/cairn_module(store_base DEPENDS store/' store/base/CMakeLists.txt
expect_fault "cycle" 'module store_base may not depend on store: it is not below it'

sed -i 's/DEPENDS /DEPENDS catalog /' fuse/CMakeLists.txt
expect_fault "what a module must not know" 'module fuse must not know catalog'

mkdir utils && echo 'cairn_module(utils SOURCES)' >utils/CMakeLists.txt
expect_fault "module outside the documented order" 'module utils is not in CAIRN_LAYERS'

if check; then
  echo "ok   the tree as it is, again"
else
  failures=$((failures + 1))
fi
echo "$failures failed"
[ "$failures" -eq 0 ]
