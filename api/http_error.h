// Errors on the wire: the one place where an Error becomes an HTTP status.
#pragma once

#include <string>
#include <vector>

#include "api/http_message.h"
#include "store/base/error.h"

namespace cairn {

// What a client is told. `message` is public: no host path, secret or storage address gets into it.
struct HttpError {
  int status = 500;
  std::string type;  // "invalid_request_error", "authentication_error", ...
  std::string code;  // "environment_in_use", "not_found", ...
  std::string message;
  std::string param;                  // the field or parameter that is wrong; empty: null
  std::vector<std::string> blocking;  // ids of what stands in the way
};

// By the error's code alone, with a fixed text each: an Error's own message is for the log (it may
// name files and blocks).
HttpError ToHttpError(const Error& error);

// The same answer for what is missing and for what is another organization's.
HttpError NotFoundError();
HttpError InvalidRequest(std::string message, std::string param = {});
HttpError Unauthorized();
// What the transport refuses: 400, 413, 431; 404 and 405 of the router.
HttpError StatusError(int status);

HttpResponse ErrorResponse(const HttpError& error);

}  // namespace cairn
