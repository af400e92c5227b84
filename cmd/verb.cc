// A verb that was parsed leaves an action in the context: one call, and its answer printed.
#include "cmd/verb.h"

#include <utility>

namespace cairn {
namespace {

using google::protobuf::Message;

// The message that an answer holds.
const Message* ResultOf(const host::HostResponse& response) {
  const auto* oneof = response.GetDescriptor()->FindOneofByName("result");
  const auto* field = response.GetReflection()->GetOneofFieldDescriptor(response, oneof);
  return field == nullptr ? nullptr : &response.GetReflection()->GetMessage(response, field);
}

}  // namespace

Show Record() {
  return [](const Message& message) {
    PrintRecord(message);
    return kExitOk;
  };
}
Show Table(Columns columns) {
  return [columns = std::move(columns)](const Message& message) {
    PrintTable(message, "data", columns);
    return kExitOk;
  };
}

std::function<void()> Sending(CommandContext& context, Request request, Show show,
                              std::function<ExitCode(const host::HostResponse&)> exit) {
  return [&context, request = std::move(request), show = std::move(show), exit = std::move(exit)] {
    context.action = [request, show, exit](CommandContext& ctx, HostClient& client) {
      host::HostResponse response;
      ExitCode code = kExitOk;
      if (!MakeCall(ctx, client, *request, &response, &code)) return code;
      const Message* result = ResultOf(response);
      if (result == nullptr) {
        return PrintError(Error(ErrorCode::kInternal,
                                "the daemon's answer is of a kind that this client does not know: "
                                "use one of its version"),
                          kExitFailed, ctx.json);
      }
      if (ctx.json) {
        PrintJson(*result);
      } else {
        code = show(*result);
      }
      return exit ? exit(response) : code;
    };
  };
}
void Sends(CLI::App* verb, CommandContext& context, Request request, Show show,
           std::function<ExitCode(const host::HostResponse&)> exit) {
  verb->callback(Sending(context, std::move(request), std::move(show), std::move(exit)));
}

std::function<void(const std::string&)> Into(Request request, std::string* field) {
  return [request = std::move(request), field](const std::string& value) { *field = value; };
}
std::function<void(const std::string&)> PathInto(Request request, std::string* field) {
  return [request = std::move(request), field](const std::string& value) {
    *field = AbsolutePath(value);
  };
}
CLI::Option* Argument(CLI::App* verb, const std::string& name, const Request& request,
                      std::string* field, const std::string& help) {
  return verb->add_option_function<std::string>(name, Into(request, field), help)->required();
}
CLI::Option* PathArgument(CLI::App* verb, const std::string& name, const Request& request,
                          std::string* field, const std::string& help) {
  return verb->add_option_function<std::string>(name, PathInto(request, field), help)->required();
}
CLI::Option* Text(CLI::App* verb, const std::string& name, const Request& request,
                  std::string* field, const std::string& help) {
  return verb->add_option_function<std::string>(name, Into(request, field), help);
}
Request NewRequest() { return std::make_shared<host::HostRequest>(); }

CLI::App* Group(CLI::App& app, const std::string& name, const std::string& help) {
  CLI::App* group = app.add_subcommand(name, help);
  group->require_subcommand(1);
  return group;
}

bool MakeCall(CommandContext& context, HostClient& client, host::HostRequest request,
              host::HostResponse* response, ExitCode* exit) {
  request.set_org(context.org);
  auto answer = client.Call(std::move(request));
  if (!answer) {
    const bool broken = answer.error().code() == ErrorCode::kUnavailable;
    *exit = PrintError(answer.error(), broken ? kExitUnreachable : kExitFailed, context.json);
    return false;
  }
  if (answer->has_error()) {
    *exit = PrintCallError(answer->error(), context.json);
    return false;
  }
  *response = std::move(*answer);
  return true;
}

}  // namespace cairn
