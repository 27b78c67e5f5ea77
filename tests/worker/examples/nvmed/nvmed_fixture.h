// A Baton with nvmed workers, and hosts that read and write all the time.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/worker/examples/nvmed/block_load.h"
#include "tests/worker/examples/nvmed/nvme_host.h"

namespace baton::nvmed {

inline constexpr std::chrono::seconds kTimeout{60};
inline constexpr char kSubsystem[] = "nqn.2014-08.org.example:baton";
inline constexpr uint32_t kMemoryNamespace = 1, kFileNamespace = 2;
inline constexpr uint32_t kNamespaceBytes = 2 << 20;  // of each
inline constexpr uint32_t kBlockBytes = 512;
inline constexpr uint64_t kBlocks = kNamespaceBytes / kBlockBytes;
inline constexpr uint32_t kMaxTransferBytes = 32768;
inline constexpr uint16_t kIoQueues = 4;

struct NvmedOptions {
  int version = 1;
  bool test_hooks = false;
  std::string crash_at = {};  // as BATON_CRASH_AT; needs test hooks
  std::string config = {};    // its path; empty: the fixture's
  std::vector<std::string> arguments = {};
};

struct NvmedWorker {
  std::unique_ptr<harness::ChildProcess> process;
  uint64_t id = 0;
};

class NvmedTest : public testing::Test {
 protected:
  // With buffers for so many chunks that commands wait for one now and then.
  // `entries`: of each queue.
  void StartCluster(uint32_t max_connections = 12, uint32_t chunks = 6, uint32_t entries = 32) {
    entries_ = entries;
    const uint32_t slab = entries * (8 * 16 + 64 + 4096) + 4096;  // of a queue, or a bit less
    harness::ClusterOptions options;
    options.service = "nvmed";
    options.shards = 1;
    options.max_connections = max_connections;
    options.batond_arguments = {
        "--send-queue-depth",
        absl::StrCat(4 * entries),
        "--receive-queue-depth",
        absl::StrCat(2 * entries),
        "--connection-state-bytes",
        absl::StrCat(48 + 8 * entries),
        "--shard-state-bytes",
        "8192",
        "--outside-effects",
        "--buffer-bytes",
        absl::StrCat((kNamespaceBytes + max_connections * slab + chunks * kMaxTransferBytes) /
                     4096 * 4096)};
    auto cluster = harness::Cluster::Start(std::move(options));
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
    std::ofstream(FilePath()) << "";
    std::filesystem::resize_file(FilePath(), kNamespaceBytes);
    config_ = WriteConfig("nvmed", absl::StrCat("max_transfer_bytes: ", kMaxTransferBytes), "");
  }

  // The file that the second namespace is backed by.
  std::string FilePath() const { return absl::StrCat(cluster_->directory(), "/blocks"); }

  // `fields`: of the target; `more`: of its subsystem. Returns the path.
  std::string WriteConfig(const std::string& name, const std::string& fields,
                          const std::string& more) const {
    std::string path = absl::StrCat(cluster_->directory(), "/", name, ".textproto");
    std::ofstream(path) << "io_queues: " << kIoQueues << " queue_entries: " << entries_ << " "
                        << fields << " subsystems { nqn: \"" << kSubsystem
                        << "\" serial: \"BATON1\" " << more
                        << " namespaces { id: " << kMemoryNamespace
                        << " memory { bytes: " << kNamespaceBytes
                        << " } } namespaces { id: " << kFileNamespace << " file { path: \""
                        << FilePath() << "\" } } }\n";
    return path;
  }

  // Ready when it returns.
  void StartNvmed(const NvmedOptions& options, std::unique_ptr<NvmedWorker>* worker) {
    auto started = std::make_unique<NvmedWorker>();
    ASSERT_NO_FATAL_FAILURE(Spawn(options, &started->process));
    const auto line = started->process->ReadLineWith("nvmed ready", kTimeout);
    ASSERT_OK(line);
    unsigned long long id = 0;
    unsigned port = 0;
    ASSERT_EQ(std::sscanf(line->c_str(), "nvmed ready version=%*d worker=%llu port=%u", &id, &port),
              2)
        << *line;
    started->id = id;
    port_ = static_cast<uint16_t>(port);
    // One that crashes by itself may be gone before it can be looked at.
    if (options.crash_at.empty()) ASSERT_OK(cluster_->WaitUntilReady(id));
    *worker = std::move(started);
  }

  std::vector<std::string> ArgumentsOf(const NvmedOptions& options) const {
    std::vector<std::string> arguments = {
        "--socket", cluster_->SocketPath(),
        "--listen", absl::StrCat(verbs::testing::FabricUnderTest().host, ":", port_),
        "--config", options.config.empty() ? config_ : options.config};
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    return arguments;
  }

  void Spawn(const NvmedOptions& options, std::unique_ptr<harness::ChildProcess>* process) {
    const std::string name =
        absl::StrCat("nvmed-v", options.version, options.test_hooks ? "-test-hooks" : "");
    const auto program = harness::Binaries().Find(name);
    ASSERT_OK(program);
    harness::ChildOptions child;
    child.program = *program;
    child.log_path = absl::StrCat(cluster_->directory(), "/nvmed-", logs_.size(), ".log");
    logs_.push_back(child.log_path);
    child.arguments = ArgumentsOf(options);
    child.arguments.insert(child.arguments.end(), {"--name", name});
    if (!options.crash_at.empty()) {
      child.environment.emplace_back("BATON_CRASH_AT", options.crash_at);
    }
    auto started = harness::ChildProcess::Start(child);
    ASSERT_OK(started);
    *process = *std::move(started);
  }

  NvmeHostOptions HostOptions(uint16_t io_queues = 1) const {
    NvmeHostOptions options;
    options.port = port_;
    options.subsystem_nqn = kSubsystem;
    options.io_queues = io_queues;
    options.data_bytes = 2 * kMaxTransferBytes;
    return options;
  }

  // Of a load on blocks of a namespace that no other load has.
  BlockLoadOptions LoadOptions(uint32_t nsid, uint16_t queues = 1, uint32_t depth = 4) const {
    BlockLoadOptions options;
    options.host = HostOptions(queues);
    // One without sees lost answers late, and is still a host.
    options.host.flow_control = loads_.size() % 3 != 2;
    options.nsid = nsid;
    options.blocks = 512;
    options.first_block = 512 * loads_.size();
    options.block_bytes = kBlockBytes;
    options.most_blocks = kMaxTransferBytes / kBlockBytes;
    options.depth = depth;
    // What a file system makes of a hole is its own affair.
    options.zeroes = nsid == kMemoryNamespace;
    options.seed = loads_.size() + 1;
    return options;
  }
  void StartLoad(const BlockLoadOptions& options) {
    loads_.push_back(std::make_unique<BlockLoad>(options));
  }
  void StartLoad(uint32_t nsid, uint16_t queues = 1, uint32_t depth = 4) {
    StartLoad(LoadOptions(nsid, queues, depth));
  }

  // Each host has been answered some more commands.
  void ExpectProgress(uint64_t commands = 10) {
    for (const auto& load : loads_) {
      const uint64_t enough = load->commands() + commands;
      EXPECT_OK(harness::WaitUntil(
          "answers", [&] { return load->failed() || load->commands() >= enough; }, kTimeout));
      if (load->failed()) ASSERT_OK(load->Stop());
    }
  }

  // Ends all hosts: each found what it had to.
  void ExpectNothingLost() {
    for (const auto& load : loads_) EXPECT_OK(load->Stop());
    loads_.clear();
  }

  // No connection is left behind.
  void ExpectNoConnections() {
    EXPECT_OK(harness::WaitUntil("all connections to be gone", [&] {
      const auto list = cluster_->operators().ListConnections("nvmed");
      return list.ok() && list->connections_size() == 0;
    }));
  }

  void TearDown() override {
    loads_.clear();
    if (!HasFailure() || cluster_ == nullptr) return;
    cluster_->DumpLogs();
    for (const std::string& path : logs_) {
      std::ifstream file(path);
      std::cerr << "---- " << path << "\n" << file.rdbuf();
    }
  }

  std::unique_ptr<harness::Cluster> cluster_;
  std::vector<std::unique_ptr<BlockLoad>> loads_;
  std::string config_;
  uint32_t entries_ = 0;
  uint16_t port_ = 0;
  std::vector<std::string> logs_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_
