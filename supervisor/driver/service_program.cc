#include "supervisor/driver/service_program.h"

#include <unistd.h>

#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/state_files.h"

namespace baton::driver_process {
namespace {

constexpr unsigned kEndSeconds = 5;

}  // namespace

std::optional<internal::KeeperConfig> ReadConfig() {
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  internal::KeeperConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) return std::nullopt;
  return config;
}

void BeginLog(const internal::KeeperConfig& config, std::string_view process) {
  log::LogToStandardError("baton-" + std::string(process), log::LogThread::kNone);
  spdlog::default_logger()->set_level(LevelOf(config.service().log_level()));
  if (config.log_format() == v1::JSON) log::UseJson(std::string(process), config.service().name());
}

int FailToStart(const internal::KeeperConfig& config, const absl::Status& why) {
  const std::string& service = config.service().name();
  spdlog::error("service {}: {}", service, MessageOf(why));
  SetDownReason(config.state_dir(), service, absl::StrCat("it cannot be started: ", why.message()));
  return 1;
}

int EndFor(const internal::KeeperConfig& config, const absl::Status& why) {
  const std::string& service = config.service().name();
  spdlog::error("service {}: ends: {}", service, MessageOf(why));
  SetDownReason(config.state_dir(), service, std::string(MessageOf(why)));
  alarm(kEndSeconds);
  return 1;
}

}  // namespace baton::driver_process
