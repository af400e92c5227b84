// What every head test needs: a directory, keys, a block store with an empty tree, and ways to
// reopen.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "store/base/file_system.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/temp_dir.h"
#include "volume/head.h"
#include "volume/layer.h"

namespace cairn {

inline Id128 TestId(uint8_t n) {
  Id128 id;
  id.bytes.fill(n);
  return id;
}

class HeadTest : public testing::Test {
 protected:
  HeadTest() : store_(keys_) {
    keys_.Add(realm_, TestRealmKeys(7));
    options_.volume = volume_;
    options_.realm = realm_;
    options_.dir = temp_.path() + "/volume";
    options_.base = TreeLayer(store_, EmptyTree(), 0);
    options_.journal_chunk_bytes = 256 << 10;
  }

  std::shared_ptr<const TreeReader> EmptyTree() { return Tree(TreeRoot{}); }
  std::shared_ptr<const TreeReader> Tree(const TreeRoot& root) {
    return std::make_shared<const TreeReader>(store_, cache_, realm_, root);
  }

  // Opens, or opens again as a new process would (the old head is destroyed without a word).
  Status Reopen() {
    head_.reset();
    head_ = CAIRN_TRY(Head::Open(*fs_, keys_, store_, options_));
    return {};
  }
  // Throws, so that no test goes on without a head.
  void MustReopen() {
    const Status opened = Reopen();
    if (!opened) throw std::runtime_error(opened.error().ToString());
  }

  std::string PathOf(uint64_t generation, const std::string& ending) {
    char name[64];
    snprintf(name, sizeof name, "/%016lx.%s", static_cast<unsigned long>(generation),
             ending.c_str());
    return options_.dir + name;
  }

  const Id128 realm_ = TestId(1);
  const Id128 volume_ = TestId(2);
  TempDir temp_;
  FileSystem* fs_ = &HostFileSystem();
  KeyRing keys_;
  MemBlockStore store_;
  NodeCache cache_;
  HeadOptions options_;
  std::unique_ptr<Head> head_;
};

inline std::string ReadFile(const Layer& layer, InodeNumber ino, uint64_t offset, uint64_t length) {
  std::string out(length, '?');
  const auto segments = layer.Extents(ino, offset, length);
  if (!segments) return "error: " + segments.error().ToString();
  uint64_t at = offset;
  for (const Segment& segment : *segments) {
    if (segment.offset != at) return "error: gap in the segments";
    const Status read =
        layer.Read(segment, 0, std::span(out).subspan(at - offset, segment.length_bytes));
    if (!read) return "error: " + read.error().ToString();
    at += segment.length_bytes;
  }
  if (at != offset + length) return "error: segments end early";
  return out;
}

inline std::string GetPayload(const Layer& layer, const std::string& key) {
  const auto entry = layer.Get(key);
  if (!entry) return "error: " + entry.error().ToString();
  return *entry ? (*entry)->payload : "(absent)";
}

}  // namespace cairn
