// Makes of a mutated journal and side log a pair that replay goes on reading, as pack_repair.h does
// of packs: in the input, bodies and payloads are plaintext.
#pragma once

#include <cstdint>
#include <string>

#include "volume/journal_format.h"

namespace cairn {

// What the target opens.
inline constexpr uint64_t kKnownGeneration = 3;

enum JournalRepair : uint8_t {
  kRepairLogHeaders = 1,     // all but segment epoch and first LSN
  kRepairLogHeaderSums = 2,  // their checksums alone
  kRepairRecordHeads = 4,    // reserved, segment epoch, lengths that fit, the next LSN
  kRepairSynced = 8,         // below the record's LSN
  kRepairBodies = 16,        // encrypted, checksum
  kRepairFields = 32,        // of bodies: generation, as many operations as decode
  kRepairPayloads = 64,      // encrypted, tags into the body
  kRepairPlaces = 128,       // data operations point into their record's area, or into the side log
};
// Both begin with a header of kLogHeaderBytes; content begins at kLogContentOffset.
void RepairJournal(uint8_t repair, std::string& journal, std::string& side);

// The encoding of a decoded body. op_count is that of `ops`.
std::string EncodeBody(const RecordBody& body);

}  // namespace cairn
