// Makes of a mutated pack one that its decoders go on reading: magic numbers, lengths, checksums,
// digests and tags are set right for what the bytes say now. Where a pack has ciphertext the input
// has plaintext (what the codec decodes), so that a mutation is one of the plaintext.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

// Which repairs are made is part of the input: without one its damage is met by the decoder.
enum PackRepair : uint8_t {
  kRepairPackHeader = 1,     // all of it, but for epoch and time
  kRepairPackHeaderSum = 2,  // its checksum alone
  kRepairFrames = 4,         // encrypted, checksums of stored bytes and header
  kRepairAddresses = 8,      // of plaintexts that decode
  kRepairFooter = 16,        // head, count, digest
  kRepairEntries = 32,       // say what the frames say, sorted
  kRepairTrailer = 64,       // offset of the footer, checksums, magic
};
void RepairPack(uint8_t repair, std::string& file);

// The footer is [begin, size - trailer) of `file`: its head, and a count that fits its length (what
// is left over is cut off).
void RepairFooterHead(std::string& file, size_t begin, const std::string& header);
// Checksums and magic of the trailer, for a footer at `begin`.
void RepairTrailerSums(std::string& file, size_t begin, uint64_t footer_offset);

}  // namespace cairn
