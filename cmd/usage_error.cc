// CLI11 looks for missing arguments before it looks for unexpected ones, so a misspelt verb or
// option is reported as something missing. Here what it could not place comes first.
#include "cmd/usage_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <vector>

namespace cairn {

std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = &app;
  std::string command = app.get_name();
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    command += " " + verb->get_name();
  }
  const std::vector<std::string> unplaced = app.remaining(true);
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool misplaced =
      kind == CLI::ExitCodes::RequiredError || kind == CLI::ExitCodes::ExtrasError;
  const bool option = !unplaced.empty() && unplaced.front().starts_with('-');
  std::string what = error.what();
  if (misplaced && !option && verb->get_require_subcommand_min() > 0) {
    std::vector<std::string> names;
    for (const CLI::App* one : verb->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(one->get_name());
    }
    what = fmt::format("{}: {} has {}",
                       unplaced.empty() ? "a verb is missing"
                                        : fmt::format("there is no verb {}", unplaced.front()),
                       command, fmt::join(names, ", "));
  } else if (misplaced && !unplaced.empty()) {
    what = fmt::format("{} takes no {}", command, fmt::join(unplaced, " "));
  }
  return fmt::format("{} (help: {} --help)", what, command);
}

CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (failed == std::errc() && end == text.data() + text.size()) return {};
        return fmt::format("{} is not a whole number, 0 or more", text);
      },
      "");
}

}  // namespace cairn
