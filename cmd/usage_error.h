// What the answer to a wrong command line says.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cairn {

// One line for what is wrong, with the verbs to choose from where one is missing or unknown, and
// one for the command that prints the help. `app` has just thrown `error` from parse().
std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error);

// Digits that fit 64 bits. (CLI11 alone takes "-1" for 2^64 - 1.)
CLI::Validator WholeNumber();

}  // namespace cairn
