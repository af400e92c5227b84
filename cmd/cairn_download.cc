// artifact get. The content comes in chunks over the socket; a file is written beside its name and
// renamed when it is whole and its length and SHA-256 are what the record says, so a name never
// holds half an Artifact.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <unistd.h>

#include <memory>

#include "cmd/cairn_commands.h"
#include "store/base/hex.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr uint64_t kChunkBytes = 4u << 20;

Status WriteAll(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrErrno(errno, "writing the output failed");
    data.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

ExitCode DownloadArtifact(CommandContext& context, HostClient& client, const std::string& session,
                          const std::string& artifact, const std::string& output) {
  const bool to_stdout = output == "-";
  const std::string part = fmt::format("{}.cairn-part.{}", output, ::getpid());
  UniqueFd file;
  if (!to_stdout) {
    file = UniqueFd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.valid())
      return PrintError(
          Error::FromErrno(errno, fmt::format("cannot create {}: {}", part, strerror(errno))),
          kExitFailed, context.json);
  }
  const auto give_up = [&](ExitCode code) {
    if (!to_stdout) ::unlink(part.c_str());
    return code;
  };
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(),
                                                                       &EVP_MD_CTX_free);
  if (!digest || EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) != 1) {
    return give_up(PrintError(Error(ErrorCode::kInternal, "SHA-256 is not available"), kExitFailed,
                              context.json));
  }
  host::ArtifactView record;
  uint64_t offset = 0;
  while (true) {
    host::HostRequest request;
    request.mutable_artifact_read()->set_artifact(artifact);
    request.mutable_artifact_read()->set_session(record.session().empty() ? session
                                                                          : record.session());
    request.mutable_artifact_read()->set_offset(offset);
    request.mutable_artifact_read()->set_length_bytes(kChunkBytes);
    host::HostResponse response;
    ExitCode exit = kExitOk;
    if (!MakeCall(context, client, std::move(request), &response, &exit)) return give_up(exit);
    const host::ArtifactChunk& chunk = response.chunk();
    record = chunk.artifact();
    EVP_DigestUpdate(digest.get(), chunk.data().data(), chunk.data().size());
    if (auto written = WriteAll(to_stdout ? STDOUT_FILENO : file.get(), chunk.data()); !written) {
      return give_up(PrintError(written.error(), kExitFailed, context.json));
    }
    offset += chunk.data().size();
    if (chunk.end()) break;
    if (chunk.data().empty()) {
      return give_up(
          PrintError(Error(ErrorCode::kInternal, "the daemon sent an empty part before the end"),
                     kExitFailed, context.json));
    }
  }
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned sum_bytes = 0;
  EVP_DigestFinal_ex(digest.get(), sum, &sum_bytes);
  const std::string hex = HexEncode({reinterpret_cast<const char*>(sum), sum_bytes});
  if (offset != record.size_bytes() || (!record.sha256().empty() && hex != record.sha256())) {
    return give_up(PrintError(
        Error(
            ErrorCode::kDataLoss,
            fmt::format("{} arrived with {} bytes and SHA-256 {}, its record says {} bytes and {}",
                        artifact, offset, hex, record.size_bytes(),
                        record.sha256().empty() ? "no digest yet" : record.sha256())),
        kExitDataLoss, context.json));
  }
  if (to_stdout) return kExitOk;
  file.Reset();
  if (::rename(part.c_str(), output.c_str()) != 0) {
    return give_up(PrintError(Error::FromErrno(errno, fmt::format("cannot rename {} to {}: {}",
                                                                  part, output, strerror(errno))),
                              kExitFailed, context.json));
  }
  record.set_sha256(hex);
  if (context.json) {
    PrintJson(record);
  } else {
    PrintRecord(record);
  }
  return kExitOk;
}

}  // namespace cairn
