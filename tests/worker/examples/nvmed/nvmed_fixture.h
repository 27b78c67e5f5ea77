// A Baton with nvmed workers, and hosts that read and write all the time.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/worker/examples/example_fixture.h"
#include "tests/worker/examples/nvmed/block_load.h"
#include "tests/worker/examples/nvmed/nvme_host.h"

namespace baton::nvmed {

using examples::ExampleOptions;
using examples::ExampleWorker;
using examples::kTimeout;

inline constexpr char kSubsystem[] = "nqn.2014-08.org.example:baton";
inline constexpr uint32_t kMemoryNamespace = 1, kFileNamespace = 2;
inline constexpr uint32_t kNamespaceBytes = 2 << 20;  // of each
inline constexpr uint32_t kBlockBytes = 512;
inline constexpr uint64_t kBlocks = kNamespaceBytes / kBlockBytes;
inline constexpr uint32_t kMaxTransferBytes = 32768;
inline constexpr uint16_t kIoQueues = 4;

class NvmedTest : public examples::ExampleTest<BlockLoad> {
 protected:
  NvmedTest() : ExampleTest("nvmed") {}

  // With buffers for so many chunks that commands wait for one now and then.
  // `entries`: of each queue.
  void StartCluster(uint32_t max_connections = 12, uint32_t chunks = 6, uint32_t entries = 32) {
    entries_ = entries;
    const uint32_t slab = entries * (8 * 16 + 64 + 4096) + 4096;  // of a queue, or a bit less
    harness::ClusterOptions options;
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
    ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
    std::ofstream(FilePath()) << "";
    std::filesystem::resize_file(FilePath(), kNamespaceBytes);
    config_ = WriteConfig("nvmed", right_fields_);
  }
  // A cluster with a worker.
  void StartService() {
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  }
  // A cluster with a worker that a host is connected to.
  void StartServiceAndHost(uint16_t io_queues = 1) {
    ASSERT_NO_FATAL_FAILURE(StartService());
    ASSERT_NO_FATAL_FAILURE(ConnectHost(io_queues));
  }
  void ConnectHost(uint16_t io_queues = 1) {
    ASSERT_OK_AND_ASSIGN(host_, NvmeHost::Connect(HostOptions(io_queues)));
  }

  // The file that the second namespace is backed by.
  std::string FilePath() const { return absl::StrCat(cluster_->directory(), "/blocks"); }

  // `fields`: of the target; `more`: of its subsystem. Returns the path.
  std::string WriteConfig(const std::string& name, const std::string& fields,
                          const std::string& more = "") const {
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

  // To be added to the subsystem: the file once more.
  std::string ReadOnlyNamespace(uint32_t nsid) const {
    return absl::StrCat("namespaces { id: ", nsid, " file { read_only: true path: \"", FilePath(),
                        "\" } }");
  }

  std::vector<std::string> ArgumentsOf(const ExampleOptions& options) const override {
    std::vector<std::string> arguments = ExampleTest::ArgumentsOf(options);
    arguments.insert(arguments.end(),
                     {"--config", options.config.empty() ? config_ : options.config});
    return arguments;
  }

  NvmeHostOptions HostOptions(uint16_t io_queues = 1) const {
    NvmeHostOptions options;
    options.port = port_;
    options.subsystem_nqn = kSubsystem;
    options.io_queues = io_queues;
    options.data_bytes = 2 * kMaxTransferBytes;
    return options;
  }

  // Returns the options of a load. No other load has its blocks of the namespace.
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

  const std::string right_fields_ = absl::StrCat("max_transfer_bytes: ", kMaxTransferBytes);
  std::string config_;
  uint32_t entries_ = 0;
  std::unique_ptr<NvmeHost> host_;  // of tests that have one
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_NVMED_FIXTURE_H_
