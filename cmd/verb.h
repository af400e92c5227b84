// How a verb of the cairn command is declared: its arguments write into a request that the verb
// owns, and Show says how the answer is printed for people.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/host_client.h"
#include "cmd/cairn_commands.h"
#include "cmd/cairn_output.h"
#include "cmd/usage_error.h"

namespace cairn {

using Columns = std::vector<std::string>;
using Request = std::shared_ptr<host::HostRequest>;
using Show = std::function<ExitCode(const google::protobuf::Message&)>;

Request NewRequest();
CLI::App* Group(CLI::App& app, const std::string& name, const std::string& help);

// An answer as one record, or its `data` as a table.
Show Record();
Show Table(Columns columns);

// What a parsed verb does: send `request` and print the answer with `show` (or as JSON). `exit`
// overrides the exit code of an answer.
std::function<void()> Sending(CommandContext& context, Request request, Show show,
                              std::function<ExitCode(const host::HostResponse&)> exit = {});
void Sends(CLI::App* verb, CommandContext& context, Request request, Show show,
           std::function<ExitCode(const host::HostResponse&)> exit = {});

// An argument or option that writes into a string field of a request.
std::function<void(const std::string&)> Into(Request request, std::string* field);
std::function<void(const std::string&)> PathInto(Request request, std::string* field);
CLI::Option* Argument(CLI::App* verb, const std::string& name, const Request& request,
                      std::string* field, const std::string& help);
CLI::Option* PathArgument(CLI::App* verb, const std::string& name, const Request& request,
                          std::string* field, const std::string& help);
CLI::Option* Text(CLI::App* verb, const std::string& name, const Request& request,
                  std::string* field, const std::string& help);
template <typename Set>
CLI::Option* Flag(CLI::App* verb, const std::string& name, const Request& request, Set set,
                  const std::string& help) {
  return verb->add_flag_callback(name, [request, set] { set(*request); }, help);
}
template <typename Set>
CLI::Option* Number(CLI::App* verb, const std::string& name, const Request& request, Set set,
                    const std::string& help) {
  return verb
      ->add_option_function<uint64_t>(
          name, [request, set](const uint64_t& value) { set(*request, value); }, help)
      ->check(WholeNumber());
}
// --metadata and --label: NAME=VALUE, many times.
template <typename Map>
CLI::Option* Pairs(CLI::App* verb, const std::string& name, const Request& request, Map* map,
                   const std::string& help) {
  return verb
      ->add_option_function<std::vector<std::string>>(
          name,
          [request, map](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const size_t at = pair.find('=');
              if (at == 0 || at == std::string::npos)
                throw CLI::ValidationError(pair, "must be NAME=VALUE");
              (*map)[pair.substr(0, at)] = pair.substr(at + 1);
            }
          },
          help)
      ->expected(1)
      ->take_all();
}

}  // namespace cairn
