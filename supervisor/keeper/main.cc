// baton-keeper: owns one service. Started by batond, which writes its configuration (text format
// of baton.internal.KeeperConfig) to standard input and learns through the descriptor in
// BATON_READY_FD that workers can attach.
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "google/protobuf/text_format.h"
#include "lib/base/readiness.h"
#include "lib/base/status_text.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "supervisor/keeper/keeper.h"

int main() {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("baton-keeper"));
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  baton::internal::KeeperConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  baton::keeper::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  auto keeper = baton::keeper::Keeper::Create(config, options);
  if (!keeper.ok()) {
    spdlog::error("service {}: {}", config.service().name(), baton::MessageOf(keeper.status()));
    return 1;
  }
  baton::TellReady();
  return (*keeper)->Run() ? 0 : 1;
}
