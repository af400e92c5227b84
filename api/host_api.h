// HostApi: what the calls of the host protocol (api/host.proto) do.
#pragma once

#include "api/host.pb.h"
#include "api/services.h"
#include "catalog/refusal.h"

namespace cairn {

// Thread-safe. A call may block as long as its work takes.
class HostApi {
 public:
  explicit HostApi(ApiServices& services) : services_(services) {}
  // Never fails: errors are in the answer.
  host::HostResponse Handle(const host::HostRequest& request);

 private:
  using Answer = Ruled<host::HostResponse>;

  Answer Dispatch(const host::HostRequest& request);
  // Calls that belong to no organization (host_api_maintenance.cc), the others (host_api_calls.cc).
  // `handled` is false when it is not one of them.
  Answer Maintain(const host::HostRequest& request, bool* handled);
  Answer CallFor(const std::string& org, const host::HostRequest& request);

  Answer EnvCall(const std::string& org, const host::HostRequest& request);
  Answer SessionCall(const std::string& org, const host::HostRequest& request);
  Answer ArtifactCall(const std::string& org, const host::HostRequest& request);
  Answer SnapshotCall(const std::string& org, const host::HostRequest& request);

  Ruled<host::EnvironmentInfo> DescribeEnvironment(const std::string& org,
                                                   const catalog::Environment& env);
  Answer BaseCall(const host::HostRequest& request);
  Answer Unmount(const std::string& requested_org, const host::Umount& call);
  Answer ReadArtifact(const std::string& org, const host::ArtifactRead& call);
  // What a call reads or writes on the host: on no FUSE filesystem, not in the data directory.
  Status CheckHostPath(const std::string& path);
  Result<FsView> ViewOfSource(const std::string& org, const std::string& source);
  Answer Stats();

  ApiServices& services_;
};

}  // namespace cairn
