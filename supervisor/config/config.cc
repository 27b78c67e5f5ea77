#include "supervisor/config/config.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "supervisor/config/node.h"
#include "supervisor/config/policy.h"

namespace baton {
namespace {

// A larger configuration must be a mistake (the wrong file).
constexpr size_t kMaxFileBytes = 4u << 20;

class ParseErrors : public google::protobuf::io::ErrorCollector {
 public:
  explicit ParseErrors(Problems& problems) : problems_(problems) {}

  // Both numbers count from 0; people count from 1.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    problems_.AddAt(line + 1, column + 1, message);
  }

 private:
  Problems& problems_;
};

// `what`: "the configuration".
absl::StatusOr<std::string> ReadFile(const std::string& path, const char* what) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, absl::StrCat("cannot read ", what, " ", path));
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = read(file.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", what, " ", path));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than ", kMaxFileBytes, " bytes; is it the right file?"));
    }
  }
}

}  // namespace

absl::StatusOr<v1::Config> ParseConfig(std::string_view text, std::string_view file_name) {
  Problems problems{std::string(file_name)};
  ParseErrors errors(problems);
  google::protobuf::TextFormat::ParseInfoTree places;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&places);
  v1::Config config;
  // Values are checked only if the text parses, because otherwise missing ones would be reported,
  // too.
  if (parser.ParseFromString(std::string(text), &config)) {
    CompleteAndValidate(config, &places, problems);
  }
  BATON_RETURN_IF_ERROR(problems.ToStatus());
  return config;
}

absl::StatusOr<v1::Config> LoadConfig(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "the configuration"));
  return ParseConfig(text, path);
}

absl::Status CompleteConfig(v1::Config& config) {
  Problems problems("");
  CompleteAndValidate(config, nullptr, problems);
  return problems.ToStatus();
}

absl::Status ParseText(std::string_view text, std::string_view what,
                       google::protobuf::Message* message) {
  Problems problems{std::string(what)};
  ParseErrors errors(problems);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  (void)parser.ParseFromString(std::string(text), message);
  return problems.ToStatus();
}

absl::StatusOr<v1::Policy> ParsePolicy(std::string_view text, std::string_view file_name) {
  v1::Policy policy;
  BATON_RETURN_IF_ERROR(ParseText(text, file_name, &policy));
  return policy;
}

absl::StatusOr<v1::Policy> LoadPolicy(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "the policy"));
  return ParsePolicy(text, path);
}

}  // namespace baton
