// A pack with a footer: its frames in file order, each read once (header, checksum, padding; with
// keys also tag, codec, address), whether they follow one on the other, and the pack's digest over
// the same reads, reported only when nothing else explains a difference. A pack without one is
// walked frame by frame (docs/formats/pack.md); what stands there in place of a frame is for the
// caller to judge, who knows what was indexed. Nothing is changed and no lock is taken.
#include "store/pack_verifier.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/block_codec.h"

namespace cairn {
namespace {

constexpr uint64_t kSkipBytes = 4096;

}  // namespace

Result<std::unique_ptr<PackVerifier>> PackVerifier::Open(Options options) {
  std::unique_ptr<PackVerifier> verifier(new PackVerifier(std::move(options)));
  CAIRN_TRY(verifier->Begin());
  return verifier;
}

Status PackVerifier::Begin() {
  auto opened = PackReader::Open(options_.fs, options_.path, options_.pack);
  if (!opened) {
    if (!IsDamage(opened.error())) return std::unexpected(std::move(opened).error());
    Report("pack header: " + opened.error().message(), std::nullopt, true);
    done_ = true;
    return {};
  }
  reader_ = *std::move(opened);
  if (reader_->header_damaged()) {
    Report("pack header: does not verify (its copy in the footer is used)");
  }
  if (reader_->header().realm != options_.realm) {
    Report("pack header: is of another realm than its folder", std::nullopt, true);
    done_ = true;
    return {};
  }
  if (options_.keys.Has(options_.realm)) {
    const Status unlocked = reader_->Unlock(options_.keys);
    if (!unlocked) {
      Report("pack header: data key: " + unlocked.error().message(), std::nullopt, true);
    }
  }
  auto footer = reader_->ReadFooter();
  if (!footer && !IsDamage(footer.error())) return std::unexpected(std::move(footer).error());
  if (footer && footer->has_value()) {
    footer_ = *std::move(footer);
    std::ranges::sort(footer_->entries, {}, &PackEntry::offset);
    hasher_.emplace(reader_->header());
    at_ = std::clamp(options_.from_offset, at_, footer_->frames_end);
    while (next_ < footer_->entries.size() && footer_->entries[next_].offset < at_) ++next_;
  } else if (options_.sealed) {
    Report("pack footer: " +
           (footer ? std::string("trailer does not verify") : footer.error().message()));
  }
  return {};
}

void PackVerifier::Report(std::string what, std::optional<PackEntry> entry, bool whole) {
  ++faults_;
  options_.fault({.what = std::move(what), .entry = std::move(entry), .whole = whole});
}

Result<PackVerifier::Step> PackVerifier::Next(uint64_t budget_bytes) {
  Step step;
  while (!done_ && step.bytes < budget_bytes) {
    if (!footer_) {
      CAIRN_TRY(WalkOn(step));
    } else if (hashed_ < next_) {
      CAIRN_TRY(HashNextHead(step));
    } else if (next_ < footer_->entries.size()) {
      CAIRN_TRY(VerifyNextEntry(step));
    } else {
      CAIRN_TRY(Finish(step));
    }
  }
  step.done = done_;
  return step;
}

// Of a frame that was verified earlier.
Status PackVerifier::HashNextHead(Step& step) {
  const PackEntry& entry = footer_->entries[hashed_++];
  const auto head = reader_->ReadBytes(entry.offset, kFrameHeaderBytes);
  const auto tag = reader_->ReadBytes(
      entry.offset + kFrameHeaderBytes + entry.stored_length - kAeadTagBytes, kAeadTagBytes);
  for (const auto* bytes : {&head, &tag}) {
    if (*bytes) continue;
    if (!IsDamage(bytes->error())) return std::unexpected(bytes->error());
    Report(fmt::format("frame at {}: {}", entry.offset, bytes->error().message()));
    return {};
  }
  hasher_->AddFrame(*head, *tag);
  step.bytes += head->size() + tag->size();
  return {};
}

// `frame`: what was read, or why it could not be.
void PackVerifier::Judge(const PackEntry& entry, const Result<std::string>& frame) {
  Status good =
      frame ? reader_->VerifyFrameBytes(entry, *frame) : Status(std::unexpected(frame.error()));
  if (good && reader_->unlocked()) {
    Result<std::string> plain = reader_->OpenFrameBytes(entry, *frame);
    if (plain) plain = DecodeBlock(entry.codec, *std::move(plain), entry.raw_length);
    if (!plain) {
      good = std::unexpected(plain.error());
    } else {
      const auto address = options_.keys.AddressOf(options_.realm, entry.kind, *plain);
      // Keys that were destroyed meanwhile are no damage.
      if (address && *address != entry.address) {
        good = Err(ErrorCode::kDataLoss, "plaintext has another address");
      }
    }
  }
  if (good) {
    options_.good(entry);
  } else {
    Report(fmt::format("frame at {} ({}): {}", entry.offset, BlockKindName(entry.kind),
                       good.error().message()),
           entry);
  }
}

Status PackVerifier::VerifyNextEntry(Step& step) {
  const PackEntry& entry = footer_->entries[next_];
  if (entry.offset > at_) {
    Report(fmt::format("bytes {} to {} are in no frame", at_, entry.offset));
    at_ = entry.offset;
  }
  if (entry.offset < at_) Report(fmt::format("frames overlap at {}", entry.offset));
  const uint64_t frame_bytes = PackEntry::FrameBytes(entry.stored_length);
  const auto frame = reader_->ReadBytes(entry.offset, frame_bytes);
  if (!frame && !IsDamage(frame.error())) return std::unexpected(frame.error());
  Judge(entry, frame);
  if (frame) {
    const std::string_view bytes(*frame);
    hasher_->AddFrame(
        bytes.substr(0, kFrameHeaderBytes),
        bytes.substr(kFrameHeaderBytes + entry.stored_length - kAeadTagBytes, kAeadTagBytes));
  }
  step.bytes += frame_bytes;
  ++step.frames;
  hashed_ = ++next_;
  at_ = std::max(at_, entry.EndOffset());
  return {};
}

Status PackVerifier::Finish(Step& step) {
  if (at_ != footer_->frames_end) {
    Report(fmt::format("bytes {} to {} are in no frame", at_, footer_->frames_end));
  }
  const uint64_t end = reader_->file_bytes() - kPackTrailerBytes - footer_->sha256.size();
  const auto footer = reader_->ReadBytes(footer_->frames_end, end - footer_->frames_end);
  if (!footer && !IsDamage(footer.error())) return std::unexpected(footer.error());
  if (!footer) {
    Report("pack footer: " + footer.error().message());
  } else {
    step.bytes += footer->size();
    if (faults_ == 0 && hasher_->Finish(*footer) != footer_->sha256) {
      Report("pack digest: does not match");
    }
  }
  done_ = true;
  return {};
}

// One frame, or one stretch of bytes that are none.
Status PackVerifier::WalkOn(Step& step) {
  const uint64_t end = reader_->file_bytes();
  if (at_ >= end) {
    done_ = walked_ = true;
    return {};
  }
  const uint64_t head_bytes = std::min<uint64_t>(kFrameHeaderBytes, end - at_);
  const auto head = reader_->ReadBytes(at_, head_bytes);
  if (!head && !IsDamage(head.error())) return std::unexpected(head.error());
  const auto header = head ? DecodeFrameHeader(options_.pack, at_, *head)
                           : Result<FrameHeader>(std::unexpected(head.error()));
  if (header && header->entry.EndOffset() <= end) {
    const PackEntry& entry = header->entry;
    const auto frame = reader_->ReadBytes(at_, PackEntry::FrameBytes(entry.stored_length));
    if (!frame && !IsDamage(frame.error())) return std::unexpected(frame.error());
    // Bytes whose checksum fails may be the torn tail: only what was indexed is damaged.
    if (frame && reader_->VerifyFrameBytes(entry, *frame)) {
      found_.push_back(at_);
      Judge(entry, frame);
    }
    ++step.frames;
    step.bytes += PackEntry::FrameBytes(entry.stored_length);
    at_ = entry.EndOffset();
    return {};
  }
  auto next = reader_->FindFrame(at_ + 8, end);
  if (!next && !IsDamage(next.error())) return std::unexpected(next.error());
  // Past a sector that does not read.
  if (!next) next = std::min(end, at_ + kSkipBytes);
  step.bytes += *next - at_;
  at_ = *next;
  return {};
}

}  // namespace cairn
