// An object that goes to the background before it attaches, and writes what becomes of that to the
// file of its first argument.
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "worker/worker.h"

namespace {

class Service final : public baton::Service {
  absl::Status OnAdopt(baton::Shard&) override { return absl::OkStatus(); }
  void OnCompletion(baton::Shard&, const baton::Completion&) override {}
};

}  // namespace

int main(int, char** argv) {
  const pid_t child = fork();
  if (child == 0) {
    Service service;
    baton::WorkerOptions options;
    options.service = "ledger";
    options.control_stream = false;
    const auto worker = baton::Worker::Attach(options, &service);
    std::ofstream(argv[1]) << worker.status() << std::flush;
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  return 0;
}
