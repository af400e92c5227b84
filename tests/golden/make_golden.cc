// Writes the golden files: one small file for each format, made by the project's own encoders under
// the fixed keys of tests/fuzz/known_keys.h, from the same contents as the fuzz targets' seeds.
// Deterministic. A golden file of a released version is never written again: a new version of a
// format gets a new name (pack.v2) beside the old one. Usage: make_golden tests/golden
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/high_water_mark.h"
#include "store/quarantine.h"
#include "tests/fuzz/journal_repair.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/seeds.h"
#include "tests/volume/sim_disk.h"

namespace cairn {
namespace {

// A seed without the bytes that tell the target what to do.
std::string SeedOf(const std::string& target, const std::string& name, size_t head_bytes = 2) {
  for (const Seed& seed : AllSeeds()) {
    if (seed.target == target && seed.name == name) return seed.bytes.substr(head_bytes);
  }
  CAIRN_CHECK(!"no such seed");
  return {};
}

std::string Spread(std::string file) {
  return file.insert(kLogHeaderBytes, kLogContentOffset - kLogHeaderBytes, '\0');
}

// The seed is both files without their gaps, and says how long the first one is.
void AddJournal(std::map<std::string, std::string>& files) {
  const std::string seed = SeedOf("journal", "whole", 3);
  const size_t journal_bytes =
      static_cast<uint8_t>(seed[0]) | static_cast<size_t>(static_cast<uint8_t>(seed[1])) << 8;
  std::string journal = Spread(seed.substr(2, journal_bytes));
  std::string side = Spread(seed.substr(2 + journal_bytes));
  RepairJournal(0xff & ~kRepairLogHeaderSums, journal, side);
  files["journal.v1"] = journal;
  files["side.v1"] = side;
}

// Envelope of an Environment, as ValueCipher seals it but for the nonce, which is fixed.
std::string CatalogRecord() {
  const std::string seed = SeedOf("records", "environment");
  const size_t key_bytes = static_cast<uint8_t>(seed[0]);
  std::string envelope;
  ByteWriter w(envelope);
  w.U8(1);
  w.Zeros(3);
  w.U32(1);
  const std::string aad = envelope + seed.substr(1, key_bytes);
  Nonce96 nonce;
  nonce.fill(0x77);
  envelope.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  AppendSealed(Known().data_key, nonce, seed.substr(1 + key_bytes), aad, envelope);
  return envelope;
}

std::string QuarantineFile() {
  SimDisk disk;
  const auto quarantine = Quarantine::Open(disk, "data/quarantine");
  QuarantinedFrame frame{.realm = Known().realm,
                         .pack = Known().pack,
                         .offset = 160,
                         .address = {},
                         .found_ms = 1'700'000'000'000};
  frame.address.bytes.fill(0x55);
  quarantine->Add(frame);
  quarantine->Add({.realm = Known().realm, .pack = Known().volume, .found_ms = 5});
  quarantine->ReleaseFrame(Known().pack, 160);
  quarantine->Add(frame);
  return disk.Bytes("data/quarantine");
}

std::string Mark() {
  SimDisk disk;
  const auto mark = HighWaterMark::Open(disk, "synced");
  CAIRN_CHECK(mark.has_value());
  (*mark)->Raise({.generation = 3, .sequence = 258});
  return disk.Bytes("synced");
}

std::map<std::string, std::string> GoldenFiles() {
  std::map<std::string, std::string> files = {
      {"pack.v1", SeedOf("pack", "real")},
      {"tree_leaf.v1", SeedOf("node", "leaf")},
      {"tree_interior.v1", SeedOf("node", "interior")},
      {"fs_root.v1", SeedOf("node", "root")},
      {"memory_image.v1", SeedOf("node", "image")},
      {"memory_map.v1", SeedOf("node", "map")},
      {"catalog_record.v1", CatalogRecord()},
      {"index_location.v1", SeedOf("records", "location").substr(33)},
      {"index_marker.v1", SeedOf("records", "marker").substr(17)},
      {"cairn_format.v1", SeedOf("records", "format-instance")},
      {"quarantine.v1", QuarantineFile()},
      {"high_water_mark.v1", Mark()},
  };
  AddJournal(files);
  return files;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  size_t total_bytes = 0;
  for (const auto& [name, bytes] : cairn::GoldenFiles()) {
    const std::filesystem::path path = std::filesystem::path(argv[1]) / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    file.close();
    if (!file) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      return 1;
    }
    total_bytes += bytes.size();
  }
  std::printf("%zu bytes\n", total_bytes);
  return 0;
}
