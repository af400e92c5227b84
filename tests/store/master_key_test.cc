// Where the master key comes from: files that others may read and commands that misbehave are
// refused, and no message holds what was read.
#include "store/master_key.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/store_world.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const std::string kDigits = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

Result<Key256> FromCommand(const std::string& command, int64_t timeout_ms = 20000) {
  return ReadMasterKey({.file = {}, .command = command, .timeout_ms = timeout_ms});
}

TEST(MasterKey, OfAFileMustBePrivateAndOfItsLength) {
  TempDir temp;
  const std::string path = temp / "key";
  const auto with = [&](const std::string& text, mode_t mode) {
    std::filesystem::remove(path);
    WriteHostFile(path, text);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return ReadMasterKey({.file = path, .command = {}});
  };
  ASSERT_TRUE(with(kDigits + "\n", 0600));
  EXPECT_EQ((*with(kDigits, 0400))[1], 0x11);
  for (const mode_t mode : {0640, 0604, 0660, 0644, 0610, 0601, 0700, 04600}) {
    const auto refused = with(kDigits + "\n", mode);
    ASSERT_FALSE(refused) << mode;
    EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.error().message().find(fmt::format("mode {:04o}", mode)), std::string::npos)
        << refused.error().message();
  }
  for (const std::string& text : {std::string(), kDigits.substr(1), kDigits + "0", kDigits + "\n\n",
                                  kDigits + "\n0", std::string(64, 'g'), kDigits + kDigits}) {
    const auto refused = with(text, 0600);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message().find(path), std::string::npos);
    EXPECT_EQ(refused.error().message().find(kDigits.substr(1, 16)), std::string::npos);
  }
  std::filesystem::remove(path);
  EXPECT_EQ(ReadMasterKey({.file = path, .command = {}}).error().code(),
            ErrorCode::kFailedPrecondition);
  std::filesystem::create_directory(path);
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  EXPECT_EQ(ReadMasterKey({.file = path, .command = {}}).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST(MasterKey, OfAnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  TempDir temp;
  const std::string path = temp / "key";
  WriteHostFile(path, kDigits + "\n");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  const auto refused = ReadMasterKey({.file = path, .command = {}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("belongs to user 65534"), std::string::npos);
}

TEST(MasterKey, OfACommandIsItsOutput) {
  EXPECT_EQ((*FromCommand("echo " + kDigits))[15], 0xff);
  EXPECT_EQ((*FromCommand("printf %s " + kDigits))[1], 0x11);
  // In parts, and with its own standard input closed.
  EXPECT_TRUE(FromCommand("printf " + kDigits.substr(0, 10) + "; sleep 0.05; cat; printf " +
                          kDigits.substr(10)));
}

TEST(MasterKey, ACommandThatFailsIsRefusedAndItsOutputIsInNoMessage) {
  struct Case {
    std::string command;
    ErrorCode code;
    std::string said;
  };
  for (const Case& c : {
           Case{"echo " + kDigits + "; exit 3", ErrorCode::kFailedPrecondition, "status 3"},
           Case{"echo " + kDigits + "; kill -9 $$", ErrorCode::kFailedPrecondition, "signal 9"},
           Case{"no-such-program-of-any-name 2>/dev/null", ErrorCode::kFailedPrecondition,
                "status 127"},
           Case{"true", ErrorCode::kInvalidArgument, "0 bytes"},
           Case{"echo " + kDigits.substr(2), ErrorCode::kInvalidArgument, "63 bytes"},
           Case{"echo " + kDigits + "; echo", ErrorCode::kInvalidArgument, "more than 65"},
           Case{"yes " + kDigits, ErrorCode::kInvalidArgument, "more than 65"},
       }) {
    const auto refused = FromCommand(c.command);
    ASSERT_FALSE(refused) << c.command;
    EXPECT_EQ(refused.error().code(), c.code) << c.command;
    EXPECT_NE(refused.error().message().find(c.said), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(refused.error().message().find(kDigits.substr(4, 8)), std::string::npos);
  }
}

TEST(MasterKey, ACommandThatHangsIsEndedWithAllItStarted) {
  TempDir temp;
  const std::string pid_file = temp / "pid";
  // On a busy machine the shell may need longer than that to begin.
  for (int timeout_ms = 300; !std::filesystem::exists(pid_file) && timeout_ms < 60000;
       timeout_ms *= 4) {
    const auto refused = FromCommand("sleep 600 & echo $! > " + pid_file + ".new; mv " + pid_file +
                                         ".new " + pid_file + "; echo " + kDigits + "; wait",
                                     timeout_ms);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  }
  const pid_t child = std::stoi(ReadHostFile(pid_file));
  bool gone = false;
  for (int i = 0; i < 3000 && !gone; ++i) {
    gone = kill(child, 0) != 0;
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // A zombie that nobody has reaped yet still takes signals.
    const auto stat =
        HostFileSystem().Open(fmt::format("/proc/{}/stat", child), {.read_only = true});
    if (stat) {
      std::string text(200, '\0');
      text.resize((*stat)->ReadAt(0, text).value_or(0));
      gone = gone || text.find(") Z ") != std::string::npos;
    }
  }
  EXPECT_TRUE(gone);
}

TEST(MasterKey, ADestroyedFileIsOverwrittenBeforeItIsUnlinked) {
  TempDir temp;
  Key256 key;
  key.fill(7);
  ASSERT_TRUE(WriteMasterKeyFile(HostFileSystem(), temp / "key", key));
  EXPECT_EQ(*ReadMasterKey({.file = temp / "key", .command = {}}), key);
  std::filesystem::create_hard_link(temp / "key", temp / "bytes");
  ASSERT_TRUE(DestroyMasterKeyFile(HostFileSystem(), temp / "key"));
  ASSERT_TRUE(DestroyMasterKeyFile(HostFileSystem(), temp / "key"));
  EXPECT_FALSE(std::filesystem::exists(temp / "key"));
  EXPECT_EQ(ReadHostFile(temp / "bytes"), std::string(65, '\0'));
}

}  // namespace
}  // namespace cairn
