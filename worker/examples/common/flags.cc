#include "worker/examples/common/flags.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace baton::examples {
namespace {

// CLI11 treats it as any enumeration whose underlying type is uint8_t.
enum class Enumerator : uint8_t {};

CLI::Validator ByName(const std::map<std::string, uint8_t>& numbers) {
  std::map<std::string, Enumerator> enumerators;
  for (const auto& [text, number] : numbers) enumerators[text] = Enumerator{number};
  return CLI::CheckedTransformer(enumerators);
}

}  // namespace

Flag Flag::Required() {
  option_->required();
  return *this;
}

Flag Flag::Within(int least, int most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Flag Flag::Within(uint64_t least, uint64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Flag Flag::Within(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Flag Flag::OneOf(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Flag Flag::SplitAtCommas() {
  option_->delimiter(',');
  return *this;
}

Flag Flag::Excludes(Flag other) {
  option_->excludes(other.option_);
  return *this;
}

Flags::Flags(const std::string& description)
    : own_(std::make_unique<CLI::App>(description)), app_(*own_) {}

Flags::Flags(CLI::App& command) : app_(command) {}

Flags::~Flags() = default;

Flag Flags::Add(const std::string& name, int* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, uint16_t* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, uint32_t* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, uint64_t* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, double* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, std::string* value, const std::string& help) {
  return Flag(app_.add_option(name, *value, help));
}

Flag Flags::Add(const std::string& name, std::vector<uint32_t>* values, const std::string& help) {
  return Flag(app_.add_option(name, *values, help));
}

Flag Flags::Add(const std::string& name, std::vector<std::string>* values,
                const std::string& help) {
  return Flag(app_.add_option(name, *values, help));
}

Flag Flags::AddEnumerator(const std::string& name, const std::map<std::string, uint8_t>& numbers,
                          const std::string& help, const std::function<void(uint8_t)>& take) {
  CLI::Option* const option = app_.add_option_function<Enumerator>(
      name, [take](const Enumerator& given) { take(static_cast<uint8_t>(given)); }, help);
  option->transform(ByName(numbers));
  return Flag(option);
}

Flag Flags::AddEnumerators(const std::string& name, const std::map<std::string, uint8_t>& numbers,
                           const std::string& help,
                           const std::function<void(const std::vector<uint8_t>&)>& take) {
  CLI::Option* const option = app_.add_option_function<std::vector<Enumerator>>(
      name,
      [take](const std::vector<Enumerator>& given) {
        std::vector<uint8_t> values;
        for (const Enumerator one : given) values.push_back(static_cast<uint8_t>(one));
        take(values);
      },
      help);
  option->transform(ByName(numbers));
  return Flag(option);
}

Flag Flags::Switch(const std::string& name, bool* is_given, const std::string& help) {
  return Flag(app_.add_flag(name, *is_given, help));
}

Flags Flags::Command(const std::string& name, const std::string& help,
                     const std::function<void()>& run) {
  app_.require_subcommand(1);
  CLI::App* const command = app_.add_subcommand(name, help);
  command->callback(run);
  return Flags(*command);
}

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_.exit(error);
  }
  return std::nullopt;
}

}  // namespace baton::examples
