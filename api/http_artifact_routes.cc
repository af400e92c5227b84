// Artifacts over HTTP: list, show, download, delete. An Artifact never changes, so its id is its
// ETag and a download may be cached for ever.
#include <fmt/format.h>

#include "api/byte_range.h"
#include "api/http_api.h"
#include "store/base/hex.h"

namespace cairn {
namespace {

class ArtifactContent : public ContentSource {
 public:
  explicit ArtifactContent(std::unique_ptr<ArtifactReader> reader) : reader_(std::move(reader)) {}
  Status Read(uint64_t offset, std::span<char> out) override {
    while (!out.empty()) {
      const size_t got = CAIRN_TRY(reader_->Read(offset, out));
      if (got == 0) return Err(ErrorCode::kDataLoss, "the content is shorter than its record says");
      offset += got;
      out = out.subspan(got);
    }
    return {};
  }

 private:
  std::unique_ptr<ArtifactReader> reader_;
};

}  // namespace

HttpApi::Answer HttpApi::ListArtifacts(const ApiCall& call) {
  const PageQuery query = CAIRN_HTTP_TRY(PageOf(call, {"environment_id"}));
  const auto session =
      CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")));
  auto all = CAIRN_HTTP_TRY(services_.publisher.List(call.org, session.id()));
  if (const auto env = call.query.find("environment_id"); env != call.query.end()) {
    std::erase_if(
        all, [&](const ArtifactInfo& artifact) { return artifact.record.env() != env->second; });
  }
  auto page = TakePage(std::move(all), query,
                       [](const ArtifactInfo& artifact) { return artifact.record.id(); });
  if (!page) return std::unexpected(InvalidRequest("after: no such object in this list.", "after"));
  std::vector<Json> data;
  for (const ArtifactInfo& artifact : page->data)
    data.push_back(ArtifactResource(artifact, session.output_directory()));
  return JsonResponse(ListResource(std::move(data), page->has_more));
}

HttpApi::Answer HttpApi::GetArtifact(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  const auto session =
      CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")));
  const auto artifact = CAIRN_HTTP_TRY(
      services_.publisher.Get(call.org, session.id(), call.parameters.at("artifact")));
  return JsonResponse(ArtifactResource(artifact, session.output_directory()));
}

HttpApi::Answer HttpApi::DeleteArtifact(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  CAIRN_HTTP_TRY(services_.publisher.Delete(call.org, call.parameters.at("session"),
                                            call.parameters.at("artifact")));
  return JsonResponse(
      DeletedResource(call.parameters.at("artifact"), "agent.session.artifact.deleted"));
}

HttpApi::Answer HttpApi::GetArtifactContent(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")));
  auto reader = CAIRN_HTTP_TRY(services_.publisher.Open(call.org, call.parameters.at("session"),
                                                        call.parameters.at("artifact")));
  const ArtifactInfo info = reader->info();
  const uint64_t size = info.record.size_bytes();
  const std::string etag = fmt::format("\"{}\"", info.record.id());
  HttpResponse response;
  response.Set("ETag", etag);
  response.Set("Cache-Control", "private, max-age=31536000, immutable");
  response.Set("Accept-Ranges", "bytes");
  response.Set("X-Content-Type-Options", "nosniff");
  if (NoneMatchHolds(call.request.Header("if-none-match"), etag)) {
    response.status = 304;
    return response;
  }
  ByteRange range{.kind = ByteRange::Kind::kWhole, .offset = 0, .length = size};
  if (call.request.method == "GET")
    range = ParseRange(call.request.Header("range"), call.request.Header("if-range"), etag, size);
  if (range.kind == ByteRange::Kind::kUnsatisfiable) {
    HttpError error = InvalidRequest("The range lies beyond the content.", "Range");
    error.status = 416;
    error.code = "range_not_satisfiable";
    HttpResponse refusal = ErrorResponse(error);
    refusal.Set("Content-Range", fmt::format("bytes */{}", size));
    return refusal;
  }
  // Guests choose names and bytes: never something that a browser would run on this origin.
  response.Set("Content-Type", "application/octet-stream");
  response.Set("Content-Disposition", AttachmentDisposition(info.path));
  response.Set("Content-Security-Policy", "sandbox; default-src 'none'");
  if (!info.record.sha256().empty() && range.kind == ByteRange::Kind::kWhole)
    response.Set("X-Content-SHA256", HexEncode(info.record.sha256()));
  if (range.kind == ByteRange::Kind::kPart) {
    response.status = 206;
    response.Set("Content-Range", fmt::format("bytes {}-{}/{}", range.offset,
                                              range.offset + range.length - 1, size));
  }
  response.content = std::make_unique<ArtifactContent>(std::move(reader));
  response.content_offset = range.offset;
  response.content_length = range.length;
  return response;
}

}  // namespace cairn
