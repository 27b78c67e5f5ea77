#include "supervisor/control/config.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace baton {
namespace {

constexpr size_t kMaxServiceName = 32;

// Keeps the first error of a parse.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text.empty())
      text = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  std::string text;
};

bool IsServiceName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxServiceName &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

}  // namespace

absl::StatusOr<internal::ControlConfig> ParseControlConfig(const std::string& text) {
  internal::ControlConfig config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, &config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "standard input is not a baton.internal.ControlConfig in text format: ", error.text));
  }
  if (config.state_dir().empty()) {
    return absl::InvalidArgumentError("state_dir is missing: name the directory of the sockets");
  }
  if (config.state_dir().find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("state_dir has a NUL, which no path has");
  }
  std::set<std::string> names;
  for (const std::string& name : config.services()) {
    if (!IsServiceName(name)) {
      return absl::InvalidArgumentError(absl::StrCat("service name \"", name, "\": use 1 to ",
                                                     kMaxServiceName,
                                                     " characters of a-z, 0-9 and -"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("service \"", name, "\" is named twice: names are unique"));
    }
    const std::string path = ManagementSocketPath(config.state_dir(), name);
    if (path.size() > kMaxSocketPathBytes) {
      return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                     " bytes, at most ", kMaxSocketPathBytes,
                                                     " are possible: choose a shorter state_dir"));
    }
  }
  return config;
}

}  // namespace baton
