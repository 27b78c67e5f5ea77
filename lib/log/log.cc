#include "lib/log/log.h"

#include <chrono>
#include <memory>
#include <utility>

#include "lib/base/utf8.h"
#include "lib/text/text.h"
#include "nlohmann/json.hpp"
#include "spdlog/formatter.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

// The kind of which all lines beyond the first kMaxKinds kinds are.
constexpr char kOthers[] = "other";

constexpr size_t kMaxMessageBytes = 3072;  // when escaped, like the next
constexpr size_t kMaxFieldBytes = 128;

// Lines of this logger are objects already. JsonFormatter only adds its own members.
constexpr char kObjectsLogger[] = "objects";
std::shared_ptr<spdlog::logger>& ObjectsLogger() {
  static auto* const logger = new std::shared_ptr<spdlog::logger>;
  return *logger;
}

// Cuts `text` so that it takes at most `max_bytes` when it is escaped.
nlohmann::ordered_json Bounded(std::string_view text, size_t max_bytes) {
  nlohmann::ordered_json bounded = ValidUtf8(text, max_bytes);
  for (;;) {
    constexpr size_t kQuotes = 2;
    const size_t bytes = bounded.dump().size() - kQuotes;
    if (bytes <= max_bytes) return bounded;
    // An escaped byte takes six bytes at most.
    const auto& former = bounded.get_ref<const std::string&>();
    bounded = ValidUtf8(former, former.size() - (bytes - max_bytes + 5) / 6);
  }
}

std::string ObjectOf(const Subject& subject, std::string_view message) {
  nlohmann::ordered_json object;
  const auto add = [&](const char* name, std::string_view value) {
    if (!value.empty()) object[name] = Bounded(value, kMaxFieldBytes);
  };
  add("service", subject.service);
  add("kind", subject.kind);
  if (subject.worker_id != 0) object["worker_id"] = subject.worker_id;
  if (subject.shard >= 0) object["shard"] = subject.shard;
  if (subject.connection >= 0) object["connection"] = subject.connection;
  add("trace_parent", subject.trace_parent);
  object["message"] = Bounded(message, kMaxMessageBytes);
  return object.dump();
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
    const std::string object =
        logger == kObjectsLogger ? std::string(payload) : ObjectOf({.service = service_}, payload);
    const auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json head;
    head["time"] = TimeOf(message.time);
    head["level"] = std::string(level.data(), level.size());
    head["process"] = process_;
    std::string text = head.dump();
    text.back() = ',';  // The members of `object` follow.
    text.append(object, 1).push_back('\n');
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

void Write(spdlog::level::level_enum level, const Subject& subject, std::string_view message) {
  if (const auto& logger = ObjectsLogger()) {
    Subject whole = subject;
    if (whole.service.empty()) whole.service = OwnService();
    logger->log(level, spdlog::string_view_t(ObjectOf(whole, message)));
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
  ObjectsLogger() = logger->clone(kObjectsLogger);
}

bool IsJson() { return ObjectsLogger() != nullptr; }

bool LineLimit::Take(std::string_view name, uint64_t now_ns) {
  Kind& kind = Find(name, now_ns);
  const bool is_written = kind.lines.TryTake(now_ns);
  kind.left_out += !is_written;
  return is_written;
}

void LineLimit::TakeLeftOut(
    const std::function<void(const std::string& kind, uint64_t lines)>& tell) {
  for (auto& [name, kind] : kinds_) {
    if (const uint64_t lines = std::exchange(kind.left_out, 0); lines > 0) tell(name, lines);
  }
}

LineLimit::Kind& LineLimit::Find(std::string_view name, uint64_t now_ns) {
  const auto found = kinds_.find(name);
  if (found != kinds_.end()) return found->second;
  const std::string key(kinds_.size() + 1 < kMaxKinds ? name : kOthers);
  return kinds_.try_emplace(key, Kind{TokenBucket(kPerSecond, kBurst, now_ns)}).first->second;
}

}  // namespace baton::log
