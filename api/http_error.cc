// Errors on the wire: {"error": {"type", "code", "message", "param"}}, as the OpenAI API has them,
// and "blocking_ids" where a rule refuses. Messages of errors below are never copied into an
// answer.
#include "api/http_error.h"

#include <nlohmann/json.hpp>

#include "api/utf8.h"

namespace cairn {

HttpError NotFoundError() {
  return {.status = 404,
          .type = "invalid_request_error",
          .code = "not_found",
          .message = "No such object.",
          .param = {},
          .blocking = {}};
}

HttpError InvalidRequest(std::string message, std::string param) {
  return {.status = 400,
          .type = "invalid_request_error",
          .code = "invalid_request",
          .message = std::move(message),
          .param = std::move(param),
          .blocking = {}};
}

HttpError Unauthorized() {
  return {
      .status = 401,
      .type = "authentication_error",
      .code = "invalid_api_key",
      .message = "Give a valid API key of your organization: Authorization: Bearer cairn_sk_...",
      .param = {},
      .blocking = {}};
}

HttpError StatusError(int status) {
  HttpError error{.status = status,
                  .type = "invalid_request_error",
                  .code = "invalid_request",
                  .message = {},
                  .param = {},
                  .blocking = {}};
  switch (status) {
    case 404:
      error.code = "unknown_url";
      error.message = "There is nothing at this URL.";
      break;
    case 405:
      error.code = "method_not_allowed";
      error.message = "This URL does not have that method; the Allow header lists those it has.";
      break;
    case 413:
      error.code = "body_too_large";
      error.message = "The request's body is larger than 1 MiB.";
      break;
    case 415:
      error.code = "unsupported_media_type";
      error.message = "The body must be JSON: Content-Type: application/json.";
      break;
    case 431:
      error.code = "headers_too_large";
      error.message = "The request's headers are larger than 16 KiB.";
      break;
    default:
      error.message = "The request is not well-formed HTTP/1.1.";
  }
  return error;
}

HttpError ToHttpError(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNotFound:
      return NotFoundError();
    case ErrorCode::kAlreadyExists:
      return {.status = 409,
              .type = "conflict_error",
              .code = "already_exists",
              .message = "An object of that name exists.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kExhausted:
      return {.status = 507,
              .type = "insufficient_storage_error",
              .code = "exhausted",
              .message = "There is no space or quota left for this.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kUnavailable:
      return {.status = 503,
              .type = "server_error",
              .code = "unavailable",
              .message = "Not possible at the moment: try again.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kAborted:
      return {.status = 503,
              .type = "server_error",
              .code = "aborted",
              .message = "Another request changed the same objects: try again.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kFailedPrecondition:
      return {.status = 409,
              .type = "conflict_error",
              .code = "failed_precondition",
              .message = "The object's state does not allow this.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kPermissionDenied:
      return {.status = 403,
              .type = "permission_error",
              .code = "permission_denied",
              .message = "This API key may not do that.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kInvalidArgument:
      return InvalidRequest("The request is not valid.");
    case ErrorCode::kDataLoss:
      return {.status = 500,
              .type = "server_error",
              .code = "data_loss",
              .message = "Stored bytes of this object are damaged.",
              .param = {},
              .blocking = {}};
    case ErrorCode::kInternal:
      break;
  }
  return {.status = 500,
          .type = "server_error",
          .code = "internal",
          .message = "Something went wrong here; the request id finds it in the log.",
          .param = {},
          .blocking = {}};
}

HttpResponse ErrorResponse(const HttpError& error) {
  nlohmann::ordered_json body;
  body["error"] = {{"type", error.type},
                   {"code", error.code},
                   {"message", ToUtf8(error.message)},
                   {"param", nullptr}};
  if (!error.param.empty()) body["error"]["param"] = ToUtf8(error.param);
  if (!error.blocking.empty()) body["error"]["blocking_ids"] = error.blocking;
  HttpResponse response;
  response.status = error.status;
  response.Set("Content-Type", "application/json");
  if (error.status == 401) response.Set("WWW-Authenticate", "Bearer");
  if (error.status == 503) response.Set("Retry-After", "1");
  response.body = body.dump();
  return response;
}

}  // namespace cairn
