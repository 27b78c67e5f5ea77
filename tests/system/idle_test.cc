// The supervisor costs nothing while nothing happens. BATON_IDLE_SECONDS: how long it is watched.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"

namespace baton {
namespace {

// Processor time of a process so far, in seconds (proc(5): utime and stime of /proc/PID/stat).
double ProcessorSeconds(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  unsigned long user = 0, system = 0;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 2,
                  "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) {
    return -1;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST(Idle, shouldUseUnderOnePercentOfACoreWith64Connections) {
  const char* text = std::getenv("BATON_IDLE_SECONDS");
  const int seconds = text ? std::atoi(text) : 6;
  harness::ClusterOptions options;
  auto cluster = harness::Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = (*cluster)->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  harness::PeerOptions peer_options;
  peer_options.connections = 64;
  peer_options.window = 8;
  peer_options.rate = 1000;
  auto peer = (*cluster)->StartPeer(peer_options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE((*peer)->Settle().ok());
  // The peer keeps its connections and says nothing more.
  ASSERT_TRUE((*peer)->process().Signal(SIGSTOP).ok());
  const absl::StatusOr<v1::GetStatusResponse> status = (*cluster)->AwaitBrokers();
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->services(0).connection_count(), 64u);

  const std::vector<std::pair<std::string, int>> processes = {
      {"batond", (*cluster)->batond().pid()},       {"driver", status->services(0).driver_pid()},
      {"broker", status->services(0).broker_pid()}, {"twin", status->services(0).twin_pid()},
      {"keeper", status->services(0).keeper_pid()}, {"control", status->control_pid()},
  };
  double before = 0, after = 0;
  for (const auto& [name, pid] : processes) before += ProcessorSeconds(pid);
  sleep(static_cast<unsigned>(seconds));  // what is measured, not a wait for something
  for (const auto& [name, pid] : processes) {
    ASSERT_GE(ProcessorSeconds(pid), 0) << name;
    after += ProcessorSeconds(pid);
  }
  const double share = (after - before) / seconds;
  std::printf("idle: %.2f %% of a core for batond, driver, brokers, keeper and control\n",
              share * 100);
  EXPECT_LT(share, 0.01);
  ASSERT_TRUE((*peer)->process().Signal(SIGCONT).ok());
}

}  // namespace
}  // namespace baton
