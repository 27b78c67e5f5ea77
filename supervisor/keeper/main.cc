// baton-keeper: owns one service. Started by batond, which writes its configuration (text format
// of baton.internal.KeeperConfig) to standard input and learns through the descriptor in
// BATON_READY_FD that workers can attach.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>

#include "google/protobuf/text_format.h"
#include "lib/base/readiness.h"
#include "lib/base/status_text.h"
#include "spdlog/async.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/keeper/keeper.h"

namespace {

constexpr size_t kLogLines = 8192;
constexpr unsigned kLogSeconds = 2;
constexpr unsigned kEndSeconds = 5;

int Run() {
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  baton::internal::KeeperConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (config.launcher().empty()) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    config.set_launcher(self.parent_path() / "baton-launch");
  }
  baton::keeper::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  auto keeper = baton::keeper::Keeper::Create(config, options);
  const std::string& service = config.service().name();
  if (!keeper.ok()) {
    const std::string why(baton::MessageOf(keeper.status()));
    spdlog::error("service {}: {}", service, why);
    baton::SetDownReason(config.state_dir(), service, "it cannot be started: " + why);
    return 1;
  }
  baton::SetDownReason(config.state_dir(), service, "");
  baton::TellReady();
  const absl::Status ended = (*keeper)->Run();
  if (ended.ok()) return 0;
  const std::string why(baton::MessageOf(ended));
  spdlog::error("service {}: ends: {}", service, why);
  baton::SetDownReason(config.state_dir(), service, why);
  // What is left of a lost device is taken down; should that hang, the kernel does it.
  alarm(kEndSeconds);
  return 1;
}

}  // namespace

int main() {
  // Written by a thread of its own, the oldest lines are lost when it falls behind: a log that
  // nobody reads stops neither the keeper nor, below, its end.
  spdlog::init_thread_pool(kLogLines, 1);
  spdlog::set_default_logger(
      spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>("baton-keeper"));
  const int result = Run();
  alarm(kLogSeconds);
  spdlog::shutdown();
  return result;
}
