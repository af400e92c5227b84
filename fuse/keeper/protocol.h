// The messages between server, keeper and barrier helper (docs/formats/keeper_protocol.md):
// structs, encoders and bounds-checked decoders. No I/O.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

inline constexpr uint32_t kKeeperMagic = 0x314d4b43;
inline constexpr uint16_t kKeeperVersion = 1;
inline constexpr size_t kMaxMessageBytes = 65536;
inline constexpr size_t kMaxBarrierInodes = 4096;
inline constexpr size_t kMaxMountDirBytes = 4095;
inline constexpr size_t kMaxCookieBytes = 1024;
inline constexpr size_t kMaxFileNameBytes = 64;
inline constexpr int kBarrierHelperFd = 3;

enum class MessageType : uint16_t {
  kHello = 1,
  kMount = 2,
  kUnmount = 3,
  kStartBarrier = 4,
  kSaveInit = 5,
  kList = 6,
  kTake = 7,
  kTakeFile = 8,
  kAbandon = 9,
  kReady = 10,
  kStop = 11,
  kUpgrade = 12,
  kUpgradeOutcome = 13,
  kKeepFile = 14,
  kKeptFile = 15,
  kReplaceKeeper = 16,
  kBarrier = 32,
};
inline constexpr uint16_t kReplyBit = 0x8000;

struct Message {
  uint16_t type = 0;  // MessageType, with kReplyBit in replies
  uint64_t id = 0;
  uint32_t error = 0;  // errno, replies only
  std::string payload;

  std::string Encode() const;
  static Result<Message> Decode(std::string_view datagram);  // InvalidArgument with EPROTO
};

struct MountRequest {
  enum Flags : uint32_t {
    kNoSuid = 1,
    kNoDev = 2,
    kNoExec = 4,
    kReadOnly = 8,
    kAllowOther = 16,
    kDefaultPermissions = 32,
  };
  Id128 connection;
  uint32_t flags = kNoSuid | kNoDev | kAllowOther | kDefaultPermissions;
  uint32_t max_read_bytes = 0;
  uint32_t read_ahead_kib = 0;
  uint64_t max_dirty_bytes = 0;
  std::string dir;     // absolute
  std::string cookie;  // the server's own, for who takes the mount over

  std::string Encode() const;
  static Result<MountRequest> Decode(std::string_view payload);
};

struct MountReply {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  std::string Encode() const;
  static Result<MountReply> Decode(std::string_view payload);
};

struct UnmountRequest {
  Id128 connection;
  bool lazy = false;
  std::string Encode() const;
  static Result<UnmountRequest> Decode(std::string_view payload);
};

struct SaveInitRequest {
  Id128 connection;
  bool answered = false;
  std::string init;
  std::string Encode() const;
  static Result<SaveInitRequest> Decode(std::string_view payload);
};

// Payload of the reply to LIST.
std::string EncodeConnections(const std::vector<Id128>& connections);
Result<std::vector<Id128>> DecodeConnections(std::string_view payload);

// Payload of TAKE, TAKE_FILE and ABANDON.
std::string EncodeConnection(const Id128& connection);
Result<Id128> DecodeConnection(std::string_view payload);

struct TakeReply {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  std::string init;  // the kernel's request; empty: it has not come yet
  MountRequest mount;
  std::string Encode() const;
  static Result<TakeReply> Decode(std::string_view payload);
};

struct UpgradeRequest {
  Id128 id;
  uint32_t ready_timeout_ms = 0;
  std::string Encode() const;
  static Result<UpgradeRequest> Decode(std::string_view payload);
};

// How the last UPGRADE ended.
struct UpgradeOutcome {
  enum State : uint32_t {
    kNone = 0,      // no UPGRADE has ended yet
    kDone = 1,      // the program that came with it serves
    kFellBack = 2,  // it did not become READY: the one before it serves again
    kUnderWay = 3,  // whoever asks is what came with it
  };
  Id128 id = {};
  State state = kNone;
  std::string why = {};  // it fell back
  std::string Encode() const;
  static Result<UpgradeOutcome> Decode(std::string_view payload);
};

// Payload of KEEP_FILE and KEPT_FILE: 1 to kMaxFileNameBytes bytes.
Result<std::string> DecodeFileName(std::string_view payload);

// Payload of the replies to HELLO and START_BARRIER.
std::string EncodePid(uint32_t pid);
Result<uint32_t> DecodePid(std::string_view payload);

struct BarrierRequest {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint32_t generation = 0;
  std::string dir;
  std::vector<uint64_t> inodes;  // at most kMaxBarrierInodes
  std::string Encode() const;
  static Result<BarrierRequest> Decode(std::string_view payload);
};

struct BarrierResult {
  uint32_t synced = 0;
  uint32_t gone = 0;
  uint32_t failed = 0;
  uint32_t first_errno = 0;
  uint64_t first_failed_inode = 0;
  std::string Encode() const;
  static Result<BarrierResult> Decode(std::string_view payload);
};

}  // namespace cairn
