// The service of tests/worker/counted_stream.h in a program that takes a ledger's arguments.
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "tests/worker/counted_stream.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/worker_program.h"
#include "worker/worker.h"

namespace baton::testing {
namespace {

constexpr char kProgram[] = "ledger";  // as the harness expects it
// A slow receiver sleeps after so many messages.
constexpr uint64_t kMessagesPerSleep = 8;

struct Arguments {
  examples::WorkerFlags worker;
  uint32_t sleep_us = 0;
  uint32_t ignored = 0;
};

class StreamService final : public Service {
 public:
  explicit StreamService(uint32_t sleep_us) : sleep_us_(sleep_us) {}

  absl::Status OnAdopt(Shard& shard) override { return CountedStream::Adopt(shard); }

  void OnCompletion(Shard& shard, const Completion& completion) override {
    Connection& connection = *completion.connection;
    const auto never = [](CountedStream::Step) { return false; };
    absl::Status status = CountedStream::Handle(shard, completion, never);
    if (sleep_us_ != 0 && ++completions_ % kMessagesPerSleep == 0) usleep(sleep_us_);
    if (status.ok()) return;
    std::cerr << "connection " << connection.index() << ": " << status << std::endl;
    shard.Abandon();
    const bool asks = completion.kind == Completion::Kind::kConnectRequest;
    status = asks ? shard.Reject(connection) : shard.Disconnect(connection);
    if (!status.ok()) std::cerr << "it cannot be ended: " << status << std::endl;
  }

 private:
  const uint32_t sleep_us_;
  uint64_t completions_ = 0;
};

absl::Status Serve(const Arguments& arguments) {
  StreamService service(arguments.sleep_us);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = "v1";
  options.reads_state_version_min = options.reads_state_version_max = kFormat;
  options.writes_state_version = kFormat;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  return examples::ServeUntilAsked(*worker, arguments.worker, kProgram, /*version=*/1,
                                   [](uint16_t) { return absl::OkStatus(); });
}

int Main(int argc, char** argv) {
  Arguments arguments;
  examples::Flags flags("A service that reads and answers streams of numbered messages.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags.Add("--window", &arguments.ignored);
  flags.Add("--message-size", &arguments.ignored);
  flags.Add("--sleep-us", &arguments.sleep_us, "how long it sleeps between messages");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = Serve(arguments);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) { return baton::testing::Main(argc, argv); }
