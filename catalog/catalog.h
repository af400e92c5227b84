// Catalog: control records in a transactional, ordered key-value store. Keys are plain text made of
// ids (never names or paths); values are encrypted (AES-256-GCM by the catalog key, the record's
// key as associated data), so that a value moved to another key, or a changed byte, is found.
//
// LocalCatalog keeps them in RocksDB (optimistic transactions, synced commits). One contract suite
// runs on every implementation.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

// A transaction: reads are remembered, and Commit fails with Aborted if any of them changed
// meanwhile. Not thread-safe.
class CatalogTransaction {
 public:
  virtual ~CatalogTransaction() = default;
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;
  virtual void Put(std::string_view key, std::string_view value) = 0;
  virtual void Delete(std::string_view key) = 0;
  // Keys in [begin, end) in order, with this transaction's own writes, until `visit` returns false.
  // The keys seen are remembered as read; a key that somebody else inserts into the range is not
  // (guard ranges by a record that every inserter writes).
  virtual Status Scan(
      std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view key, std::string_view value)>& visit) = 0;
  // Atomic and durable (synced) on return. Aborted: begin again. Exhausted, DataLoss, Unavailable
  // as they say.
  virtual Status Commit() = 0;
};

// Thread-safe.
class Catalog {
 public:
  virtual ~Catalog() = default;
  virtual std::unique_ptr<CatalogTransaction> Begin() = 0;
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;
  virtual Status Scan(
      std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view key, std::string_view value)>& visit) = 0;
  // As Scan, from the last key of [begin, end) to the first. (As it stands here it reads the whole
  // range first.)
  virtual Status ScanBackward(
      std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view key, std::string_view value)>& visit);
  // Reads and authenticates every record and every stored block; `damage` gets one line each.
  virtual Status Check(
      const std::function<void(std::string_view key, std::string_view what)>& damage) = 0;
  virtual Status Close() = 0;

  // Runs `body` in a transaction and commits it, again (up to 20 times) while the commit says
  // Aborted.
  Status Run(const std::function<Status(CatalogTransaction&)>& body);
};

}  // namespace cairn
