// Encoders and decoders of docs/formats/keeper_protocol.md. Invariant: Decode(Encode(x)) == x, and
// a decoder accepts no byte more and no byte less than the layout.
#include "fuse/keeper/protocol.h"

#include <cerrno>

#include "store/base/bytes.h"

namespace cairn {
namespace {

constexpr size_t kHeaderBytes = 32;
constexpr uint32_t kKnownMountFlags = 63;

std::unexpected<Error> Malformed(std::string_view what) {
  return Err(ErrorCode::kInvalidArgument, "malformed keeper message: " + std::string(what), EPROTO);
}

bool IsAbsolutePath(std::string_view dir) {
  return !dir.empty() && dir.size() <= kMaxMountDirBytes && dir.front() == '/' &&
         dir.find('\0') == std::string_view::npos;
}

Id128 ReadId(ByteReader& reader) {
  const std::string_view bytes = reader.Bytes(16);
  return reader.ok() ? Id128::FromView(bytes) : Id128{};
}

}  // namespace

std::string Message::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(kKeeperMagic);
  writer.U16(kKeeperVersion);
  writer.U16(type);
  writer.U64(id);
  writer.U32(error);
  writer.U32(static_cast<uint32_t>(payload.size()));
  writer.U64(0);
  writer.Bytes(payload);
  return out;
}

Result<Message> Message::Decode(std::string_view datagram) {
  if (datagram.size() < kHeaderBytes || datagram.size() > kMaxMessageBytes) {
    return Malformed("length");
  }
  ByteReader reader(datagram);
  if (reader.U32() != kKeeperMagic) return Malformed("magic");
  if (reader.U16() != kKeeperVersion) return Malformed("version");
  Message message;
  message.type = reader.U16();
  message.id = reader.U64();
  message.error = reader.U32();
  const uint32_t payload_bytes = reader.U32();
  if (reader.U64() != 0) return Malformed("reserved field");
  if (payload_bytes != reader.remaining()) return Malformed("payload length");
  message.payload = reader.Bytes(payload_bytes);
  return message;
}

std::string MountRequest::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.Bytes(connection.view());
  writer.U32(flags);
  writer.U32(max_read_bytes);
  writer.U32(read_ahead_kib);
  writer.U32(0);
  writer.U64(max_dirty_bytes);
  writer.U16(static_cast<uint16_t>(dir.size()));
  writer.Bytes(dir);
  writer.U16(static_cast<uint16_t>(cookie.size()));
  writer.Bytes(cookie);
  return out;
}

Result<MountRequest> MountRequest::Decode(std::string_view payload) {
  ByteReader reader(payload);
  MountRequest request;
  request.connection = ReadId(reader);
  request.flags = reader.U32();
  request.max_read_bytes = reader.U32();
  request.read_ahead_kib = reader.U32();
  const uint32_t reserved = reader.U32();
  request.max_dirty_bytes = reader.U64();
  request.dir = reader.Bytes(reader.U16());
  request.cookie = reader.Bytes(reader.U16());
  if (!reader.done() || request.cookie.size() > kMaxCookieBytes || reserved != 0 ||
      request.connection.is_zero() || (request.flags & ~kKnownMountFlags) != 0 ||
      !IsAbsolutePath(request.dir)) {
    return Malformed("MOUNT");
  }
  return request;
}

std::string MountReply::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(device_major);
  writer.U32(device_minor);
  return out;
}

Result<MountReply> MountReply::Decode(std::string_view payload) {
  ByteReader reader(payload);
  MountReply reply{.device_major = reader.U32(), .device_minor = reader.U32()};
  if (!reader.done()) return Malformed("reply to MOUNT");
  return reply;
}

std::string UnmountRequest::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.Bytes(connection.view());
  writer.U32(lazy ? 1 : 0);
  writer.U32(0);
  return out;
}

Result<UnmountRequest> UnmountRequest::Decode(std::string_view payload) {
  ByteReader reader(payload);
  UnmountRequest request;
  request.connection = ReadId(reader);
  const uint32_t flags = reader.U32();
  request.lazy = flags == 1;
  const uint32_t reserved = reader.U32();
  if (!reader.done() || flags > 1 || reserved != 0) return Malformed("UNMOUNT");
  return request;
}

std::string SaveInitRequest::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.Bytes(connection.view());
  writer.U32(answered ? 1 : 0);
  writer.U32(static_cast<uint32_t>(init.size()));
  writer.Bytes(init);
  return out;
}

Result<SaveInitRequest> SaveInitRequest::Decode(std::string_view payload) {
  ByteReader reader(payload);
  SaveInitRequest request;
  request.connection = ReadId(reader);
  const uint32_t flags = reader.U32();
  request.answered = flags == 1;
  request.init = reader.Bytes(reader.U32());
  if (!reader.done() || flags > 1) return Malformed("SAVE_INIT");
  return request;
}

std::string EncodeConnections(const std::vector<Id128>& connections) {
  std::string out;
  ByteWriter writer(out);
  writer.U32(static_cast<uint32_t>(connections.size()));
  for (const Id128& connection : connections) writer.Bytes(connection.view());
  return out;
}

Result<std::vector<Id128>> DecodeConnections(std::string_view payload) {
  ByteReader reader(payload);
  const uint32_t count = reader.U32();
  if (!reader.ok() || reader.remaining() != count * sizeof(Id128)) return Malformed("LIST");
  std::vector<Id128> connections;
  for (uint32_t i = 0; i < count; ++i) connections.push_back(ReadId(reader));
  return connections;
}

std::string EncodeConnection(const Id128& connection) { return std::string(connection.view()); }

Result<Id128> DecodeConnection(std::string_view payload) {
  ByteReader reader(payload);
  const Id128 connection = ReadId(reader);
  if (!reader.done()) return Malformed("connection");
  return connection;
}

std::string TakeReply::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(device_major);
  writer.U32(device_minor);
  writer.U32(static_cast<uint32_t>(init.size()));
  writer.Bytes(init);
  writer.Bytes(mount.Encode());
  return out;
}

Result<TakeReply> TakeReply::Decode(std::string_view payload) {
  ByteReader reader(payload);
  TakeReply reply{
      .device_major = reader.U32(), .device_minor = reader.U32(), .init = {}, .mount = {}};
  reply.init = reader.Bytes(reader.U32());
  if (!reader.ok()) return Malformed("reply to TAKE");
  reply.mount = CAIRN_TRY(MountRequest::Decode(reader.Bytes(reader.remaining())));
  return reply;
}

std::string UpgradeRequest::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.Bytes(id.view());
  writer.U32(ready_timeout_ms);
  writer.U32(0);
  return out;
}

Result<UpgradeRequest> UpgradeRequest::Decode(std::string_view payload) {
  ByteReader reader(payload);
  UpgradeRequest request;
  request.id = ReadId(reader);
  request.ready_timeout_ms = reader.U32();
  const uint32_t reserved = reader.U32();
  if (!reader.ok() || reader.remaining() != 0 || reserved != 0 || request.id.is_zero() ||
      request.ready_timeout_ms == 0) {
    return Malformed("upgrade request");
  }
  return request;
}

std::string UpgradeOutcome::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.Bytes(id.view());
  writer.U32(state);
  writer.Bytes(why);
  return out;
}

Result<UpgradeOutcome> UpgradeOutcome::Decode(std::string_view payload) {
  ByteReader reader(payload);
  UpgradeOutcome outcome;
  outcome.id = ReadId(reader);
  const uint32_t state = reader.U32();
  if (!reader.ok() || state > kUnderWay) return Malformed("upgrade outcome");
  outcome.state = static_cast<State>(state);
  outcome.why = reader.Bytes(reader.remaining());
  return outcome;
}

Result<std::string> DecodeFileName(std::string_view payload) {
  if (payload.empty() || payload.size() > kMaxFileNameBytes) return Malformed("file name");
  return std::string(payload);
}

std::string EncodePid(uint32_t pid) {
  std::string out;
  ByteWriter(out).U32(pid);
  return out;
}

Result<uint32_t> DecodePid(std::string_view payload) {
  ByteReader reader(payload);
  const uint32_t pid = reader.U32();
  if (!reader.done()) return Malformed("pid");
  return pid;
}

std::string BarrierRequest::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(device_major);
  writer.U32(device_minor);
  writer.U32(generation);
  writer.U32(static_cast<uint32_t>(inodes.size()));
  writer.U16(static_cast<uint16_t>(dir.size()));
  writer.Bytes(dir);
  for (const uint64_t ino : inodes) writer.U64(ino);
  return out;
}

Result<BarrierRequest> BarrierRequest::Decode(std::string_view payload) {
  ByteReader reader(payload);
  BarrierRequest request;
  request.device_major = reader.U32();
  request.device_minor = reader.U32();
  request.generation = reader.U32();
  const uint32_t count = reader.U32();
  request.dir = reader.Bytes(reader.U16());
  if (!reader.ok() || count > kMaxBarrierInodes || reader.remaining() != count * sizeof(uint64_t) ||
      !IsAbsolutePath(request.dir)) {
    return Malformed("BARRIER");
  }
  request.inodes.reserve(count);
  for (uint32_t i = 0; i < count; ++i) request.inodes.push_back(reader.U64());
  return request;
}

std::string BarrierResult::Encode() const {
  std::string out;
  ByteWriter writer(out);
  writer.U32(synced);
  writer.U32(gone);
  writer.U32(failed);
  writer.U32(first_errno);
  writer.U64(first_failed_inode);
  return out;
}

Result<BarrierResult> BarrierResult::Decode(std::string_view payload) {
  ByteReader reader(payload);
  BarrierResult result;
  result.synced = reader.U32();
  result.gone = reader.U32();
  result.failed = reader.U32();
  result.first_errno = reader.U32();
  result.first_failed_inode = reader.U64();
  if (!reader.done()) return Malformed("reply to BARRIER");
  return result;
}

}  // namespace cairn
