// Encoder and decoder of the keeper's state. Invariant: Decode(Encode(x)) == x, and a decoder
// accepts no byte more and no byte less than the layout.
#include "fuse/keeper/keeper_state.h"

#include <cerrno>

#include "store/base/bytes.h"

namespace cairn {
namespace {

constexpr uint32_t kMagic = 0x31534b43;  // CKS1
constexpr uint16_t kVersion = 1;
constexpr uint32_t kConnected = 1;
constexpr uint32_t kReady = 2;
constexpr uint32_t kEverReady = 4;
constexpr uint32_t kStopping = 8;
constexpr uint32_t kKnownFlags = 15;

void Text16(ByteWriter& writer, std::string_view text) {
  writer.U16(static_cast<uint16_t>(text.size()));
  writer.Bytes(text);
}
void Text32(ByteWriter& writer, std::string_view text) {
  writer.U32(static_cast<uint32_t>(text.size()));
  writer.Bytes(text);
}
std::string Text16(ByteReader& reader) { return std::string(reader.Bytes(reader.U16())); }
std::string Text32(ByteReader& reader) { return std::string(reader.Bytes(reader.U32())); }
int Descriptor(ByteReader& reader) { return static_cast<int>(reader.U32()); }

std::unexpected<Error> Malformed(const char* what) {
  return Err(ErrorCode::kInvalidArgument, std::string("keeper state: ") + what, EPROTO);
}

}  // namespace

std::vector<int> KeeperState::Descriptors() const {
  std::vector<int> all = {program, channel};
  for (const File& file : files) all.push_back(file.fd);
  for (const Mount& mount : mounts) {
    all.push_back(mount.fuse);
    all.push_back(mount.file);
  }
  std::erase(all, -1);
  return all;
}

std::string KeeperState::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(kMagic);
  writer.U16(kVersion);
  writer.U32(static_cast<uint32_t>(server_pid));
  writer.U32(static_cast<uint32_t>(channel));
  writer.U32((connected ? kConnected : 0) | (ready ? kReady : 0) | (ever_ready ? kEverReady : 0) |
             (stopping ? kStopping : 0));
  writer.U32(failed_starts);
  writer.U32(static_cast<uint32_t>(program));
  writer.U64(message_id);
  Text16(writer, barrier_program);
  writer.U16(static_cast<uint16_t>(server_command.size()));
  for (const std::string& word : server_command) Text16(writer, word);
  writer.U16(static_cast<uint16_t>(helpers.size()));
  for (const pid_t pid : helpers) writer.U32(static_cast<uint32_t>(pid));
  Text32(writer, outcome.Encode());
  writer.U16(static_cast<uint16_t>(files.size()));
  for (const File& file : files) {
    writer.U32(static_cast<uint32_t>(file.fd));
    Text16(writer, file.name);
  }
  writer.U16(static_cast<uint16_t>(mounts.size()));
  for (const Mount& mount : mounts) {
    Text32(writer, mount.reply.Encode());
    writer.U32(static_cast<uint32_t>(mount.fuse));
    writer.U32(static_cast<uint32_t>(mount.file));
  }
  return out;
}

Result<KeeperState> KeeperState::Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.U32() != kMagic) return Malformed("magic");
  if (reader.U16() != kVersion) return Malformed("of a version that this program does not know");
  KeeperState state;
  state.server_pid = static_cast<pid_t>(reader.U32());
  state.channel = Descriptor(reader);
  const uint32_t flags = reader.U32();
  if ((flags & ~kKnownFlags) != 0) return Malformed("flags");
  state.connected = (flags & kConnected) != 0;
  state.ready = (flags & kReady) != 0;
  state.ever_ready = (flags & kEverReady) != 0;
  state.stopping = (flags & kStopping) != 0;
  state.failed_starts = reader.U32();
  state.program = Descriptor(reader);
  state.message_id = reader.U64();
  state.barrier_program = Text16(reader);
  for (uint16_t left = reader.U16(); left > 0 && reader.ok(); --left) {
    state.server_command.push_back(Text16(reader));
  }
  for (uint16_t left = reader.U16(); left > 0 && reader.ok(); --left) {
    state.helpers.push_back(static_cast<pid_t>(reader.U32()));
  }
  const std::string outcome = Text32(reader);
  if (!reader.ok()) return Malformed("cut short");
  state.outcome = CAIRN_TRY(UpgradeOutcome::Decode(outcome));
  for (uint16_t left = reader.U16(); left > 0 && reader.ok(); --left) {
    const int fd = Descriptor(reader);
    state.files.push_back({.fd = fd, .name = Text16(reader)});
  }
  for (uint16_t left = reader.U16(); left > 0 && reader.ok(); --left) {
    Mount mount;
    mount.reply = CAIRN_TRY(TakeReply::Decode(Text32(reader)));
    mount.fuse = Descriptor(reader);
    mount.file = Descriptor(reader);
    state.mounts.push_back(std::move(mount));
  }
  if (!reader.done() || state.server_command.empty()) return Malformed("length");
  return state;
}

}  // namespace cairn
