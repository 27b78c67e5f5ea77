#include "lib/log/log.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/utf8.h"
#include "lib/text/utc_time.h"
#include "spdlog/formatter.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

constexpr size_t kMaxMessageBytes = 3072;  // escaped, as all of these are
constexpr size_t kMaxFieldBytes = 128;
constexpr char kReplacement[] = "\xef\xbf\xbd";  // U+FFFD

// Lines of this logger are members of an object already.
constexpr char kMembersLogger[] = "members";
std::shared_ptr<spdlog::logger>& MembersLogger() {
  static auto* const logger = new std::shared_ptr<spdlog::logger>;
  return *logger;
}

void AddText(std::string* members, const char* name, std::string_view value, size_t max_bytes) {
  if (!value.empty()) {
    absl::StrAppend(members, ",\"", name, "\":\"", JsonEscaped(value, max_bytes), "\"");
  }
}

std::string MembersOf(const Subject& subject, std::string_view message) {
  std::string members;
  AddText(&members, "service", subject.service, kMaxFieldBytes);
  AddText(&members, "kind", subject.kind, kMaxFieldBytes);
  if (subject.worker_id != 0) absl::StrAppend(&members, ",\"worker_id\":", subject.worker_id);
  if (subject.shard >= 0) absl::StrAppend(&members, ",\"shard\":", subject.shard);
  if (subject.connection >= 0) absl::StrAppend(&members, ",\"connection\":", subject.connection);
  AddText(&members, "trace_parent", subject.trace_parent, kMaxFieldBytes);
  absl::StrAppend(&members, ",\"message\":\"", JsonEscaped(message, kMaxMessageBytes), "\"");
  return members;
}

std::string TimeOf(spdlog::log_clock::time_point time) {
  const auto since = time.time_since_epoch();
  return UtcTime(std::chrono::duration_cast<std::chrono::microseconds>(since).count());
}

class JsonFormatter final : public spdlog::formatter {
 public:
  JsonFormatter(std::string process, std::string service)
      : process_(std::move(process)), service_(std::move(service)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const std::string_view logger(message.logger_name.data(), message.logger_name.size());
    const std::string members =
        logger == kMembersLogger ? std::string(payload) : MembersOf({.service = service_}, payload);
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string text = absl::StrCat("{\"time\":\"", TimeOf(message.time), "\",\"level\":\"",
                                          absl::string_view(level.data(), level.size()),
                                          "\",\"process\":\"", process_, "\"", members, "}\n");
    line.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(process_, service_);
  }

 private:
  const std::string process_;
  const std::string service_;
};

std::string& OwnService() {
  static auto* const service = new std::string;
  return *service;
}

}  // namespace

std::string JsonEscaped(std::string_view text, size_t max_bytes) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    std::string one(text.substr(0, length));
    const auto byte = static_cast<unsigned char>(text.front());
    if (length == 0) {
      one = kReplacement;
    } else if (byte == '"' || byte == '\\') {
      one.insert(0, 1, '\\');
    } else if (byte == '\n') {
      one = "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      one = absl::StrFormat("\\u%04x", byte);
    }
    if (escaped.size() + one.size() > max_bytes) break;
    escaped += one;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

void Write(spdlog::level::level_enum level, const Subject& subject, std::string_view message) {
  if (const auto& logger = MembersLogger()) {
    Subject whole = subject;
    if (whole.service.empty()) whole.service = OwnService();
    logger->log(level, spdlog::string_view_t(MembersOf(whole, message)));
    return;
  }
  std::string text(message);
  if (!subject.kind.empty()) text = std::string(subject.kind) + ": " + text;
  if (!subject.trace_parent.empty()) {
    text += " (traceparent " + std::string(subject.trace_parent) + ")";
  }
  spdlog::default_logger_raw()->log(level, spdlog::string_view_t(text));
}

void UseJson(std::string process, std::string service) {
  OwnService() = service;
  const std::shared_ptr<spdlog::logger> logger = spdlog::default_logger();
  logger->set_formatter(std::make_unique<JsonFormatter>(std::move(process), std::move(service)));
  MembersLogger() = logger->clone(kMembersLogger);
}

bool IsJson() { return MembersLogger() != nullptr; }

}  // namespace baton::log
