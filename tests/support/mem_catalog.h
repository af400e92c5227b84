// A Catalog in memory for unit tests: transactions read at the state they began with and abort when
// what they read has changed.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "catalog/catalog.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe.
class MemCatalog final : public Catalog {
 public:
  std::unique_ptr<CatalogTransaction> Begin() override {
    MutexLock lock(mutex_);
    return std::make_unique<Transaction>(*this, records_);
  }
  Result<std::optional<std::string>> Get(std::string_view key) override {
    MutexLock lock(mutex_);
    const auto found = records_.find(std::string(key));
    if (found == records_.end()) return std::nullopt;
    return found->second.value;
  }
  Status Scan(std::string_view begin, std::string_view end,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    Records copy;
    {
      MutexLock lock(mutex_);
      copy = records_;
    }
    for (auto it = copy.lower_bound(std::string(begin)); it != copy.end() && it->first < end;
         ++it) {
      if (!visit(it->first, it->second.value)) break;
    }
    return {};
  }
  Status Check(const std::function<void(std::string_view, std::string_view)>&) override {
    return {};
  }
  Status Close() override { return {}; }

 private:
  struct Versioned {
    std::string value;
    uint64_t version = 0;
  };
  using Records = std::map<std::string, Versioned>;

  class Transaction final : public CatalogTransaction {
   public:
    Transaction(MemCatalog& catalog, Records seen) : catalog_(catalog), seen_(std::move(seen)) {}
    Result<std::optional<std::string>> Get(std::string_view key) override {
      const std::string k(key);
      const auto own = writes_.find(k);
      if (own != writes_.end()) return own->second;
      read_.insert(k);
      const auto found = seen_.find(k);
      if (found == seen_.end()) return std::nullopt;
      return found->second.value;
    }
    void Put(std::string_view key, std::string_view value) override {
      writes_[std::string(key)] = std::string(value);
    }
    void Delete(std::string_view key) override { writes_[std::string(key)] = std::nullopt; }
    Status Scan(std::string_view begin, std::string_view end,
                const std::function<bool(std::string_view, std::string_view)>& visit) override {
      std::map<std::string, std::string> merged;
      for (auto it = seen_.lower_bound(std::string(begin)); it != seen_.end() && it->first < end;
           ++it) {
        merged[it->first] = it->second.value;
      }
      for (const auto& [key, value] : writes_) {
        if (key < begin || key >= end) continue;
        if (value) {
          merged[key] = *value;
        } else {
          merged.erase(key);
        }
      }
      for (const auto& [key, value] : merged) {
        read_.insert(key);
        if (!visit(key, value)) break;
      }
      return {};
    }
    Status Commit() override {
      MutexLock lock(catalog_.mutex_);
      if (writes_.empty()) return {};
      for (const std::string& key : read_) {
        if (VersionOf(catalog_.records_, key) != VersionOf(seen_, key))
          return Err(ErrorCode::kAborted);
      }
      for (const auto& [key, value] : writes_) {
        if (value) {
          catalog_.records_[key] = {*value, ++catalog_.version_};
        } else {
          catalog_.records_.erase(key);
        }
      }
      return {};
    }

   private:
    static uint64_t VersionOf(const Records& records, const std::string& key) {
      const auto found = records.find(key);
      return found == records.end() ? 0 : found->second.version;
    }
    MemCatalog& catalog_;
    const Records seen_;
    std::set<std::string> read_;
    std::map<std::string, std::optional<std::string>> writes_;
  };

  Mutex mutex_;
  Records records_ GUARDED_BY(mutex_);
  uint64_t version_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
